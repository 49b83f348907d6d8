"""YAML or JSON text as trees of nodes that know their place in the text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

# What a stream of manifests may have at most. Kubernetes itself takes objects of about 1.5 MB.
MAX_CHARACTERS = 16 * 1024 * 1024
MAX_DEPTH = 100
# Of one document, with every alias counted as what it stands for.
MAX_NODES = 1_000_000

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_RESOLVER = yaml.resolver.Resolver()


class Refused(Exception):
    """The input is not to be edited; one line that says why and what to do."""


class Other(NamedTuple):
    """A scalar that is neither a string nor null, e.g. a number, as it is written."""

    tag: str
    text: str


@dataclass(eq=False)
class Node:
    """A scalar, a mapping, a sequence, or an alias of one.

    Attributes:
        start: where it begins in the text, its anchor and tag included.
        end: behind its last character; of a block collection only its leaves tell that.
        inner: of a collection: behind its bracket, or where its first key or dash stands.
        depth: of nested collections around it.
        column: of a block collection: the column of its keys or dashes.
        flow: written with brackets.
        block_scalar: a scalar after ``|`` or ``>``, which ends where a line begins.
        children: of a mapping key and value in turn.
        target: of an alias what it stands for.
    """

    kind: str
    start: int
    end: int
    tag: str = ""
    value: str = ""
    inner: int = 0
    depth: int = 0
    column: int = 0
    flow: bool = False
    block_scalar: bool = False
    children: list[Node] = field(default_factory=list)
    target: Node | None = None
    size: int = 1
    data: Any = None

    def resolved(self) -> Node:
        return self.target if self.target is not None else self

    def pairs(self) -> Iterator[tuple[Node, Node]]:
        return zip(self.children[::2], self.children[1::2], strict=True)


@dataclass
class Document:
    """One document: its root (None where it is empty) and where it stands, `---` and `...` and all
    up to the next one included."""

    number: int
    start: int
    end: int
    root: Node | None
    is_json: bool

    @property
    def data(self) -> Any:
        return self.root.resolved().data if self.root is not None else None


def documents(text: str) -> list[Document]:
    """The documents of a YAML stream, or of JSON texts one after another.

    Raises:
        Refused: it is neither, a key is there twice, or it is larger than any manifest is.
    """
    if len(text) > MAX_CHARACTERS:
        raise Refused(f"the input is longer than {MAX_CHARACTERS} characters; give it in parts")
    found: list[Document] = []
    json_texts = _json_texts(text)
    try:
        if json_texts is None:
            _check_line_breaks(text)
            _compose(text, 0, found, is_json=False)
        for start, end in json_texts or ():
            _compose(text[start:end], start, found, is_json=True)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or error
        raise Refused(
            f"not readable as YAML or JSON: {where}{' '.join(str(reason).split())}"
        ) from None
    if found:
        found[-1].end = len(text)
    return found


def _check_line_breaks(text: str) -> None:
    """U+0085, U+2028 and U+2029 end a line in YAML 1.1, which PyYAML reads, and not in 1.2."""
    odd = re.search("[\x85\u2028\u2029]", text)
    if odd:
        line = text.count("\n", 0, odd.start()) + 1
        raise Refused(
            f"line {line}: U+{ord(odd[0]):04X} ends a line for some readers of YAML and not for "
            "others: write it as an escape within double quotes"
        )


def _json_texts(text: str) -> list[tuple[int, int]] | None:
    """Where each of a series of JSON objects stands; None where the text is something else."""
    decoder = json.JSONDecoder()
    blank = re.compile(r"\s*")
    found = []
    position = _end(blank, text, 0)
    if not text.startswith("{", position):
        return None
    while position < len(text):
        try:
            _, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            return None
        found.append((position, end))
        position = _end(blank, text, end)
    return found


def _end(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return match.end() if match else position


class _Composer:
    """Builds the nodes of one document from the parser's events."""

    def __init__(self, events: Iterator[Any], offset: int, number: int, is_json: bool) -> None:
        self.events = events
        self.offset = offset
        self.where = f"document {number}"
        self.is_json = is_json
        self.anchors: dict[str, Node | None] = {}

    def compose(self, event: Any, depth: int) -> Node:
        start, end = event.start_mark.index + self.offset, event.end_mark.index + self.offset
        if isinstance(event, yaml.AliasEvent):
            target = self.anchors.get(event.anchor)
            if target is None:
                raise Refused(f"{self.where}: alias *{event.anchor} stands for nothing, or itself")
            return Node("alias", start, end, target=target, size=target.size)
        if depth > MAX_DEPTH:
            raise Refused(f"{self.where}: nested deeper than {MAX_DEPTH} levels")
        if event.anchor:
            self.anchors[event.anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event, start, end)
        else:
            node = self._collection(event, start, end, depth)
        if event.anchor:
            self.anchors[event.anchor] = node
        return node

    def _scalar(self, event: Any, start: int, end: int) -> Node:
        tag = event.tag
        if tag is None or tag == "!":
            tag = _RESOLVER.resolve(yaml.ScalarNode, event.value, event.implicit)
        node = Node("scalar", start, end, tag, event.value, block_scalar=event.style in ("|", ">"))
        if tag == _TAG + "str":
            node.data = event.value
        elif tag != _TAG + "null":
            node.data = Other(tag, event.value)
        return node

    def _collection(self, event: Any, start: int, end: int, depth: int) -> Node:
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        node = Node("mapping" if is_mapping else "sequence", start, end, flow=event.flow_style)
        node.inner, node.depth, node.column = end, depth, event.end_mark.column
        closing = yaml.MappingEndEvent if is_mapping else yaml.SequenceEndEvent
        for child_event in self.events:
            if isinstance(child_event, closing):
                node.end = child_event.end_mark.index + self.offset
                break
            if is_mapping and not node.children and not node.flow:
                node.column = child_event.start_mark.column
            child = self.compose(child_event, depth + 1)
            node.children.append(child)
            node.size += child.size
            if node.size > MAX_NODES:
                raise Refused(f"{self.where}: more than {MAX_NODES} values, aliases expanded")
        node.data = (
            self._mapping_data(node)
            if is_mapping
            else [child.resolved().data for child in node.children]
        )
        return node

    def _mapping_data(self, node: Node) -> dict[Any, Any]:
        own: dict[Any, Any] = {}
        for key, value in node.pairs():
            if key.resolved().kind != "scalar":
                raise Refused(f"{self.where}: a key that is a collection: no Kubernetes manifest")
            name = key.resolved().data
            if name in own:
                raise Refused(f"{self.where}: key {shown(str(name))} is there twice in one mapping")
            own[name] = value.resolved().data
        merged: dict[Any, Any] = {}
        for base in merged_into(node):
            merged = {**base.data, **merged}
        return {**merged, **own} if merged else own


