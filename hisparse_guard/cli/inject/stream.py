"""A stream of manifests in, the same with the guard in, or out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from hisparse_guard.cli.inject import document_edits as ed
from hisparse_guard.cli.inject.containers import Target, hazards, targets
from hisparse_guard.cli.inject.document_edits import Edit, Insert, Path, Remove, Splice
from hisparse_guard.cli.inject.nodes import Document, Refused, documents, shown
from hisparse_guard.cli.inject.objects import (
    KubernetesObject,
    PodTemplate,
    Selector,
    groups,
    objects,
)
from hisparse_guard.cli.inject.plan import Plan
from hisparse_guard.cli.inject.pythonpath_and_mounts import Guard, guard_container, guard_template
from hisparse_guard.cli.inject.undo import record_of, undo

# What Kubernetes does not change in a living object.
_FIXED = {"Pod", "Job"}


@dataclass
class Result:
    """The new text, and what to say: one line each.

    Attributes:
        changed: containers that were guarded, or objects that the guard was taken out of.
        freed: of `uninject`: namespace and name of each object that the guard was taken out of.
    """

    text: str
    changed: int = 0
    lines: list[str] = field(default_factory=list)
    freed: set[tuple[str | None, str]] = field(default_factory=set)


@dataclass(frozen=True)
class Choice:
    """Which containers are to be guarded."""

    containers: frozenset[str] = frozenset()
    selector: Selector | None = None
    allow_partial_group: bool = False


def uninject(text: str) -> Result:
    """Takes out what `inject` put in, of whatever version, and the ConfigMaps of ours.

    Raises:
        Refused: the text is no stream of manifests, or cannot be edited exactly.
    """
    result = Result(text)
    changes: list[Splice] = []
    for document in documents(text):
        removals: list[Edit] = []
        for found in objects(document):
            record = record_of(found)
            if record is not None:
                removals += undo(found, record)
                result.changed += 1
                result.freed.add((found.namespace, str(found)))
                result.lines.append(
                    f"{found}: the guard of version {shown(record.get('version'))} is out"
                )
            elif found.is_configmap_of_ours() and found.items is None:
                changes.append(Splice(document.start, document.end, ""))
                result.lines.append(f"{found}: out")
            elif found.is_configmap_of_ours():
                removals.append(Remove(found.path))
                result.lines.append(f"{found}: out")
        changes += _checked(text, document, removals)
    result.text = ed.spliced(text, changes)
    return result


def inject(
    text: str, guard: Guard, configmap: Callable[[str | None], dict[str, Any]], choice: Choice
) -> Result:
    """Guards the containers that `choice` names; what was injected before is replaced.

    Args:
        configmap: the ConfigMap for a namespace.

    Raises:
        Refused: as `uninject`; or a group of pods would be guarded in part; or an object that is
            guarded already would lose its guard, since `choice` leaves it out.
    """
    before = uninject(text) if "hisparse-guard" in text else Result(text)
    original, text = text, before.text
    result = Result(text)
    changes: list[Splice] = []
    placed: set[str | None] = set()
    standalone: list[str | None] = []
    is_json = False
    for document in documents(text):
        is_json = is_json or document.is_json
        wanted: list[Edit] = []
        for found in objects(document):
            made = _guarded(text, document, found, guard, choice, result)
            wanted += made
            if made:
                before.freed.discard((found.namespace, str(found)))
            if made and found.namespace not in placed:
                placed.add(found.namespace)
                if found.items is None:
                    standalone.append(found.namespace)
                else:
                    wanted.append(Insert(found.items, configmap(found.namespace)))
        changes += _checked(text, document, wanted)
    if not result.changed:
        result.text = original
        return result
    for _, name in sorted(before.freed, key=str):
        raise Refused(
            f"{name} is guarded already and would lose its guard, since it is not chosen now: "
            "choose it too, or take the guard out first by --uninject"
        )
    result.text = ed.spliced(text, changes)
    for namespace in standalone:
        result.text = _appended(result.text, configmap(namespace), is_json)
    return result


def _guarded(
    text: str,
    document: Document,
    found: KubernetesObject,
    guard: Guard,
    choice: Choice,
    result: Result,
) -> list[Edit]:
    """The edits of one object; [] where nothing in it is to be guarded."""
    chosen: list[Target] = []
    for group in groups(found):
        if choice.selector and not _selected(choice.selector, found, group):
            result.lines += [f"{found} left alone: not selected by --selector"]
            continue
        try:
            in_group, lines = targets(
                found, group, set(choice.containers), choice.allow_partial_group
            )
        except Refused as error:
            raise Refused(f"document {document.number}: {error}") from None
        chosen += in_group
        result.lines += lines
    if not chosen:
        return []

    def source(path: Path) -> str:
        assert document.root is not None
        node = ed.node_at(document.root, path)
        return text[node.start : node.end]

    plan = Plan(found.data, found.path, source)
    try:
        for template in {target.template.path: target.template for target in chosen}.values():
            guard_template(plan, template, guard)
        for target in chosen:
            _guard_one(plan, found, target, guard, result)
        plan.annotate()
    except Refused as error:
        raise Refused(f"document {document.number}, {found}: {error}") from None
    if found.kind in _FIXED:
        result.lines.append(
            f"{found}: Kubernetes does not change a {found.kind} in place: use "
            "`kubectl replace --force`"
        )
    owner = found.owner()
    if owner is not None:
        result.lines.append(f"{found}: {shown(owner)} made it and can undo this: inject that one")
    return plan.edits


def _guard_one(
    plan: Plan, found: KubernetesObject, target: Target, guard: Guard, result: Result
) -> None:
    remarks = guard_container(plan, target, guard)
    result.changed += 1
    result.lines.append(f"container {target.name} of {found}: guard added, since {target.reason}")
    where = f"container {target.name} of {found}"
    result.lines += [f"{where}: {remark}" for remark in remarks]
    result.lines += [
        f"{where}: NOT SHOWN TO BE GUARDED: {remark}"
        for remark in hazards(target.container, guard.entry)
    ]


def _selected(selector: Selector, found: KubernetesObject, group: list[PodTemplate]) -> bool:
    labels = found.metadata.get("labels")
    own = labels if isinstance(labels, dict) else {}
    return selector.matches(own) or any(selector.matches(t.labels) for t in group)


def _checked(text: str, document: Document, wanted: Iterable[Edit]) -> list[Splice]:
    """The changes of one document, tried: its new text has to say what the edits say."""
    edits = list(wanted)
    if not edits or document.root is None:
        return []
    try:
        changes = ed.splices(text, document.root, edits)
        (new,) = documents(ed.spliced(text, changes, document.start, document.end))
        exact = new.data == ed.edited(document.data, edits)
    except (Refused, ValueError):
        exact = False
    if not exact:
        raise Refused(
            f"document {document.number}: it cannot be edited in place, since its layout is "
            "unusual (anchors, aliases, merge keys, tags); write it out first, as with "
            "`kubectl create --dry-run=client -o yaml -f FILE`"
        )
    return changes


def _appended(text: str, configmap: dict[str, Any], is_json: bool) -> str:
    """`text` with one more document; without a line break at its end where it had none.

    Raises:
        Refused: a line break would become part of the last value.
    """
    if is_json:
        added = ed.json_text(configmap) + "\n"
    else:
        added = f"---\n{ed.yaml_text(configmap)}".replace("\n", ed.line_break(text))
    if text.endswith(ed.LINE_ENDS):
        return text + added
    ended = text + ed.line_break(text)
    if documents(ended)[-1].data != documents(text)[-1].data:
        raise Refused(
            "the input ends within a block scalar, without a line break: end its last line with one"
        )
    return ended + added.rstrip("\r\n")
