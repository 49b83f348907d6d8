"""What is read from a log: records, and the places that evidence points to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hisparse_guard.cli.logs.model import LEVELS

# How many continuation lines of a record are kept, and how many open records at a time.
MOST_MORE = 400


class Place(NamedTuple):
    """A line that an answer rests on.

    Attributes:
        file: the name it was read from.
        number: 1-based number of the physical line in that file, or of its first part.
        text: the line without the wrappings of container runtimes.
        time: as logged, or None.
        process: name of the process as logged, or None.
        pid: as logged, or None.
        rank: "TP2", "DP1 TP2" or "rank 3", or None.
        order: position among all lines read, over all files.
    """

    file: str
    number: int
    text: str
    time: str | None = None
    process: str | None = None
    pid: int | None = None
    rank: str | None = None
    order: int = 0


@dataclass(slots=True)
class Record:
    """One log record: its first line, and the continuation lines that belong to it.

    Attributes:
        frames: frames of its traceback, `file:line in function`, with their numbers; only
            those that no client can have written.
        exceptions: the lines of its traceback that name an exception, likewise.
        traceback: True where it has a traceback at all.
        cut: True where its beginning may be missing: nothing in it is believed.
        program: the program that wrote it, by the journal, or None.
    """

    file: str
    number: int
    order: int
    origin: str | None
    kind: str
    message: str
    label: str | None = None
    pid: int | None = None
    rank: str | None = None
    dp: int | None = None
    level: str | None = None
    time: str | None = None
    source: str | None = None
    access: bool = False
    cut: bool = False
    program: str | None = None
    state: str = ""
    bare_body: bool = False
    last_order: int = 0
    lines: int = 1
    traceback: bool = False
    frames: list[tuple[int, int, str]] = field(default_factory=list)
    exceptions: list[tuple[int, int, str]] = field(default_factory=list)

    def place(self, number: int | None = None, order: int | None = None, text: str = "") -> Place:
        """Where it stands, or one of its continuation lines."""
        return Place(
            self.file,
            number or self.number,
            text or self.message,
            self.time,
            self.label,
            self.pid,
            self.rank,
            order or self.order,
        )

    @property
    def severe(self) -> bool:
        """True at level ERROR or above, or with a traceback."""
        return self.traceback or LEVELS.get(self.level or "", 0) >= LEVELS["ERROR"]