def is_merge(key: Node) -> bool:
    """Whether `key` is YAML 1.1's ``<<``, which takes over another mapping's keys."""
    return key.tag == _TAG + "merge"


def merged_into(node: Node) -> list[Node]:
    """The mappings that `node` takes keys from by ``<<``; the first has precedence."""
    found: list[Node] = []
    for key, value in node.pairs():
        if is_merge(key):
            target = value.resolved()
            bases = target.children if target.kind == "sequence" else [target]
            found += [base.resolved() for base in bases if base.resolved().kind == "mapping"]
    return found


def _compose(text: str, offset: int, found: list[Document], *, is_json: bool) -> None:
    # An escaped half of a surrogate pair, which JSON has and YAML has not; of the same length.
    readable = _without_surrogates(text) if is_json else text
    events = yaml.parse(readable, Loader=_LOADER)
    for event in events:
        if not isinstance(event, yaml.DocumentStartEvent):
            continue
        number = len(found) + 1
        composer = _Composer(events, offset, number, is_json)
        root: Node | None = composer.compose(next(events), 1)
        if root is not None and root.kind == "scalar" and root.data is None:
            root = None
        start = event.start_mark.index + offset
        if not (event.explicit or is_json):
            # An indentation belongs to the document.
            start = max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) + 1
        if found:
            found[-1].end = start
        found.append(Document(number, start, offset + len(text), root, is_json))


def _without_surrogates(text: str) -> str:
    return re.sub(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}", r"\\u003f", text)


def shown(name: object) -> str:
    """A name from a manifest as it may stand in a line on a terminal."""
    text = str(name)
    text = text if len(text) <= 100 else text[:100] + "…"
    return text if text.isprintable() and text else ascii(text)
