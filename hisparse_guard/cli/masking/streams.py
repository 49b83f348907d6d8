"""A log's lines without what runtimes and collectors put before them, and whose line each is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hisparse_guard.cli.logs.container_prefixes import Unwrapper
from hisparse_guard.cli.logs.reader import LogFile, blocks, open_log
from hisparse_guard.cli.logs.split_lines import Joiner

# vLLM's and Ray's processes, and `srun --label`.
_PROCESS = re.compile(r"(?:\([^()]{0,40}pid=\d+[^()]*\) |\d{1,5}: )")
_MOST_STREAMS = 4096


class Prefixes:
    """Takes prefixes off, by triage's own rules."""

    def __init__(self) -> None:
        self._unwrapper = Unwrapper()
        self._streams: set[str] = set()

    def split(self, line: str) -> tuple[str, str, str]:
        """Prefix, the rest, and a name for the stream of lines that it belongs to."""
        row = self._unwrapper.row("", 0, 0, line.encode(errors="replace"))
        inner = row.texts[0]
        head = line[: -len(inner)] if inner and line.endswith(inner) else ""
        process = _PROCESS.match(line, len(head))
        head += process[0] if process else ""
        stream = f"{row.origin}{process[0] if process else ''}"
        if stream not in self._streams:
            if len(self._streams) >= _MOST_STREAMS:
                stream = ""
            self._streams.add(stream)
        return head, line[len(head) :], stream


def lines(path: Path, log: LogFile) -> Iterator[str]:
    """The log's lines, unpacked, decoded, and put together from their parts.

    Args:
        log: takes remarks on how it could be read.

    Raises:
        Unreadable: it cannot be opened.
    """
    joiner = Joiner()
    with open_log(str(path)) as stream:
        for data, _ in blocks(stream, log, lambda _: None):
            # A progress bar goes back to the beginning of its line.
            text = joiner.join(data).decode("utf-8", "replace").removesuffix("\n")
            yield from re.split(r"\r\n|\n|\r", text)
    for rest in joiner.parts.values():
        yield rest.decode("utf-8", "replace")
