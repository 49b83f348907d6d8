"""Which containers run vLLM, as far as a manifest tells, and what in one keeps the guard out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from hisparse_guard.cli.inject.document_edits import Path
from hisparse_guard.cli.inject.nodes import Refused, shown
from hisparse_guard.cli.inject.objects import KubernetesObject, PodTemplate
from hisparse_guard.runtime import settings

# `vllm serve`, a path before it, `python -m vllm…`, also within a shell's text.
_VLLM_COMMAND = re.compile(
    r"(?:^|[\s;&|(\"'/])vllm\s+(?:serve|run-batch|bench)\b|-m\s+vllm\b|vllm\.entrypoints\b"
)
# What joins a Ray cluster that vLLM runs on, and nothing else by itself.
_RAY_NODE = re.compile(r"\bray\s+start\b|multi-node-serving\.sh|run_cluster\.sh")
_VLLM_IMAGE = re.compile(r"(?:^|[-_.])(?:vllm|ray-llm|llm-d)(?:$|[-_.])")
_OTHER_IMAGE = re.compile(
    r"router|sidecar|proxy|gateway|scheduler|exporter|controller|operator|bench|epp|simulator|-sim"
)
_RAY_KINDS = {"RayCluster", "RayService", "RayJob"}


@dataclass(frozen=True)
class Target:
    """A container to guard, and what the manifest says for it."""

    template: PodTemplate
    path: Path
    container: dict[str, Any]
    reason: str
    in_ray: bool = False

    @property
    def name(self) -> str:
        return shown(self.container.get("name"))


def words(container: dict[str, Any]) -> list[str]:
    """`command` and `args`; what is no string is left out."""
    found: list[str] = []
    for key in ("command", "args"):
        value = container.get(key)
        found += [w for w in value if isinstance(w, str)] if isinstance(value, list) else []
    return found


def image_name(container: dict[str, Any]) -> str:
    """The last part of the image's name, without tag and digest."""
    image = container.get("image")
    text = image if isinstance(image, str) else ""
    return text.partition("@")[0].rpartition("/")[2].partition(":")[0].lower()


def _has_vllm_image(container: dict[str, Any]) -> bool:
    name = image_name(container)
    return bool(_VLLM_IMAGE.search(name)) and not _OTHER_IMAGE.search(name)


def _runs_vllm(container: dict[str, Any]) -> str | None:
    """Why `container` runs vLLM; None where the manifest does not tell."""
    text = " ".join(words(container))
    if _VLLM_COMMAND.search(text):
        return "its command runs vLLM"
    if _has_vllm_image(container) and not container.get("command"):
        return f"it starts its image, {shown(image_name(container))}, as it is"
    return None


def targets(
    found: KubernetesObject, group: list[PodTemplate], names: set[str], allow_partial: bool
) -> tuple[list[Target], list[str]]:
    """The containers to guard in a group of pod templates, and a line for each left alone.

    Args:
        names: those that `--container` gives; empty to look for what runs vLLM.
        allow_partial: whether a part of the group may go without.

    Raises:
        Refused: the group would be guarded in part, and would hang.
    """
    in_ray = found.kind in _RAY_KINDS
    chosen: list[Target] = []
    without: list[PodTemplate] = []
    for template in group:
        of_template = [
            Target(template, path, container, reason)
            for path, container in template.containers()
            if (reason := _reason(container, names))
        ]
        chosen += of_template
        if not of_template:
            without.append(template)
    if (chosen or (in_ray and _mentions_vllm(found.data))) and not names:
        for template in list(without):
            member = _member(template, in_ray)
            if member is not None:
                chosen.append(member)
                without.remove(template)
    lines = [
        f"container {shown(c.get('name'))} of {found} left alone: {_why_not(c, names)}"
        for template in without
        for _, c in template.containers()
    ]
    if chosen and without and not allow_partial:
        raise Refused(
            f"{found} would be guarded in part, and such a group hangs: nothing shows that "
            f"{shown('.'.join(map(str, without[0].path)))} runs vLLM; name the container of each "
            "part by --container, or take --allow-partial-group if that part runs none"
        )
    ray = in_ray or any(_RAY_NODE.search(" ".join(words(t.container))) for t in chosen)
    return [Target(t.template, t.path, t.container, t.reason, ray) for t in chosen], lines


