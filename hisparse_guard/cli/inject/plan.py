"""What is added to a pod template, and the record by which it is taken out again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hisparse_guard import __version__
from hisparse_guard.cli.inject.containers import Target
from hisparse_guard.cli.inject.document_edits import (
    Edit,
    Insert,
    Path,
    Prefix,
    Put,
    Remove,
    Replace,
    Unprefix,
)
from hisparse_guard.cli.inject.nodes import Refused, shown
from hisparse_guard.cli.inject.objects import KubernetesObject, PodTemplate
from hisparse_guard.cli.ray_variables import RAY_VARIABLES

ANNOTATION = "hisparse-guard/injected"
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


@dataclass
class Plan:
    """The edits of one object, and what undoes them.

    Attributes:
        data: the object.
        source: the text of the value at a path of its document.
        base: path of the object in its document; the record's paths begin there.
    """

    data: dict[str, Any]
    base: Path
    source: Callable[[Path], str]
    edits: list[Edit] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    prefixed: dict[str, str] = field(default_factory=dict)
    was: dict[str, str] = field(default_factory=dict)

    def at(self, path: Path) -> Any:
        found: Any = self.data
        for step in path[len(self.base) :]:
            found = found[step]
        return found

    def add_items(self, parent: Path, key: str, items: list[dict[str, Any]]) -> None:
        """Adds named items to the list `key`, which need not be there."""
        path: Path = (*parent, key)
        existing = self.at(parent).get(key)
        if key not in self.at(parent):
            self.edits.append(Put(parent, key, items))
        elif not existing and (existing is None or isinstance(existing, list)):
            self.was[self._pointer(path)] = self.source(path)
            self.edits.append(Replace(path, items))
        elif isinstance(existing, list):
            self.edits += [Insert(path, item) for item in items]
        else:
            raise Refused(f"{shown('.'.join(map(str, path)))} is no list")
        self.added += [self._pointer((*path, item["name"])) for item in items]

    def insert(self, path: Path, item: dict[str, Any], after: int) -> None:
        self.edits.append(Insert(path, item, after))
        self.added.append(self._pointer((*path, item["name"])))

    def prefix(self, path: Path, text: str) -> None:
        self.edits.append(Prefix(path, text))
        # By the name that the item has afterwards.
        pointer = self._pointer(path)
        if path[-1] == "name":
            pointer = self._pointer((*path[:-2], text + str(self.at(path)), "name"))
        self.prefixed[pointer] = text

    def annotate(self) -> None:
        """Adds the record. Last, since it holds all else."""
        metadata = self.data.get("metadata")
        if not isinstance(metadata, dict):
            raise Refused("an object without metadata is no Kubernetes manifest")
        path: Path = (*self.base, "metadata")
        annotations = metadata.get("annotations")
        replaced = "annotations" in metadata and not annotations
        if replaced:
            self.was["metadata/annotations"] = self.source((*path, "annotations"))
        record: dict[str, Any] = {"version": __version__, "added": self.added}
        record |= {k: v for k, v in (("prefixed", self.prefixed), ("was", self.was)) if v}
        value = json.dumps(record, separators=(",", ":"))
        if replaced:
            self.edits.append(Replace((*path, "annotations"), {ANNOTATION: value}))
        elif annotations is None:
            self.edits.append(Put(path, "annotations", {ANNOTATION: value}))
        elif isinstance(annotations, dict):
            self.edits.append(Put((*path, "annotations"), ANNOTATION, value))
        else:
            raise Refused("metadata.annotations is no mapping")

    def _pointer(self, path: Path) -> str:
        """`path` within the object; list items by their name, which outlives a new order, where
        no other item has it."""
        steps: list[str | int] = []
        found: Any = self.data
        for step in path[len(self.base) :]:
            if isinstance(found, list) and isinstance(step, int):
                names = [item.get("name") if isinstance(item, dict) else None for item in found]
                found, name = found[step], names[step]
                unique = names.count(name) == 1
                steps.append(name if isinstance(name, str) and unique else step)
            else:
                found = found.get(step) if isinstance(found, dict) else None
                steps.append(step)
        return "/".join(str(s).replace("~", "~0").replace("/", "~1") for s in steps)


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


def record_of(found: KubernetesObject) -> dict[str, Any] | None:
    """What `Plan.annotate` wrote; None where nothing was injected.

    Raises:
        Refused: the annotation is not as it was written.
    """
    annotations = found.metadata.get("annotations")
    text = annotations.get(ANNOTATION) if isinstance(annotations, dict) else None
    if text is None:
        return None
    try:
        record = json.loads(text)
        assert all(isinstance(pointer, str) for pointer in record["added"])
        for part in ("prefixed", "was"):
            assert all(isinstance(value, str) for value in record.get(part, {}).values())
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError):
        raise Refused(
            f"{found}: its annotation {ANNOTATION} cannot be read, so what was injected is not "
            "known; take it and what it names out by hand"
        ) from None
    return dict(record)


def undo(found: KubernetesObject, record: dict[str, Any]) -> list[Edit]:
    """The edits that take out what `record` names, where it is still there."""
    edits: list[Edit] = []
    gone: dict[Path, set[str | int]] = {}
    pointers = [*record["added"], f"metadata/annotations/{ANNOTATION.replace('/', '~1')}"]
    for pointer in pointers:
        path = _resolve(found, pointer)
        if path is not None:
            gone.setdefault(path[:-1], set()).add(path[-1])
    was = {_resolve(found, pointer): text for pointer, text in record.get("was", {}).items()}
    for parent, steps in gone.items():
        if len(steps) < len(_at(found, parent)):
            edits += [Remove((*parent, step)) for step in steps]
        elif parent in was:
            edits.append(Replace(parent, _empty(was[parent]), was[parent]))
        else:
            edits.append(Remove(parent))
    for pointer, text in record.get("prefixed", {}).items():
        path = _resolve(found, pointer)
        value = _at(found, path) if path is not None else None
        if path is not None and isinstance(value, str) and value.startswith(text):
            edits.append(Unprefix(path, text))
    return edits


def _empty(source: str) -> Any:
    # Behind an anchor and a tag.
    plain = re.sub(r"^(?:[&!]\S*\s+)*", "", source)
    return {"[": [], "{": {}}.get(plain[:1])


def _at(found: KubernetesObject, path: Path) -> Any:
    value: Any = found.data
    for step in path[len(found.path) :]:
        value = value[step]
    return value


def _resolve(found: KubernetesObject, pointer: str) -> Path | None:
    path: Path = found.path
    value: Any = found.data
    for step in pointer.split("/"):
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and step in value:
            path, value = (*path, step), value[step]
        elif isinstance(value, list):
            named = [
                n for n, v in enumerate(value) if isinstance(v, dict) and v.get("name") == step
            ]
            numbered = [int(step)] if step.isdecimal() and int(step) < len(value) else []
            number = next(iter([*named[::-1], *numbered]), None)
            if number is None:
                return None
            path, value = (*path, number), value[number]
        else:
            return None
    return path
