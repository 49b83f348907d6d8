"""Reads logs of any size in one pass and constant memory, and hands on what matters.

Almost all of a long log is lines nobody needs: requests and statistics. Python cannot
look at each line by itself in reasonable time, but it searches megabytes at once as fast
as grep does. So a block of the log first loses the lines that are surely quiet, then is
searched for a few fixed strings, and only lines near a hit are taken apart.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

BLOCK = 1 << 20
# A line longer than this is handled in pieces that overlap, so that nothing is lost.
LONGEST = 4 << 20
OVERLAP = 4096
# A physical line longer than this is looked at in places only.
LONG_LINE = 65536
# Lines before and after a hit of `TROUBLE` that are looked at too: a traceback whose
# first line alone carries the prefix.
BEFORE, AFTER = 80, 80
# Lines at the start of a file that are all looked at: the command and the environment.
HEAD = 300

# What makes a line worth a look. Every line at level ERROR is looked at, and 80 lines before and
# behind it, so nothing that only comes with one has to be here.
# Half of the time triage takes is looking for these. Those with two capitals are looked for in
# the capitals of the log alone, a tenth of it; each of the others costs a search of the whole.
TROUBLE = (
    b"ERROR",
    b"Traceback (most recent call last)",
    b"CUDA error",
    b"CUDA Error",
    b"CUDA_ERROR_",
    b"CUDA out of memory",
    b"OutOfMemoryError",
    b"RPC call to ",
    b"WorkNCCL",
    b"memory: Killed process",
    b"OOMKilled",
    b"shared memory broadcast block",
    b"Fatal Python",
    b"NVRM: Xid",
)
FACTS = (
    b"FlashInfer",
    b"flashinfer allreduce backend",
    b"MNNVL",
    b"NVIDIA H",
    b"NVIDIA GH",
    b"NVIDIA_H",
    b"NVIDIA_GH",
    b"HiSparse",
    b"NixlConnector",
    b"OffloadingConnector",
    b"hisparse-guard: ",
    b"LLM engine ",
    b"LLM server version ",
    b"LLM API server version ",
    b"LLM Version",
    b"\x88  version ",
    b"non-default args: ",
    b"Application startup",
    b"CUDA_LAUNCH_BLOCKING",
    b"NCCL_NET_PLUGIN",
    b"nodes in the distributed environment",
    b"JIT-compile",
    b"KV cache usage",
    b"Shutting down",
)
# With the level that is logged before it a word has two capitals as well.
_WITH_LEVEL = {
    b"Shutting down": b"INFO Shutting down",
    b"nodes in the distributed environment": b"INFO Detected",
}
_ANCHOR = re.compile(b"|".join(re.escape(word) for word in (*TROUBLE, *FACTS)))
_IS_TROUBLE = re.compile(b"|".join(re.escape(word) for word in TROUBLE))
_NO_CAPITAL = bytes(set(range(256)) - {*b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", *b"\n\x88"})


def _capitals(data: bytes) -> bytes:
    return data.translate(None, _NO_CAPITAL)


def _split_anchors() -> tuple[list[bytes], list[bytes]]:
    """Anchors to look for as they are, and capitals to look for."""
    whole, capitals = [], set()
    for word in (*TROUBLE, *FACTS):
        of = _capitals(_WITH_LEVEL.get(word, word))
        if len(of) > 1 or of == b"\x88":
            capitals.add(of)
        else:
            whole.append(word)
    return whole, sorted(of for of in capitals if not any(x in of for x in capitals - {of}))


_WHOLE, _CAPITALS = _split_anchors()
# The head of a line that repeats what a client sent or was sent: its words are no trouble.
_CLIENT = re.compile(rb"\[(?:\x1b\[[\d;]*m)?(?:request_logger|logger|log_response)\.py:\d+\]")

_ESC = rb"(?:(?:\x1b|\\u001b)\[[\d;]*m)*"
# An access line of a completion, to its end: one that is quoted in a prompt goes on.
_ACCESS = re.compile(
    rb"completions(?:\?[^ \"\n]*)? HTTP/1\.[01]\\?\"" + _ESC + rb" " + _ESC
    + rb"(?P<kind>[25])\d\d [A-Za-z -]{2,30}" + _ESC
    + rb"(?:[\r\n(]|(?:(?:\\r)?\\n)?\"|\Z)"
)  # fmt: skip
_ANY_ACCESS, _PLAIN_ACCESS = b" HTTP/1.", b'completions HTTP/1.1" 200 OK\n'


def answered(data: bytes, start: int, end: int) -> tuple[int, int]:
    """Completions in a part of a block that were answered with a 2xx and with a 5xx status."""
    # Counting is ten times faster than matching, and most logs are all alike.
    plain = data.count(_PLAIN_ACCESS, start, end)
    if plain == data.count(_ANY_ACCESS, start, end):
        return plain, 0
    kinds = [access["kind"] for access in _ACCESS.finditer(data, start, end)]
    return kinds.count(b"2"), kinds.count(b"5")


def access_lines(data: bytes, start: int, end: int) -> Iterator[bytes]:
    """The lines with an access of a completion in a part of a block."""
    for access in _ACCESS.finditer(data, start, end):
        begin = data.rfind(b"\n", 0, access.start()) + 1
        yield data[begin : access.end()]


# `journalctl -o json` writes a message with escape codes in it, as a coloured log has, as a
# list of bytes, in which nothing could be found.
_BYTES_MESSAGE, _BYTES_MESSAGE_SPACED = b'"MESSAGE":[', b'"MESSAGE": ['
_BYTES_LIST = re.compile(rb'"MESSAGE": ?\[([\d, ]*)\]')


def _as_string(match: re.Match[bytes]) -> bytes:
    try:
        message = bytes(int(number) for number in match[1].split(b",") if number.strip())
    except ValueError:
        return match[0]
    return b'"MESSAGE":' + json.dumps(message.decode("utf-8", "replace")).encode()


def _readable(data: bytes) -> bytes:
    at_start = data[:1] == b"{" or b"\n{" in data[:LONG_LINE]
    if at_start and (_BYTES_MESSAGE in data or _BYTES_MESSAGE_SPACED in data):
        return _BYTES_LIST.sub(_as_string, data)
    return data


@dataclass
class Block:
    """Whole lines of a file.

    Attributes:
        data: the bytes, ending with a newline (but for the last block of a file).
        first: 1-based number of its first line.
        newlines: how many there are in `data`.
        continued: True where its first line is the rest of a line begun before.
    """

    data: bytes
    first: int
    newlines: int = 0
    continued: bool = False


@dataclass
class Found:
    """A physical line worth taking apart: number, bytes, and whether it was near trouble only."""

    number: int
    raw: bytes
    hit: bool
    trouble: bool


@dataclass
class Progress:
    """How much was read, for a progress display; `total` is None where it is not known."""

    done: int = 0
    total: int | None = None
    tick: Callable[[Progress], None] | None = None


class Unreadable(Exception):
    """A file that cannot be read; the text says which and why."""


def open_log(name: str) -> IO[bytes]:
    """Opens a log for reading, unpacked; `-` is standard input.

    Raises:
        Unreadable: it does not exist, is a folder, or may not be read.
    """
    try:
        if name == "-":
            stream: IO[bytes] = sys.stdin.buffer
        else:
            path = Path(name)
            if path.is_dir():
                raise Unreadable(f"{name}: is a folder; give the log files in it")
            stream = path.open("rb")
    except OSError as error:
        raise Unreadable(f"{name}: {error.strerror or error}") from None
    return stream


# What is not read, by its first bytes.
_ARCHIVES = {
    b"PK\x03\x04": "zip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf": "7z",
    b"\x1f\x8b": "gzip",
}


def unpacked(stream: IO[bytes]) -> IO[bytes]:
    """`stream` through gzip, bzip2 or xz where its first bytes say so, whatever its name."""
    buffered: Any = stream if hasattr(stream, "peek") else io.BufferedReader(cast(Any, stream))
    start = buffered.peek(6)[:6]
    opened: Any = buffered
    if start.startswith(b"\x1f\x8b"):
        opened = gzip.GzipFile(fileobj=buffered)
    elif start.startswith(b"BZh"):
        opened = bz2.BZ2File(buffered)
    elif start.startswith(b"\xfd7zXZ\x00"):
        opened = lzma.LZMAFile(buffered)  # noqa: SIM115
    return cast(IO[bytes], opened)


def blocks(
    stream: IO[bytes], note: Callable[[str], None], step: Callable[[int], None]
) -> Iterator[Block]:
    """Cuts a stream into blocks of whole lines.

    Args:
        stream: read to its end.
        note: told where a packed file ends early or is damaged; what was read is used.
        step: told how many (unpacked) bytes came.
    """
    carry = b""
    number = 1
    continued = False
    decoder: codecs.IncrementalDecoder | None = None
    read = getattr(stream, "read1", stream.read)
    begun = False
    while True:
        try:
            # One read each: what came before a damaged place is not lost with it.
            data = read(BLOCK)
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            note(f"reading stopped early ({error}): what came before is judged")
            data = b""
        if not data:
            break
        step(len(data))
        if not begun:
            begun = True
            for magic, name in _ARCHIVES.items():
                if data.startswith(magic):
                    note(f"is packed by {name}: unpack it, and give what is in it")
            if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                # What PowerShell writes for `kubectl logs … > file`.
                decoder = codecs.getincrementaldecoder("utf-16")("replace")
                note("is UTF-16: read as such")
        if decoder is not None:
            data = decoder.decode(data).encode("utf-8", "replace")
        cut = data.rfind(b"\n")
        if cut < 0:
            carry += data
            if len(carry) > LONGEST:
                yield Block(_readable(carry), number, 0, continued)
                carry, continued = carry[-OVERLAP:], True
            continue
        whole = carry + data[: cut + 1]
        carry = data[cut + 1 :]
        newlines = whole.count(b"\n")
        yield Block(_readable(whole), number, newlines, continued)
        continued = False
        number += newlines
    if carry:
        yield Block(_readable(carry), number, 0, continued)


def line_offset(data: bytes, index: int) -> int:
    """Byte offset of the line with this 0-based index in a block."""
    offset = 0
    for _ in range(index):
        end = data.find(b"\n", offset)
        if end < 0:
            return len(data)
        offset = end + 1
    return offset


@dataclass
class Selector:
    """Picks the lines of successive blocks of one file that are worth taking apart."""

    tail: list[tuple[int, bytes]] = field(default_factory=list)
    after: int = 0

    def select(self, block: Block) -> list[Found]:
        """The lines to look at in this block, in order; each line once over all blocks."""
        lines = block.data.split(b"\n")
        if lines and not lines[-1]:
            lines.pop()
        hits = _hits(block.data, lines)
        head = block.first <= HEAD
        if not head and not self.after and not any(hits.values()):
            self.tail = [
                (block.first + index, lines[index])
                for index in range(max(0, len(lines) - BEFORE), len(lines))
                if index not in hits and lines[index] and len(lines[index]) < LONG_LINE
            ]
            return [Found(block.first + n, lines[n], hit=True, trouble=False) for n in hits]
        wanted: dict[int, tuple[bool, bool]] = {}
        if head:
            for index in range(min(len(lines), HEAD - block.first + 1)):
                wanted[index] = (False, False)
        if self.after:
            for index in range(min(self.after, len(lines))):
                wanted[index] = (False, True)
        self.after = max(0, self.after - len(lines))
        found: list[Found] = []
        reached = -1
        for index, trouble in hits.items():
            if trouble:
                if index - BEFORE < 0 and reached < 0:
                    for number, raw in self.tail[max(0, len(self.tail) - (BEFORE - index)) :]:
                        found.append(Found(number, raw, hit=False, trouble=True))
                    self.tail = []
                for near in range(
                    max(0, index - BEFORE, reached + 1), min(len(lines), index + AFTER + 1)
                ):
                    if near not in wanted or not wanted[near][1]:
                        wanted[near] = (wanted.get(near, (False, False))[0], True)
                reached = min(len(lines), index + AFTER)
                self.after = max(self.after, index + AFTER + 1 - len(lines))
            wanted[index] = (True, trouble or wanted.get(index, (False, False))[1])
        for index in sorted(wanted):
            raw = lines[index]
            if raw:
                hit, trouble = wanted[index]
                found.append(Found(block.first + index, raw, hit, trouble))
        self.tail = [
            (block.first + index, lines[index])
            for index in range(max(0, len(lines) - BEFORE), len(lines))
            if index not in wanted and lines[index]
        ]
        return found

    def skip(self) -> None:
        """A block was dealt with elsewhere: nothing near its borders is looked at."""
        self.tail, self.after = [], 0


def _hits(data: bytes, lines: list[bytes]) -> dict[int, bool]:
    """The indices of lines with an anchor, in order, and whether it is one of trouble."""
    likely: set[int] = set()
    for where, words in ((data, _WHOLE), (_capitals(data), _CAPITALS)):
        for word in words:
            index = position = 0
            at = where.find(word)
            while at >= 0:
                index += where.count(b"\n", position, at)
                likely.add(index)
                position = where.find(b"\n", at)
                if position < 0:
                    break
                at = where.find(word, position)
    hits: dict[int, bool] = {}
    for index in sorted(likely):
        line = lines[index]
        if _IS_TROUBLE.search(line) and not _CLIENT.search(line, 0, 400):
            hits[index] = True
        elif _ANCHOR.search(line):
            hits[index] = False
    return hits
