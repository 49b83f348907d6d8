"""Which lines of a block are worth taking apart.

Almost all of a long log is lines that nobody needs. A block is searched at once for the words of
the catalogue and of trouble in general; only lines that hold one, and the tracebacks behind
them, are taken apart. Answered requests are looked for from the end of a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import re2

from hisparse_guard.cli.triage.catalogue import Catalogue
from hisparse_guard.cli.triage.facts import WORDS
from hisparse_guard.cli.triage.fatal_words import SEARCHED

# Words of trouble in general, beside those of the catalogue.
TROUBLE = (
    "ERROR", "CRITICAL", r"Traceback \(most", r"File \\?\"", r"HTTP/[0-9.]+\\*\" 5\d\d",
    "SIG[A-Z]{3,4}", r"\w(?:Error|Exception)(?::|\\n|$)", *SEARCHED,
)  # fmt: skip
START = ("server version ", "API version ", "non-default args: ", "LLM engine ", "Application s")
STATISTICS = "Avg prompt throughput"
_ANSWERED = b'" 20'
_LOOKED_AT = 8


class Scanner:
    """The search for one log. After a storm of trouble only what is new is looked for."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.full = _compile([*catalogue.words(), *WORDS, *START, STATISTICS], TROUBLE)
        self.every = _compile(
            [*catalogue.words(), *WORDS, *START, STATISTICS],
            (*TROUBLE, r"HTTP/[0-9.]+\\*\" 2\d\d"),
        )
        self.storm: Any = None
        self._known: frozenset[str] = frozenset()

    def calm(self) -> None:
        """A new run has begun: everything is looked for again."""
        self.storm = None

    def saturate(self, seen: frozenset[str]) -> None:
        """The run is full of trouble: looks only for starts and for signals not seen yet."""
        if self.storm is None or seen != self._known:
            self._known = seen
            rest = set(self.catalogue.signals) - seen
            words = self.catalogue.words(rest) - self.catalogue.words(set(seen))
            self.storm = _compile([*words, *START, STATISTICS], ())

    def hits(self, data: bytes, every: bool) -> Iterator[int]:
        """Offsets of words worth a look, in order."""
        pattern = self.every if every else self.storm or self.full
        for found in pattern.finditer(data):
            yield found.start()


def answer_offsets(data: bytes) -> list[int]:
    """Offsets of lines that may be answered requests: from the beginning and from the end."""
    found: list[int] = []
    at = data.find(_ANSWERED)
    for _ in range(_LOOKED_AT):
        if at < 0:
            return found
        found.append(data.rfind(b"\n", 0, at) + 1)
        at = data.find(_ANSWERED, at + 1)
    at = len(data)
    for _ in range(_LOOKED_AT):
        at = data.rfind(_ANSWERED, 0, at)
        if at < 0:
            break
        found.append(data.rfind(b"\n", 0, at) + 1)
    return sorted({*found})


def last_lines(data: bytes) -> list[int]:
    """Offsets of the last lines, looked at whatever they say: a supervisor's word may be there."""
    found: list[int] = []
    at = len(data) - 1
    while at > 0 and len(found) < _LOOKED_AT:
        at = data.rfind(b"\n", 0, at)
        found.append(at + 1)
    return found[::-1]


def _compile(words: list[str], more: Sequence[str]) -> Any:
    pattern = "|".join([*sorted(re2.escape(word) for word in set(words)), *more])
    options = re2.Options()
    options.max_mem = 64 << 20
    return re2.compile(f"(?m)(?:{pattern})".encode(), options)
