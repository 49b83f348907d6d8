"""What a guarded pod template gets: the volumes, and in each container the mounts, PYTHONPATH and
other variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hisparse_guard.cli.inject.containers import Target
from hisparse_guard.cli.inject.document_edits import Path
from hisparse_guard.cli.inject.nodes import Refused
from hisparse_guard.cli.inject.objects import PodTemplate
from hisparse_guard.cli.inject.plan import Plan
from hisparse_guard.cli.ray_variables import RAY_VARIABLES

VOLUME = "hisparse-guard"
EVIDENCE_VOLUME = "hisparse-guard-evidence"
EVIDENCE_MOUNT = "/var/run/hisparse-guard"
# Below the emptyDir, which every user may write to: the guard makes it.
EVIDENCE_DIR = f"{EVIDENCE_MOUNT}/evidence"
# An existing PYTHONPATH that `valueFrom` gives is kept under this name.
BEHIND = "BEHIND_HISPARSE_GUARD_"


@dataclass(frozen=True)
class Guard:
    """What to put in: where the ConfigMap is mounted, and the settings by variable name."""

    configmap: str
    mount: str
    entry: str
    settings: dict[str, str]
    evidence: bool = False
    image_pythonpath: str = ""


def guard_template(plan: Plan, template: PodTemplate, guard: Guard) -> None:
    """Adds the volumes of one pod template."""
    volumes = [
        {"name": VOLUME, "configMap": {"name": guard.configmap, "defaultMode": 0o444}},
        *([{"name": EVIDENCE_VOLUME, "emptyDir": {}}] if guard.evidence else []),
    ]
    _refuse_taken(template.spec.get("volumes"), volumes, "name", "volume")
    plan.add_items(template.path, "volumes", volumes)


def guard_container(plan: Plan, target: Target, guard: Guard) -> list[str]:
    """Adds the mounts and variables of one container; returns what to know about it, by line."""
    mounts: list[dict[str, Any]] = [{"name": VOLUME, "mountPath": guard.mount, "readOnly": True}]
    if guard.evidence:
        mounts.append({"name": EVIDENCE_VOLUME, "mountPath": EVIDENCE_MOUNT})
    _refuse_taken(target.container.get("volumeMounts"), mounts, "mountPath", "mount")
    plan.add_items(target.path, "volumeMounts", mounts)

    variables = _variables(target.container)
    new: list[dict[str, Any]] = []
    remarks = _python_path(plan, target, guard, variables, new)
    for name, value in guard.settings.items():
        if name in variables:
            raise Refused(
                f"container {target.name} sets {name} already: change it in the manifest, "
                "or leave --setting out"
            )
        new.append({"name": name, "value": literal(value)})
    if target.in_ray:
        remarks += _hand_on(plan, target, variables, new)
    if new:
        plan.add_items(target.path, "env", new)
    return remarks


def literal(value: str) -> str:
    """`value` as Kubernetes leaves it as it is: ``$(NAME)`` is else replaced."""
    return value.replace("$(", "$$(")


def _variables(container: dict[str, Any]) -> dict[str, int]:
    """Name to the number of its entry; of several the last, which is the one that counts."""
    env = container.get("env")
    found = enumerate(env) if isinstance(env, list) else ()
    return {
        e["name"]: n for n, e in found if isinstance(e, dict) and isinstance(e.get("name"), str)
    }


def _python_path(
    plan: Plan,
    target: Target,
    guard: Guard,
    variables: dict[str, int],
    new: list[dict[str, Any]],
) -> list[str]:
    number = variables.get("PYTHONPATH")
    if number is None:
        behind = f":{literal(guard.image_pythonpath)}" if guard.image_pythonpath else ""
        new.append({"name": "PYTHONPATH", "value": guard.entry + behind})
        if behind:
            return []
        source = "envFrom or the image" if target.container.get("envFrom") else "the image"
        return [
            f"a PYTHONPATH that {source} sets is no longer in force; if there is one, give it "
            "by --image-pythonpath"
        ]
    env: Path = (*target.path, "env")
    entry = target.container["env"][number]
    if entry.get("valueFrom") is not None:
        plan.prefix((*env, number, "name"), BEHIND)
        plan.insert(
            env, {"name": "PYTHONPATH", "value": f"{guard.entry}:$({BEHIND}PYTHONPATH)"}, number
        )
    elif isinstance(entry.get("value"), str):
        # A colon at the end would put the current folder on the path.
        plan.prefix((*env, number, "value"), guard.entry + (":" if entry["value"] else ""))
    else:
        raise Refused(
            f"container {target.name} has a PYTHONPATH whose value is no text: take it out of the "
            "manifest"
        )
    return []


def _hand_on(
    plan: Plan, target: Target, variables: dict[str, int], new: list[dict[str, Any]]
) -> list[str]:
    """vLLM hands these variables on to its Ray actors only if told to."""
    remarks = []
    for name, word in RAY_VARIABLES.items():
        number = variables.get(name)
        if number is None:
            new.append({"name": name, "value": word})
            continue
        value = target.container["env"][number].get("value")
        if not isinstance(value, str) or not value:
            remarks.append(f"{name} is not a plain value: see to it that {word} is in it")
        elif word not in value.split(","):
            plan.prefix((*target.path, "env", number, "value"), f"{word},")
    return remarks


def _refuse_taken(existing: Any, ours: list[dict[str, Any]], key: str, what: str) -> None:
    found = existing if isinstance(existing, list) else []
    taken = {item.get(key) for item in found if isinstance(item, dict)}
    for item in ours:
        if item[key] in taken:
            raise Refused(
                f"there is a {what} {item[key]} already, which hisparse-guard wants to add"
            )
