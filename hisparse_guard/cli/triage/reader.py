"""Opens logs, unpacks them, and cuts them into blocks of whole lines, in constant memory."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from hisparse_guard.cli.triage.model import MOST_LINE

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


def _unpacked(stream: IO[bytes], log: LogFile) -> IO[bytes]:
    """`stream` through the unpacker that its first bytes ask for, whatever its name."""
    buffered: Any = stream if hasattr(stream, "peek") else io.BufferedReader(cast(Any, stream))
    start = buffered.peek(6)[:6]
    opened: Any = buffered
    if start.startswith(b"\x1f\x8b"):
        opened = gzip.GzipFile(fileobj=buffered)
    elif start.startswith(b"BZh"):
        opened = bz2.BZ2File(buffered)
    elif start.startswith(b"\xfd7zXZ\x00"):
        opened = lzma.LZMAFile(buffered)  # noqa: SIM115
    elif start.startswith(b"\x28\xb5\x2f\xfd"):
        import zstandard

        reader = zstandard.ZstdDecompressor().stream_reader(buffered, read_across_frames=True)
        opened = io.BufferedReader(cast(Any, reader))
    elif start.startswith((b"PK\x03\x04", b"7z\xbc\xaf")):
        log.note("is an archive (zip or 7z): unpack it, and give what is in it")
    return cast(IO[bytes], opened)


def _chunks(stream: IO[bytes], log: LogFile, step: Callable[[int], None]) -> Iterator[bytes]:
    """The unpacked bytes as UTF-8, about a block at a time; damage ends it with a remark."""
    import zstandard

    damage = (EOFError, OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError)
    decoder: codecs.IncrementalDecoder | None = None
    begun = False
    try:
        source = _unpacked(stream, log)
        read = getattr(source, "read1", source.read)
        while data := read(BLOCK):
            step(len(data))
            log.bytes += len(data)
            if not begun:
                begun = True
                if encoding := _utf16(data):
                    decoder = codecs.getincrementaldecoder(encoding)("replace")
                    log.note("is UTF-16: read as such")
            yield decoder.decode(data).encode("utf-8", "replace") if decoder else data
    except damage as error:
        log.note(f"reading stopped early ({error}): what came before is judged")


def _utf16(data: bytes) -> str | None:
    """The name of the UTF-16 encoding, by its mark or by every second byte being zero."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    start = data[:400]
    if len(start) >= 8:
        if start[1::2].count(0) > len(start) * 0.45 and start[::2].count(0) == 0:
            return "utf-16-le"
        if start[::2].count(0) > len(start) * 0.45 and start[1::2].count(0) == 0:
            return "utf-16-be"
    return None


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
