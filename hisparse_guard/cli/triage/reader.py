"""Reads logs of any size in one pass and constant memory, and hands on what matters.

Almost all of a long log is lines nobody needs: requests and statistics. Python cannot
look at each line by itself in reasonable time, but it searches megabytes at once as fast
as grep does. So a block of the log first loses the lines that are surely quiet, then is
searched for a few fixed strings, and only lines near a hit are taken apart.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, cast

BLOCK = 1 << 20
# A line longer than this is handled in pieces that overlap, so that nothing is lost.
LONGEST = 4 << 20
OVERLAP = 4096
# Lines before and after a hit of `TROUBLE` that are looked at too: a traceback whose
# first line alone carries the prefix.
BEFORE, AFTER = 80, 80
# Lines at the start of a file that are all looked at: the command and the environment.
HEAD = 300

# Each costs a search of the whole log, the less the longer it is: so not a word more than
# needed, and rather a long one. Every line at level ERROR is looked at, and 80 lines before
# and behind it, so nothing that only comes with one has to be here.
TROUBLE = (
    b"ERROR",
    b"Traceback (most recent call last)",
    b"CUDA error",
    b"launch failure",
    b"CUDA out of memory",
    b"imed out",
    b"Watchdog caught",
    b"died or was killed",
    b"died unexpectedly",
    b"Killed process",
    b"OOMKilled",
    b"shared memory broadcast block",
    b"Fatal Python",
    b"Segmentation fault",
    b"terminate called",
    b"NVRM: Xid",
)
FACTS = (
    b"FlashInfer",
    b"flashinfer allreduce backend",
    b"HiSparse",
    b"hisparse-guard: ",
    b"LLM engine ",
    b"server version ",
    b"\x88  version ",
    b"vLLM Version",
    b"non-default args",
    b"Application startup",
    b"connector with name: ",
    b"CUDA_LAUNCH_BLOCKING",
    b"NCCL_NET_PLUGIN",
    b"nodes in the distributed environment",
    b"JIT-compile",
    b"Avg prompt throughput",
)

_ESC = rb"(?:\x1b\[[\d;]*m)*"
# What a runtime puts before a line, and behind it. The first line of a block tells which;
# where lines differ in it, fewer are taken for quiet.
_WRAPS = (
    (rb"", rb""),
    (rb'\{"log":"', rb'(?:\\r)?\\n","stream":"std(?:out|err)","time":"[\w:.+-]*"\}'),
    (rb"\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)? (?:std(?:out|err) [FP] )?", rb""),
    (rb"[\w./-]{1,80} {0,40}\| ", rb""),
    (rb"[A-Z][a-z]{2} [ \d]\d [\d:]{8} [\w.:-]+ [\w.@/-]+(?:\[\d+\])?: ", rb""),
)


@lru_cache(maxsize=16)
def _quiet(wrap: int, escapes: bool) -> re.Pattern[bytes]:
    """Whole lines that are surely quiet, to their end: another process's words are kept."""
    esc = _ESC if escapes else rb""
    quote = rb'\\"' if wrap == 1 else rb'"'
    head = esc + rb"(?:\(\w+ pid=\d+\)" + esc + rb" )?" + esc + rb"INFO" + esc
    logged = rb" " + esc + rb"[\d: -]{14}" + esc + rb" " + esc
    before, after = _WRAPS[wrap]
    return re.compile(
        rb"^" + before + head + rb"(?:"
        # An access line that was not an error.
        + rb":" + esc + rb" +[\w.:\[\]-]+ - " + quote + esc
        + rb"[A-Z]+ [^\n\"\\ ]* HTTP/[\d.]+" + esc + quote + rb" " + esc
        + rb"[123]\d\d [A-Za-z -]{0,30}"
        + rb"|" + logged + rb"\[(?:"
        # What a client sent.
        + rb"(?:request_)?logger\.py:\d+\] " + esc
        + rb"Received request [^\n]*, lora_request: (?:None|LoRARequest\([^\n()]{0,300}\))\.?"
        + rb"|async_llm\.py:\d+\] " + esc + rb"Added request [\w.-]+\."
        + rb"))" + esc + after + rb"\r?\n",
        re.M,
    )  # fmt: skip


@lru_cache(maxsize=8)
def _start_of(wrap: int) -> re.Pattern[bytes]:
    return re.compile(_WRAPS[wrap][0])


def without_quiet(data: bytes) -> bytes:
    """The block with every line that is surely quiet made empty; line numbers stay."""
    wrap = next((n for n in range(1, len(_WRAPS)) if _start_of(n).match(data)), 0)
    return _quiet(wrap, b"\x1b" in data).sub(b"\n", data)


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
    if _BYTES_MESSAGE in data or _BYTES_MESSAGE_SPACED in data:
        return _BYTES_LIST.sub(_as_string, data)
    return data


DONE_MARKS = (b'completions HTTP/1.1" 200', b'completions HTTP/1.1\\" 200')
FAILED_MARKS = (b'completions HTTP/1.1" 5', b'completions HTTP/1.1\\" 5')


@dataclass
class Block:
    """Whole lines of a file.

    Attributes:
        data: the bytes, ending with a newline (but for the last block of a file).
        first: 1-based number of its first line.
        continued: True where its first line is the rest of a line begun before.
    """

    data: bytes
    first: int
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
    read = getattr(stream, "read1", stream.read)
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
        cut = data.rfind(b"\n")
        if cut < 0:
            carry += data
            if len(carry) > LONGEST:
                yield Block(_readable(carry), number, continued)
                carry, continued = carry[-OVERLAP:], True
            continue
        whole = carry + data[: cut + 1]
        carry = data[cut + 1 :]
        yield Block(_readable(whole), number, continued)
        continued = False
        number += whole.count(b"\n")
    if carry:
        yield Block(_readable(carry), number, continued)


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
        rest = without_quiet(block.data)
        hits: dict[int, bool] = {}
        for trouble, anchors in ((False, FACTS), (True, TROUBLE)):
            for anchor in anchors:
                start = rest.find(anchor)
                while start >= 0:
                    begin = rest.rfind(b"\n", 0, start) + 1
                    hits[begin] = hits.get(begin, False) or trouble
                    start = rest.find(b"\n", start)
                    if start >= 0:
                        start = rest.find(anchor, start)
        head = block.first <= HEAD
        if not hits and not self.after and not head:
            self._remember(block, rest)
            return []
        lines = rest.split(b"\n")
        if lines and not lines[-1]:
            lines.pop()
        wanted: dict[int, tuple[bool, bool]] = {}
        if head:
            for index in range(min(len(lines), HEAD - block.first + 1)):
                wanted[index] = (False, False)
        if self.after:
            for index in range(min(self.after, len(lines))):
                wanted[index] = (False, True)
        self.after = max(0, self.after - len(lines))
        found: list[Found] = []
        position, index = 0, 0
        reached = -1
        for begin in sorted(hits):
            index += rest.count(b"\n", position, begin)
            position = begin
            trouble = hits[begin]
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

    def _remember(self, block: Block, rest: bytes) -> None:
        cut = len(rest)
        for _ in range(BEFORE + 1):
            cut = rest.rfind(b"\n", 0, cut)
            if cut < 0:
                break
        first = block.first + rest.count(b"\n", 0, cut + 1)
        self.tail = [
            (first + index, raw)
            for index, raw in enumerate(rest[cut + 1 :].split(b"\n"))
            if raw and len(raw) < 65536
        ]
