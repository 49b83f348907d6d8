"""Whether a server stands still, judged from the sequence of its statistics.

vLLM logs statistics every 10 seconds while it has requests (`v1/metrics/loggers.py`). A server
that stands still goes on doing so: running requests without a token, or a queue with nothing
running. It has moved again only when tokens were made; requests that vanish show nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import re2

from hisparse_guard.cli.triage.model import Place

# A long prefill shows no token either; prompts of a million tokens take less than a minute.
STANDS_SECONDS = 60
STANDS_LINES = 6
# A standstill of this length that ended is told all the same.
ENDED_SECONDS = 180

_TIME = re2.compile(
    r"(?:(\d{4})-(\d\d)-(\d\d)[T ]|(\d\d)-(\d\d)-(\d{4})[- ]|(\d\d)-(\d\d) )?"
    r"(\d{1,2}):(\d\d)(?::(\d\d)(?:[.,]\d+)?)?"
)
_DAYS = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)


def seconds(time: str | None) -> int | None:
    """A time as logged, in seconds from an unknown but fixed point; None where it is none."""
    found = _TIME.match(time[:40]) if time else None
    if not found:
        return None
    year, month, day, month2, day2, year2, month3, day3, hour, minute, second = found.groups()
    months = int(month or month2 or month3 or 1)
    if not 1 <= months <= 12:
        return None
    days = int(year or year2 or 0) * 365 + _DAYS[months - 1] + int(day or day2 or day3 or 1)
    return ((days * 24 + int(hour)) * 60 + int(minute)) * 60 + int(second or 0)


@dataclass(frozen=True)
class Stats:
    """A statistics line: tokens/s, requests, KV cache usage in percent (None: not said)."""

    place: Place
    prompt: float
    generation: float
    running: int
    waiting: int
    kv_usage: float | None = None


@dataclass(frozen=True)
class Stall:
    """A time without a token while there were requests.

    Attributes:
        since: the first line that shows it.
        until: the last one.
        lines: how many show it.
        seconds: from the first to the last; None where the log has no times.
        what: what the lines show.
    """

    since: Place
    until: Place
    lines: int
    what: str

    @property
    def seconds(self) -> int | None:
        """How long it lasted, by the times of its lines."""
        begin, end = seconds(self.since.time), seconds(self.until.time)
        return end - begin if begin is not None and end is not None and end >= begin else None

    @property
    def stands(self) -> bool:
        """True where it lasted for a minute and more."""
        length = self.seconds
        if length is None:
            return self.lines >= STANDS_LINES
        return self.lines >= 2 and length >= STANDS_SECONDS


def _value(text: str, name: str, end: str) -> float | None:
    start = text.find(name)
    if start < 0:
        return None
    start += len(name)
    stop = text.find(end, start, start + 24)
    number = text[start:stop] if stop > start else ""
    if not number.replace(".", "", 1).isdecimal() or len(number) > 20:
        return None
    return float(number)


def parse(place: Place, message: str) -> Stats | None:
    """Takes a statistics line apart; None where it is none."""
    start = message.find("Avg prompt throughput: ")
    # Before it stands `Engine 000: ` or `2 Engines Aggregated: `, and nothing else.
    if start < 0 or start > 40 or (start and not message[:start].rstrip().endswith(":")):
        return None
    text = message[start : start + 1200]
    prompt = _value(text, "Avg prompt throughput: ", " tokens/s")
    generation = _value(text, "Avg generation throughput: ", " tokens/s")
    running = _value(text, "Running: ", " reqs")
    waiting = _value(text, "Waiting: ", " reqs")
    if prompt is None or generation is None or running is None or waiting is None:
        return None
    usage = _value(text, " KV cache usage: ", "%")
    return Stats(place, prompt, generation, int(running), int(waiting), usage)


@dataclass
class Standstill:
    """The sequence of statistics of one engine."""

    last: Stats | None = None
    moved: Place | None = None
    current: Stall | None = None
    ended: list[Stall] = field(default_factory=list)

    def statistics(self, stats: Stats) -> None:
        """Takes the next statistics line."""
        self.last = stats
        # One token of many requests, in the ten seconds that a line is about, is no progress.
        least = 0.1 if stats.running > 1 else 0
        if stats.generation > least or stats.prompt > 0:
            self.moved = stats.place
            if self.current and (self.current.seconds or 0) >= ENDED_SECONDS:
                self.ended = [*self.ended[:9], self.current]
            self.current = None
        elif stats.running:
            self._stuck(stats.place, f"{stats.running} requests run without a token")
        elif stats.waiting:
            self._stuck(stats.place, f"{stats.waiting} requests wait and none runs")

    def waits(self, place: Place) -> None:
        """Takes a line that says that a process has waited for another one for a minute."""
        self._stuck(place, "processes wait for each other (no shared memory broadcast block)")

    def _stuck(self, place: Place, what: str) -> None:
        if self.current is None:
            self.current = Stall(place, place, 1, what)
        else:
            self.current = Stall(
                self.current.since, place, self.current.lines + 1, self.current.what
            )
