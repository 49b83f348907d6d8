"""The Kubernetes objects of a document, and the pod templates in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hisparse_guard.cli.inject.document_edits import Path
from hisparse_guard.cli.inject.nodes import Document, Refused, shown

CONFIGMAP_PREFIX = "hisparse-guard-"

# What of a template's path does not tell whose group it is: LeaderWorkerSet's leader and workers,
# Ray's head and worker groups, KServe's predictor and its workerSpec serve together.
_MEMBER = {
    *("spec", "template", "leaderTemplate", "workerTemplate", "workerSpec", "worker", "leader"),
    *("headGroupSpec", "workerGroupSpecs"),
}


# `submitterPodTemplate` of a RayJob only asks the cluster for the job.
_NO_SERVER = {"status", "submitterPodTemplate"}


@dataclass(frozen=True)
class KubernetesObject:
    """One object: a document, or an item of a List.

    Attributes:
        path: where it is in its document.
        items: path of the list that it is an item of; None for a document of its own.
    """

    path: Path
    data: dict[str, Any]
    items: Path | None = None

    @property
    def kind(self) -> str:
        return str(self.data["kind"])

    @property
    def metadata(self) -> dict[str, Any]:
        found = self.data.get("metadata")
        return found if isinstance(found, dict) else {}

    @property
    def namespace(self) -> str | None:
        found = self.metadata.get("namespace")
        return found if isinstance(found, str) and found else None

    def __str__(self) -> str:
        name = self.metadata.get("name") or self.metadata.get("generateName") or "(no name)"
        return f"{shown(self.kind)}/{shown(name)}"

    def owner(self) -> str | None:
        """The object that made this one, and would make it anew as it was."""
        owners = self.metadata.get("ownerReferences")
        first = owners[0] if isinstance(owners, list) and owners else None
        return f"{first.get('kind')}/{first.get('name')}" if isinstance(first, dict) else None

    def is_configmap_of_ours(self) -> bool:
        labels = self.metadata.get("labels")
        return (
            self.kind == "ConfigMap"
            and str(self.metadata.get("name")).startswith(CONFIGMAP_PREFIX)
            and isinstance(labels, dict)
            and labels.get("app.kubernetes.io/name") == "hisparse-guard"
        )


def objects(document: Document) -> list[KubernetesObject]:
    return list(_objects(document.data, ()))


def _objects(data: Any, path: Path, items: Path | None = None) -> Iterator[KubernetesObject]:
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        return
    listed = data.get("items")
    if data["kind"].endswith("List") and isinstance(listed, list):
        inner: Path = (*path, "items")
        for number, item in enumerate(listed):
            yield from _objects(item, (*inner, number), inner)
    elif isinstance(data.get("apiVersion"), str):
        yield KubernetesObject(path, data, items)


@dataclass(frozen=True)
class PodTemplate:
    """A pod's specification: a mapping with `containers`.

    Attributes:
        path: of the mapping that holds `containers`, in its document.
        labels: of the pod template, {} where it has none.
    """

    path: Path
    spec: dict[str, Any]
    labels: dict[str, Any]

    def containers(self) -> list[tuple[Path, dict[str, Any]]]:
        found = enumerate(self.spec["containers"])
        return [((*self.path, "containers", n), c) for n, c in found if isinstance(c, dict)]


def groups(found: KubernetesObject) -> list[list[PodTemplate]]:
    """The object's pod templates, those whose pods serve one model together in one list."""
    by_key: dict[Path, list[PodTemplate]] = {}
    for template in _templates(found.data, found.path, {}):
        key = template.path
        while key and (key[-1] in _MEMBER or _is_worker_group(key)):
            key = key[:-1]
        by_key.setdefault(key, []).append(template)
    return list(by_key.values())


def _is_worker_group(path: Path) -> bool:
    return len(path) > 1 and isinstance(path[-1], int) and path[-2] == "workerGroupSpecs"


def _templates(data: Any, path: Path, beside: dict[str, Any]) -> Iterator[PodTemplate]:
    if isinstance(data, list):
        for number, item in enumerate(data):
            yield from _templates(item, (*path, number), {})
    if not isinstance(data, dict):
        return
    containers = data.get("containers")
    if isinstance(containers, list) and any(
        isinstance(c, dict) and isinstance(c.get("name"), str) for c in containers
    ):
        metadata = beside.get("metadata")
        labels = metadata.get("labels") if isinstance(metadata, dict) else None
        yield PodTemplate(path, data, labels if isinstance(labels, dict) else {})
        # KServe: the workers' pod stands within the predictor's.
        data = {key: value for key, value in data.items() if key != "containers"}
    for key, value in data.items():
        if isinstance(key, str) and key not in _NO_SERVER:
            yield from _templates(value, (*path, key), data)


class Selector:
    """Labels as `kubectl -l` takes them: ``a=b``, ``a!=b``, ``a``, ``!a``, with commas between."""

    _TERM = re.compile(r"(!?)([A-Za-z0-9][\w./-]*)(?:(==|=|!=)([\w.-]*))?")

    def __init__(self, text: str) -> None:
        self._terms = []
        for term in text.split(","):
            match = self._TERM.fullmatch(term.strip())
            if match is None or (match[1] and match[3]):
                raise Refused(
                    f"--selector {shown(text)}: {shown(term)} is not of the form KEY=VALUE, "
                    "KEY!=VALUE, KEY or !KEY"
                )
            self._terms.append(match.groups())

    def matches(self, labels: dict[str, Any]) -> bool:
        return all(self._holds(term, labels) for term in self._terms)

    @staticmethod
    def _holds(term: tuple[str, ...], labels: dict[str, Any]) -> bool:
        negated, key, operator, value = term
        if operator is None:
            return (key in labels) != bool(negated)
        return (labels.get(key) == value) == (operator != "!=")
