"""Edits of a document, made twice: on its text, where all else keeps its bytes, and on its data,
so that what the new text says can be held against what it has to say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import yaml

from hisparse_guard.cli.inject.nodes import Node, Other, Refused, merged_into

Path = tuple[str | int, ...]

_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

LINE_ENDS = ("\n", "\r")


@dataclass(frozen=True)
class Put:
    """A new key, the last one of the mapping at `path`."""

    path: Path
    key: str
    value: Any


@dataclass(frozen=True)
class Insert:
    """A new item of the list at `path`, behind the item of that number, or the last one."""

    path: Path
    value: Any
    after: int | None = None


@dataclass(frozen=True)
class Replace:
    """Another value at `path`, for one that is null or empty.

    Attributes:
        source: the value as it is to be written; None to write `value` as JSON.
    """

    path: Path
    value: Any
    source: str | None = None


@dataclass(frozen=True)
class Prefix:
    """Text in front of the string at `path`."""

    path: Path
    text: str


@dataclass(frozen=True)
class Unprefix:
    """The string at `path` without `text`, with which it begins."""

    path: Path
    text: str


@dataclass(frozen=True)
class Remove:
    """The key or the list item at `path` goes."""

    path: Path


Edit = Put | Insert | Replace | Prefix | Unprefix | Remove


# On data.


def edited(data: Any, edits: Iterable[Edit]) -> Any:
    """`data` after `edits`, whose paths all count in `data` as it was.

    Shared parts are copied: an edit reaches one path, whatever else stands for the same anchor.
    """
    ordered = list(edits)
    # Items move those behind them: later ones first. Of several that are added at one place the
    # first stays the first.
    moving = [
        e
        for e in ordered
        if isinstance(e, Remove) or (isinstance(e, Insert) and e.after is not None)
    ]
    for edit in [e for e in ordered if e not in moving]:
        data = _changed(data, _place(edit), _change(edit))
    for edit in sorted(moving, key=_number, reverse=True):
        data = _changed(data, _place(edit), _change(edit))
    return data


def _number(edit: Edit) -> int:
    last = edit.path[-1] if isinstance(edit, Remove) else getattr(edit, "after", 0)
    return last if isinstance(last, int) else -1


def _place(edit: Edit) -> Path:
    return edit.path[:-1] if isinstance(edit, Remove) else edit.path


def _change(edit: Edit) -> Callable[[Any], Any]:
    if isinstance(edit, Put):
        return lambda old: {**old, edit.key: as_data(edit.value)}
    if isinstance(edit, Insert):

        def insert(old: list[Any]) -> list[Any]:
            at = len(old) if edit.after is None else edit.after + 1
            return [*old[:at], as_data(edit.value), *old[at:]]

        return insert
    if isinstance(edit, Replace):
        return lambda old: as_data(edit.value)
    if isinstance(edit, Prefix):
        return lambda old: edit.text + old
    if isinstance(edit, Unprefix):
        return lambda old: old.removeprefix(edit.text)
    last = edit.path[-1]

    def remove(old: Any) -> Any:
        if isinstance(old, dict):
            return {key: value for key, value in old.items() if key != last}
        return [value for number, value in enumerate(old) if number != last]

    return remove


def _changed(data: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(data)
    first, rest = path[0], path[1:]
    if isinstance(data, dict):
        return {**data, first: _changed(data[first], rest, change)}
    assert isinstance(first, int)
    return [*data[:first], _changed(data[first], rest, change), *data[first + 1 :]]


def as_data(value: Any) -> Any:
    """A value of ours as it is read back from a document."""
    if isinstance(value, dict):
        return {key: as_data(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_data(item) for item in value]
    if isinstance(value, bool):
        return Other("tag:yaml.org,2002:bool", str(value).lower())
    if isinstance(value, int):
        return Other("tag:yaml.org,2002:int", str(value))
    return value


# On text.


@dataclass(frozen=True)
class Splice:
    """`text` for what stands from `start` to `end`; at one place deeper nested ones come first."""

    start: int
    end: int
    text: str
    depth: int = 0


def splices(text: str, root: Node, edits: Iterable[Edit]) -> list[Splice]:
    """What to change in `text` for `edits` of the document with `root`."""
    found: list[Splice] = []
    removed: dict[int, tuple[Node, set[int]]] = {}
    for edit in edits:
        if isinstance(edit, Remove):
            parent = node_at(root, edit.path[:-1])
            holder, index = _held(parent, edit.path[-1])
            removed.setdefault(id(holder), (holder, set()))[1].add(index)
        else:
            found.append(_splice(text, root, edit))
    for holder, indices in removed.values():
        found += _removals(text, holder, indices)
    # Aliases: several paths may lead to one place.
    return list(dict.fromkeys(found))


def spliced(text: str, changes: Iterable[Splice], start: int = 0, end: int | None = None) -> str:
    """`text` from `start` to `end` with all `changes`, whose places count in the whole text.

    Raises:
        Refused: two of them overlap.
    """
    parts = []
    position = start
    end = len(text) if end is None else end
    ordered = sorted(changes, key=lambda c: (c.start, c.end > c.start, -c.depth))
    for change in ordered:
        if change.start < position:
            raise Refused("two changes meet at one place of the text")
        parts += [text[position : change.start], change.text]
        position = change.end
    result = "".join([*parts, text[position:end]])
    removed_to_the_end = ordered and ordered[-1].start < position == len(text)
    if removed_to_the_end and not text.endswith(LINE_ENDS):
        # As `_added` found it.
        return result.removesuffix(line_break(text))
    return result


def node_at(root: Node, path: Path) -> Node:
    """The node at `path`; an alias counts as what it stands for."""
    node = root.resolved()
    for step in path:
        holder, index = _held(node, step)
        node = holder.children[2 * index + 1 if holder.kind == "mapping" else index].resolved()
    return node


def _held(node: Node, step: str | int) -> tuple[Node, int]:
    """The collection that really holds `step` of `node` (another one, by ``<<``), and where."""
    if node.kind == "sequence":
        assert isinstance(step, int)
        return node, step
    for holder in (node, *merged_into(node)):
        for number, (key, _) in enumerate(holder.pairs()):
            if key.resolved().data == step:
                return holder, number
    raise Refused(f"no {step!r} where it was")


def _splice(text: str, root: Node, edit: Edit) -> Splice:
    node = node_at(root, edit.path)
    if isinstance(edit, Put):
        inner = f"{json_text(edit.key)}: {json_text(edit.value)}"
        return _added(text, node, len(node.children), {edit.key: edit.value}, inner)
    if isinstance(edit, Insert):
        at = len(node.children) if edit.after is None else edit.after + 1
        return _added(text, node, at, [edit.value], json_text(edit.value))
    if isinstance(edit, Replace):
        return _replaced(text, node, edit)
    if isinstance(edit, Prefix):
        begin = _first_character(text, node)
        return Splice(begin, begin, edit.text)
    assert isinstance(edit, Unprefix)
    begin = _first_character(text, node)
    if text[begin : begin + len(edit.text)] != edit.text:
        raise Refused(f"{edit.text!r} is no longer at the start of its value")
    # Without quotes nothing would be null.
    rest = '""' if begin == node.start and node.end == begin + len(edit.text) else ""
    return Splice(begin, begin + len(edit.text), rest)


def _replaced(text: str, node: Node, edit: Replace) -> Splice:
    if edit.source is None:
        # Behind `key:`, where nothing may stand.
        blank = " " if node.start == node.end else ""
        return Splice(node.start, node.end, blank + json_text(edit.value))
    source = f" {edit.source}" if edit.source else ""
    start, end = len(text[: node.start].rstrip(" \r\n")), node.end
    if node.children and not node.flow:
        # To the end of its last line, whose line break stays.
        end = len(text[: end_of_lines(text, node)].rstrip("\r\n"))
    elif edit.source or node.start - start != 1:
        return Splice(node.start, end, edit.source)
    return Splice(start, end, source)


def _first_character(text: str, node: Node) -> int:
    """Where the text of a scalar begins, behind its anchor, tag, quote or block header."""
    source = text[node.start : node.end]
    match = re.match(r"(?:[&!]\S*\s+)*", source)
    begin = match.end() if match else 0
    if node.block_scalar:
        header = re.compile(r"[|>][^\r\n]*[\r\n\s]*").match(source, begin)
        assert header is not None
        return node.start + header.end()
    return node.start + begin + (source[begin : begin + 1] in ("'", '"'))


def _added(text: str, node: Node, at: int, value: Any, inner: str) -> Splice:
    """A child in front of the `at`-th (a mapping's children are keys and values)."""
    if node.flow:
        if not node.children:
            return Splice(node.inner, node.inner, inner)
        behind = node.children[at - 1].end
        return Splice(behind, behind, f", {inner}", node.depth)
    position = end_of_lines(text, node.children[at - 1])
    column = node.column if node.kind == "mapping" else _dash(text, node)[1]
    # Wide: a line that is folded would be another text.
    dumped = yaml_text(value)
    lines = "".join(" " * column + line + "\n" for line in dumped.splitlines())
    if position == len(text) and not text.endswith(LINE_ENDS):
        lines = "\n" + lines[:-1]
    return Splice(position, position, lines.replace("\n", line_break(text)), node.depth)


def yaml_text(value: Any) -> str:
    """`value` as block YAML."""
    text: str = yaml.dump(value, Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=1 << 30)
    return text


def _dash(text: str, node: Node) -> tuple[int, int]:
    """Offset and column of the first dash: without an indentation `inner` is behind it."""
    behind = text[node.inner : node.inner + 1] != "-"
    return node.inner - behind, node.column - behind


def line_break(text: str) -> str:
    """How the lines of `text` end, by its first one."""
    first = text.find("\n")
    return "\r\n" if first > 0 and text[first - 1] == "\r" else "\n"


def json_text(value: Any) -> str:
    """JSON that is YAML too: no character that only one of them takes as it is."""
    plain = json.dumps(value, ensure_ascii=False)
    return re.sub("[\x7f-\xa0\u2028\u2029\ufeff\ud800-\udfff\ufffe\uffff]", _escaped, plain)


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def end_of_lines(text: str, node: Node) -> int:
    """Where the line behind the last character of `node` begins."""
    last = node
    while not last.flow and last.children:
        last = last.children[-1]
    if last.block_scalar:
        return last.end
    newline = re.compile(r"[^\r\n]*(\r\n|\r|\n|\Z)").match(text, last.end)
    assert newline is not None
    return newline.end()


def _removals(text: str, holder: Node, indices: set[int]) -> list[Splice]:
    width = 2 if holder.kind == "mapping" else 1
    children = [holder.children[n : n + width] for n in range(0, len(holder.children), width)]
    found = []
    for first in sorted(indices):
        if first - 1 in indices:
            continue
        last = first
        while last + 1 in indices:
            last += 1
        if holder.flow:
            found.append(_flow_removal(children, first, last))
        else:
            found.append(_block_removal(text, holder, children, first, last))
    return found


def _flow_removal(children: list[list[Node]], first: int, last: int) -> Splice:
    start, end = children[first][0].start, children[last][-1].end
    if first:
        start = children[first - 1][-1].end
    elif last + 1 < len(children):
        end = children[last + 1][0].start
    return Splice(start, end, "")


def _block_removal(
    text: str, holder: Node, children: list[list[Node]], first: int, last: int
) -> Splice:
    if len(children) == last - first + 1:
        raise Refused("nothing would be left of a mapping or a list")
    start = children[first][0].start
    if holder.kind == "sequence":
        start = _dash(text, holder)[0] if first == 0 else text.rindex("-", 0, start)
    line = max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) + 1
    if text[line:start].strip(" "):
        # Behind the dash of the item that it is the first key of.
        following = children[last + 1][0].start
        if holder.kind == "sequence":
            following = text.rindex("-", 0, following)
        return Splice(start, following, "")
    return Splice(line, end_of_lines(text, children[last][-1]), "")
