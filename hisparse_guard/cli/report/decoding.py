"""One line of evidence: bytes to the records of the schema, strictly."""

from __future__ import annotations

import re
import typing
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from hisparse_guard.cli import strict_json
from hisparse_guard.runtime.decision import parse_answer
from hisparse_guard.runtime.telemetry import events

# What a `context_miss` holds beside its call site, and so is compared and not parsed each time:
# most lines of a large body of evidence are of this kind, and many processes have stacks in common.
_RAW = ("where", "stack", "left_at")
# Fields that differ between processes at one call site.
_OWN = ("left_s",)

# States of a workspace that is there, and all.
PRESENT = frozenset({"made", "verified"})
STATES = PRESENT | {"failed", "destroyed"}
KINDS = frozenset({"primary", "quant", None})
_TIME = re.compile(r"\d{4}-(?:0[1-9]|1[0-2])-[0-3]\dT[0-2]\d:[0-5]\d:[0-5]\d\.\d{6}Z", re.ASCII)


class Miss(NamedTuple):
    """A call site that asked for the current config and got none; `first` is when, RFC 3339."""

    event: events.ContextMiss
    first: str


class Wrong(NamedTuple):
    """Why a line could not be taken: in words; an unknown schema; the name of an unknown event."""

    what: str
    schema: bool = False
    event: str | None = None


def parse_time(text: str) -> float:
    """An RFC 3339 time in UTC, as the guard writes it, in seconds since the epoch.

    Raises:
        ValueError: it is not one.
    """
    if not _TIME.fullmatch(text):
        raise ValueError("a time is not RFC 3339 in UTC")
    return datetime.fromisoformat(text[:-1] + "+00:00").timestamp()


def backend_of(answer: Any) -> str | None:
    """The backend in a resolver answer, ``none`` for no backend; None for an unknown shape."""
    parsed = parse_answer(answer)
    return None if parsed is None else parsed[0]


def _type_of(annotation: Any) -> Any:
    """A field's type for the decoder: a record in it becomes an object, a time stays text."""
    arguments = typing.get_args(annotation)
    if hasattr(annotation, "_fields"):
        return _struct(annotation)
    if typing.get_origin(annotation) is tuple and Ellipsis in arguments:
        return tuple[_type_of(arguments[0]), ...]  # type: ignore[misc]
    if arguments and typing.get_origin(annotation) is not dict:
        return typing.Union[tuple(_type_of(one) for one in arguments)]  # noqa: UP007
    return annotation


def _fields(record: Any, *, raw: bool = False) -> list[Any]:
    found: list[Any] = []
    for name, annotation in typing.get_type_hints(record).items():
        kind = msgspec.Raw if raw and name in _RAW else _type_of(annotation)
        default = record._field_defaults.get(name, msgspec.NODEFAULT)
        found.append((name, kind, msgspec.field(default=default)))
    return found


_STRUCTS: dict[Any, Any] = {}


def _struct(record: Any) -> Any:
    if record not in _STRUCTS:
        _STRUCTS[record] = msgspec.defstruct(record.__name__, _fields(record), kw_only=True)
    return _STRUCTS[record]


class _Line(msgspec.Struct):
    """What the structs of all events have in common."""

    def typed(self) -> tuple[events.Envelope, events.Event]:
        """The records of the schema.

        Raises:
            ValueError: a value that no guard of this schema writes.
        """
        name = self.__struct_config__.tag
        values = {field: getattr(self, field) for field in self.__struct_fields__}
        values["event"] = name
        record = _RECORDS[typing.cast(str, name)]
        if record is events.ContextMiss:
            for field in _RAW:
                values[field] = _PLACES[field].decode(values[field])
        envelope = events.Envelope(**{name: values[name] for name in events.Envelope._fields})
        event = record(**{name: _plain(values[name]) for name in record._fields})
        _check(envelope, event)
        return envelope, event


def _plain(value: Any) -> Any:
    """Places as records, and lists as tuples, as the schema has them."""
    if isinstance(value, _struct(events.CodeLocation)):
        return events.CodeLocation(value.file, value.line, value.function)
    return tuple(_plain(one) for one in value) if isinstance(value, (list, tuple)) else value


