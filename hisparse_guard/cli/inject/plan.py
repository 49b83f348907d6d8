"""The edits of one Kubernetes object, and the record by which they are taken out again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hisparse_guard import __version__
from hisparse_guard.cli.inject.document_edits import (
    Edit,
    Insert,
    Path,
    Prefix,
    Put,
    Replace,
)
from hisparse_guard.cli.inject.nodes import Refused, shown

ANNOTATION = "hisparse-guard/injected"


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
