"""Takes out what `Plan.annotate` recorded as put in."""

from __future__ import annotations

import json
import re
from typing import Any

from hisparse_guard.cli.inject.document_edits import Edit, Path, Remove, Replace, Unprefix
from hisparse_guard.cli.inject.nodes import Refused
from hisparse_guard.cli.inject.objects import KubernetesObject
from hisparse_guard.cli.inject.plan import ANNOTATION


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
