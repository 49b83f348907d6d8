"""Rows to records: continuation lines are attached to the record that they belong to.

Python's logging writes one record as several lines (a traceback); vLLM's formatter repeats the
head before each of them, others do not. A record of one process is open until another record
of that process begins.

What of a traceback is believed: its frames and its first exception, which no client can have
written. The text of an exception may hold what a client sent, newlines included; so another
exception behind it counts only where the one before has no text, or a text that is known.
"""

from __future__ import annotations

from collections.abc import Callable

import re2

from hisparse_guard.cli.logs import heads
from hisparse_guard.cli.logs.model import LEVELS, Head, Row
from hisparse_guard.cli.triage.facts import start_marker
from hisparse_guard.cli.triage.model import MOST_MORE, Record

_FRAME = re2.compile(r'[\s|+]*File "([^"\n]{1,1000})", line (\d{1,9}), in (\S{1,200})$')
_EXCEPTION = re2.compile(
    r"[|+ ]{0,20}((?:[A-Za-z_]\w{0,80}\.){0,8}[A-Za-z_]\w{0,80}"
    r"(?:Error|Exception|Interrupt|Exit|Failure|Timeout|Empty|Full|Warning|Group|Cancelled))(?::|$)"
)
# What the name of an exception ends in: looked for first, which is cheaper.
_ENDS = (
    "Err",
    "Exc",
    "Interrupt",
    "Exit",
    "Fail",
    "Timeout",
    "Empty",
    "Full",
    "Warn",
    "Gro",
    "Canc",
)
_HEADER = "Traceback (most recent call last):"
_CHAIN = ("During handling of the above", "The above exception was the direct")
_FRAMES, _AFTER = "frames", "after"
_MOST_OPEN = 512
# The files that log vLLM's banner.
_BANNER = ("api_utils.py:", "startup.py:")


def continues(line: bytes) -> bool:
    """True where vLLM's own formatter may have written that a message goes on after `line`.

    It writes a line end in a message as CR LF and the head again. Docker's JSON quotes both.
    """
    return line.endswith(b"\r\n") or b'\\r\\n"' in line[-160:]


def is_later_line(before: Row, row: Row) -> bool:
    """True where a line that follows such a one is a later line of the same quoting message.

    It may be a client's (a request id, the text of an error) and says nothing. Errors have
    tracebacks in their later lines, and vLLM's banner its version.
    """
    head = heads.parse(row.texts[0], row.system, row.time is not None)
    if head.source is None or head.level is None or LEVELS[head.level] >= LEVELS["ERROR"]:
        return False
    if head.source.startswith(_BANNER):
        return False
    first = heads.parse(before.texts[-1], before.system, before.time is not None)
    return row.origin == before.origin and (
        (first.label, first.pid, first.level, first.time, first.source)
        == (head.label, head.pid, head.level, head.time, head.source)
    )


