"""A line of a log: what it says, and what stands before its message."""

from __future__ import annotations

from dataclasses import dataclass, field

LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50, "FATAL": 50}

# How much of a line is read. Everything that is matched stands at a beginning.
MOST_TEXT = 16384
# How much of a physical line is unpacked: a JSON record is nothing without its end.
MOST_LINE = 1 << 18


@dataclass
class Row:
    """A physical line without the wrappings of container runtimes and collectors.

    Attributes:
        texts: its lines: several where a JSON message holds newlines.
        origin: pod or container by the runtime's own prefix, or None.
        known: what a JSON record says beside the message.
        time: as the runtime logged it, or None.
        system: True where the wrapping says that it is not from the server (kernel, systemd).
        program: the program that wrote it, by the journal, or None.
        cut: True where its beginning may be missing.
    """

    file: str
    number: int
    order: int
    texts: list[str]
    origin: str | None = None
    known: dict[str, str] = field(default_factory=dict)
    time: str | None = None
    system: bool = False
    program: str | None = None
    cut: bool = False


@dataclass(slots=True)
class Head:
    """What stands before a message: process, level, time, source.

    Attributes:
        kind: kind of process, one of `catalogue.Kind`.
        dp: data-parallel rank, or None.
    """

    message: str
    kind: str = "bare"
    label: str | None = None
    pid: int | None = None
    rank: str | None = None
    dp: int | None = None
    level: str | None = None
    time: str | None = None
    source: str | None = None
    access: bool = False