def _check(envelope: events.Envelope, event: Any) -> None:
    parse_time(envelope.ts)
    if envelope.seq < 1 or envelope.count < 1:
        raise ValueError("a line or a count is numbered below 1")
    if isinstance(event, events.Workspace):
        if event.state not in STATES:
            raise ValueError("a workspace is in a state that this version does not know")
        if event.kind not in KINDS:
            raise ValueError("a workspace is of a kind that this version does not know")


_RECORDS = {name: record for record, name in events.NAMES.items()}
_PLACES = {
    name: msgspec.json.Decoder(_type_of(typing.get_type_hints(events.ContextMiss)[name]))
    for name in _RAW
}


def _line_types() -> tuple[dict[str, Any], tuple[str, ...]]:
    envelope = [item for item in _fields(events.Envelope) if item[0] != "event"]
    found = {
        name: msgspec.defstruct(
            record.__name__,
            envelope + _fields(record, raw=record is events.ContextMiss),
            bases=(_Line,),
            tag_field="event",
            tag=name,
            kw_only=True,
        )
        for record, name in events.NAMES.items()
    }
    own = ("origin", "where", "stack", "left_at", *events.ContextMiss._fields[5:])
    return found, own


_TYPES, _KEY = _line_types()
_MISS = _TYPES["context_miss"]
_KEY_RAW = tuple(name in _RAW for name in _KEY)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(typing.Union[tuple(_TYPES.values())]).decode  # noqa: UP007


def decode_line(piece: bytes) -> Any:
    """One line as the struct of its event, with the fields of the envelope.

    Raises:
        msgspec.DecodeError, ValueError: it is not a line of this schema.
    """
    line = _decode(piece)
    if line.schema != events.SCHEMA:
        raise ValueError("schema")
    if type(line) is not _MISS or not _is_written_so(line, piece):
        check_json(piece)
    return line


def check_json(piece: bytes) -> None:
    """Refuses what msgspec passes over: a field that is there twice, and bytes that are no UTF-8.

    Raises:
        ValueError: there is such a thing in the line.
    """
    strict_json.parse(piece.decode())


def _is_written_so(line: Any, piece: bytes) -> bool:
    """Whether a miss is, byte for byte, as the guard writes its fields: there are many of them, and
    `check_json` takes five times as long as all else. The places in it are taken as they are."""
    tag = b'"event":"context_miss",'
    written = _encode(line).replace(tag, b"", 1)
    return written == piece.replace(tag, b"", 1)


def miss_of(line: Any) -> tuple[tuple[Any, ...], str] | None:
    """What tells one call site from another, and the time; None for another event."""
    if type(line) is not _MISS:
        return None
    if line.seq < 1 or line.count < 1:
        raise ValueError("a line or a count is numbered below 1")
    if not _TIME.fullmatch(line.ts):
        raise ValueError("a time is not RFC 3339 in UTC")
    return (
        line.origin, bytes(line.where), bytes(line.stack), bytes(line.left_at),
        line.vllm_alone, line.used, line.target,
    ), line.ts  # fmt: skip


def what_is_wrong(piece: bytes, error: Exception) -> Wrong:
    """Why `decode_line` or `typed` refused a line, for the operator."""
    try:
        line = msgspec.json.decode(piece)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return Wrong("a line is not JSON")
    if not isinstance(line, dict):
        return Wrong("a line is not a JSON object")
    schema, event = line.get("schema"), line.get("event")
    if isinstance(schema, bool) or schema != events.SCHEMA:
        return Wrong(
            "a line of an evidence schema that this version does not know: use a newer "
            "hisparse-guard to read it",
            schema=True,
        )
    if not isinstance(event, str):
        return Wrong("a line names no event")
    if event not in _RECORDS:
        return Wrong("a line of an event that this version does not know", event=event[:200])
    return Wrong(f"a line of event {event} is not as the guard writes it: {str(error)[:200]}")