class Recorder:
    """Takes the rows of one log, in order, and hands on each record when it is whole.

    Args:
        hand_on: takes a whole record.
        is_known_exception: whether an exception's line is one that the catalogue knows.
    """

    def __init__(
        self, hand_on: Callable[[Record], None], is_known_exception: Callable[[str], bool]
    ) -> None:
        self.hand_on, self.is_known_exception = hand_on, is_known_exception
        self.open: dict[tuple[str | None, str | None, int | None], Record] = {}
        self.last: dict[str | None, Record] = {}

    @property
    def in_traceback(self) -> bool:
        """True while a traceback is open, whose lines say nothing of themselves."""
        return any(record.state == _FRAMES for record in self.open.values())

    def row(self, row: Row, after_long: bool) -> None:
        """Takes a physical line.

        Args:
            after_long: the line before it is so long that this may be the rest of it.
        """
        begun: Record | None = None
        for text in row.texts:
            if begun is not None and row.known.get("level"):
                self._more(begun, row, text)
                continue
            head = self._head(text, row)
            if after_long and head.kind in ("bare", "system") and begun is None:
                continue
            begun = self._line(row, head, text)
        if begun is not None and begun.level is not None and not begun.severe:
            self._whole(begun)

    def _whole(self, record: Record) -> None:
        """Hands on a record that nothing can continue; before a start what is open is over."""
        if self.open.pop((record.origin, record.label, record.pid), None) is None:
            return
        if self.open and start_marker(record.message):
            self.flush(record.origin, every=False)
        self.hand_on(record)

    def flush(self, origin: str | None = None, every: bool = True) -> None:
        """Hands on what is open: of one origin, or all."""
        for key in [key for key in self.open if every or key[0] == origin]:
            self.hand_on(self.open.pop(key))
        if every:
            self.last.clear()

    def _head(self, text: str, row: Row) -> Head:
        if "level" in row.known and row.known.get("logger"):
            head = heads.from_json(text, row.known)
        else:
            head = heads.parse(text, row.system, row.time is not None)
            if head.kind == "bare" and row.known.get("own_level") and text is row.texts[0]:
                head = heads.from_json(text, row.known)
        head.time = head.time or row.time
        return head

    def _line(self, row: Row, head: Head, text: str) -> Record:
        record = self._belongs_to(row, head)
        if record is not None:
            self._more(record, row, head.message)
            return record
        key = (row.origin, head.label, head.pid)
        if key in self.open:
            self.hand_on(self.open.pop(key))
        elif len(self.open) >= _MOST_OPEN:
            self.hand_on(self.open.pop(next(iter(self.open))))
        record = Record(
            row.file, row.number, row.order, row.origin, head.kind, head.message, head.label,
            head.pid, head.rank, head.dp, head.level, head.time, head.source, head.access, row.cut,
            row.program, last_order=row.order,
        )  # fmt: skip
        self.open[key] = self.last[row.origin] = record
        self._read(record, row, head.message)
        return record

    def _belongs_to(self, row: Row, head: Head) -> Record | None:
        """The open record that a line continues, or None."""
        record = self.open.get((row.origin, head.label, head.pid))
        if head.kind == "bare":
            # What another formatter than vLLM's writes: the first line alone has a head.
            last = self.last.get(row.origin)
            if last is None or last.last_order + 1 != row.order or last.access:
                return None
            if last.state:
                belongs = last.kind == "bare" or last.bare_body or last.state == _FRAMES
            elif head.message == _HEADER:
                belongs = last.severe or last.kind == "bare"
            else:
                belongs = last.severe and head.message[:1] in " \t"
            last.bare_body = last.bare_body or belongs
            return last if belongs else None
        if record is None or head.access or record.access:
            return None
        if head.level is None:
            # A process's own output behind its tag.
            if record.level is None and (record.state or head.message == _HEADER):
                return record
            return record if record.level is None and head.message[:1] in " \t" else None
        same = (record.level, record.time, record.source) == (head.level, head.time, head.source)
        if not same or head.source is None:
            return None
        return record if record.severe else None

    def _more(self, record: Record, row: Row, text: str) -> None:
        record.lines += 1
        record.last_order = row.order
        if record.lines <= MOST_MORE:
            self.last[row.origin] = record
            self._read(record, row, text)

    def _read(self, record: Record, row: Row, text: str) -> None:
        """Reads a line of a record as a part of a traceback, as far as it can be believed."""
        if text.startswith(_HEADER):
            record.traceback = True
            if record.state != "text":
                record.state = _FRAMES
            return
        if record.state in ("", _FRAMES):
            frame = _FRAME.match(text) if "File " in text else None
            if frame:
                record.traceback, record.state = True, _FRAMES
                file, line, function = frame.groups()
                record.frames.append((row.number, row.order, f"{file}:{line} in {function}"))
                return
            if record.state == _FRAMES and (not text.strip() or text[:1] in " \t|+"):
                return
            if any(end in text for end in _ENDS) and _EXCEPTION.match(text):
                self._exception(record, row, text)
            elif record.state == _FRAMES:
                # A name that the expression does not know, or a cut traceback.
                record.state = "text"
        elif record.state == _AFTER and text.strip() and not text.startswith(_CHAIN):
            record.state = "text"

    def _exception(self, record: Record, row: Row, text: str) -> None:
        in_frames = record.state == _FRAMES
        plain = record.kind in ("bare", "native") or record.level is None
        if not in_frames and not plain and not record.severe:
            return
        record.traceback = True
        record.exceptions.append((row.number, row.order, text.lstrip("|+ ")))
        silent = text.rstrip().endswith(":") or ":" not in text
        believed = silent or self.is_known_exception(text.lstrip("|+ "))
        record.state = _AFTER if believed else "text"
