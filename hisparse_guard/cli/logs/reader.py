"""Opens logs, unpacks them, and cuts them into blocks of whole lines, in constant memory."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from hisparse_guard.cli.logs.model import MOST_LINE
from hisparse_guard.cli.packed import DAMAGE, unpacked, wide_encoding

BLOCK = 1 << 20


class Unreadable(Exception):
    """A file that cannot be read; the text says which and why."""


@dataclass
class Progress:
    """How much was read, for a progress display; `total` is None where it is not known."""

    done: int = 0
    total: int | None = None
    tick: Callable[[Progress], None] | None = None

    def step(self, count: int) -> None:
        """Adds bytes that were read."""
        self.done += count
        if self.tick is not None:
            self.tick(self)


@dataclass
class LogFile:
    """One input: its name, what was read, and remarks on how it could be read."""

    name: str
    kind: str = "log"
    bytes: int = 0
    lines: int = 0
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Adds a remark, each text once and no more than 20."""
        if text not in self.notes and len(self.notes) < 20:
            self.notes.append(text)


def open_log(name: str) -> IO[bytes]:
    """Opens a log for reading; `-` is standard input.

    Raises:
        Unreadable: it does not exist, is a folder, or may not be read.
    """
    if name == "-":
        return sys.stdin.buffer
    path = Path(name)
    if path.is_dir():
        raise Unreadable(f"{name}: is a folder; give the log files in it")
    try:
        return path.open("rb")
    except (OSError, ValueError) as error:
        raise Unreadable(f"{name}: {getattr(error, 'strerror', None) or error}") from None


def _chunks(stream: IO[bytes], log: LogFile, step: Callable[[int], None]) -> Iterator[bytes]:
    """The unpacked bytes as UTF-8, about a block at a time; damage ends it with a remark."""
    decoder: codecs.IncrementalDecoder | None = None
    begun = False
    try:
        source, still_packed = unpacked(stream)
        if still_packed:
            log.note("is packed (zip, 7z or lz4): unpack it, and give what is in it")
        read = getattr(source, "read1", source.read)
        while data := read(BLOCK):
            step(len(data))
            log.bytes += len(data)
            if not begun:
                begun = True
                if encoding := wide_encoding(data):
                    decoder = codecs.getincrementaldecoder(encoding)("replace")
                    log.note(f"is {encoding[:6].upper()}: read as such")
            yield decoder.decode(data).encode("utf-8", "replace") if decoder else data
    except DAMAGE as error:
        log.note(f"reading stopped early ({error}): what came before is judged")


def blocks(
    stream: IO[bytes], log: LogFile, step: Callable[[int], None]
) -> Iterator[tuple[bytes, int]]:
    """Whole lines, each ending with a newline, with the 1-based number of the first one.

    Args:
        stream: read to its end, through gzip, bzip2, xz or zstd where it is packed.
        log: told of bytes, lines and remarks.
        step: told how many (unpacked) bytes came.
    """
    carry: list[bytes] = []
    kept = 0
    number = 1
    for data in _chunks(stream, log, step):
        cut = data.rfind(b"\n")
        if cut < 0:
            # Of a line without an end only its beginning is kept.
            room = max(0, MOST_LINE - kept)
            carry.append(data[:room])
            kept += len(carry[-1])
            continue
        whole = b"".join(carry) + data[: cut + 1] if carry else data[: cut + 1]
        carry = [data[cut + 1 :]]
        kept = len(carry[0])
        yield whole, number
        number += whole.count(b"\n")
    rest = b"".join(carry)
    if rest:
        yield rest + b"\n", number
        number += 1
    log.lines = number - 1