def _reason(container: dict[str, Any], names: set[str]) -> str | None:
    if not names:
        return _runs_vllm(container)
    return "--container names it" if container.get("name") in names else None


def _member(template: PodTemplate, in_ray: bool) -> Target | None:
    """The container of a group's template that takes part, where another one runs vLLM."""
    found = template.containers()
    if in_ray and found:
        # KubeRay's own rule.
        return Target(template, *found[0], "it is the Ray container of a cluster that runs vLLM")
    for path, container in found:
        if _has_vllm_image(container) or _RAY_NODE.search(" ".join(words(container))):
            return Target(template, path, container, "it is part of a group that runs vLLM")
    return None


def _mentions_vllm(data: Any) -> bool:
    if isinstance(data, str):
        return bool(re.search(r"(?<![\w])vllm|ray-llm|ray\.serve\.llm", data, re.IGNORECASE))
    if isinstance(data, dict):
        return any(_mentions_vllm(value) for key, value in data.items() if key != "metadata")
    return isinstance(data, list) and any(map(_mentions_vllm, data))


def _why_not(container: dict[str, Any], names: set[str]) -> str:
    if names:
        return "not named by --container"
    if _has_vllm_image(container):
        return "its image may hold vLLM, but its command does not say so; name it by --container"
    return "neither its command nor its image says that it runs vLLM"


_OWN_PYTHONPATH = re.compile(r"\bPYTHONPATH=(?![^\s;&|]*\$\{?PYTHONPATH)")
# Options and assignments of `env` before the one that matters.
_ENV = r"\benv\s+(?:(?:-u\s+\w+|-\S+|[^-\s=][^\s=]*=\S*)\s+)*?"
_CLEARED = re.compile(
    _ENV + r"(?:-i|-|--ignore-environment|(?:-u\s*|--unset[= ])PYTHONPATH)(?:\s|$)"
    r"|\bunset\s[^;&|\n]{0,500}\bPYTHONPATH\b"
    r"|\b(?:sudo|su\s+(?:-l?|--login))\s[^;&|\n]{0,500}\bvllm\b"
)
_ISOLATED = re.compile(r"\bpython[\d.]*\s+(?:-[A-Za-z]+\s+)*-[A-Za-z]*[IE]")


def hazards(container: dict[str, Any], entry: str) -> list[str]:
    """What in the command keeps the guard out of vLLM's processes, each with what to do."""
    text = " ".join(words(container))
    found = []
    if _is_off(container):
        found.append("its own variables switch the guard off: take HISPARSE_GUARD_MODE out there")
    if _OWN_PYTHONPATH.search(text):
        found.append(f"its command sets PYTHONPATH itself: write PYTHONPATH={entry}:… there")
    if _CLEARED.search(text):
        found.append(
            f"its command takes PYTHONPATH out of the environment: add PYTHONPATH={entry} there"
        )
    if _ISOLATED.search(text):
        found.append(
            "its command starts Python with -I or -E, which ignores PYTHONPATH: take that out, "
            "or install hisparse-guard in the image"
        )
    return found


def _is_off(container: dict[str, Any]) -> bool:
    env = container.get("env")
    entries = [e for e in env if isinstance(e, dict)] if isinstance(env, list) else []
    given = {e.get("name"): e.get("value") for e in entries}
    texts = {n: v for n, v in given.items() if isinstance(n, str) and isinstance(v, str)}
    return settings.read_settings(texts)[0].mode == "off"
