"""What a load generator says beside the log: how many requests were done and failed.

Read are the result of `hisparse-guard ramp` (JSON), evalscope's summary (its table or its JSON
file), and a table with the columns conc, done and fail. A result counts only from a file that
is nothing else; it never makes a verdict better.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import re2

# Summaries are small.
LARGEST = 4 << 20
_MOST_LEVELS = 1000


@dataclass(frozen=True)
class Level:
    """One step of a load: concurrency, requests done and failed; None where not said."""

    concurrency: int | None
    done: int
    failed: int


@dataclass(frozen=True)
class LoadResult:
    """A load generator's result.

    Attributes:
        kind: "ramp", "evalscope" or "table".
        partial: True where the generator says that it did not run to its end.
        verdict: the generator's own word, or None.
    """

    file: str
    kind: str
    levels: tuple[Level, ...]
    partial: bool = False
    verdict: str | None = None

    @property
    def done(self) -> int:
        """Requests done, all levels together."""
        return sum(level.done for level in self.levels)

    @property
    def failed(self) -> int:
        """Requests failed, all levels together."""
        return sum(level.failed for level in self.levels)

    def against(self) -> str | None:
        """What it says against the server, or None."""
        if self.failed:
            return f"{self.failed} of {self.done + self.failed} requests failed"
        if self.partial:
            return "it was broken off"
        if self.kind == "ramp" and self.verdict != "passed":
            return f"its verdict is {self.verdict or 'missing'}"
        if not self.done:
            return "no request was done"
        return None


_TOTALS = re2.compile(
    r"Total / Success / Failed[^\d\n]{0,80}?(\d{1,9}) */ *(\d{1,9}) */ *(\d{1,9})"
)
_ROW = re2.compile(r"(?m)^[ \t│|]*([A-Za-z][A-Za-z ]{2,40}?)[ \t]*[│|:][ \t│|]*(\d{1,9})[ \t│|]*$")
_SUMMARY = "Benchmarking summary"
_FRAME = frozenset("-=+|─━│┃┄┼╋┿├┤┌┐└┘┏┓┗┛┬┴╞╡╪ \t:")


def _whole(value: Any) -> int | None:
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9
    return value if good else None


def _ramp(file: str, data: dict[str, Any]) -> LoadResult:
    levels = []
    given = data.get("levels")
    for item in given[:_MOST_LEVELS] if isinstance(given, list) else []:
        if isinstance(item, dict):
            done, failed = _whole(item.get("done")), _whole(item.get("failed"))
            if done is not None and failed is not None:
                levels.append(Level(_whole(item.get("concurrency")), done, failed))
    verdict = data.get("verdict")
    return LoadResult(
        file, "ramp", tuple(levels), data.get("partial") is True,
        verdict[:80] if isinstance(verdict, str) else None,
    )  # fmt: skip


def _json(file: str, text: str) -> LoadResult | None:
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    if data.get("tool") == "hisparse-guard ramp":
        return _ramp(file, data)
    names = {str(key).lower(): value for key, value in data.items()}
    done, failed = _whole(names.get("succeed requests")), _whole(names.get("failed requests"))
    if done is None or failed is None:
        return None
    level = Level(_whole(names.get("number of concurrency")), done, failed)
    return LoadResult(file, "evalscope", (level,))


def _table(file: str, lines: list[str]) -> LoadResult | None:
    """A table whose first row names conc, done and fail; every other line is a row of it."""
    rows = [_cells(line) for line in lines if not set(line) <= _FRAME]
    titles = [cell.lower() for cell in rows[0]] if rows else []
    try:
        columns = [
            next(i for i, title in enumerate(titles) if title.startswith(name))
            for name in ("conc", "done", "fail")
        ]
    except StopIteration:
        return None
    levels, partial = [], False
    for row in rows[1 : _MOST_LEVELS + 1]:
        values = [row[i] if i < len(row) and len(row[i]) < 10 else "" for i in columns]
        if not all(value.isdecimal() for value in values):
            return None
        levels.append(Level(*(int(value) for value in values)))
        partial = partial or "dead" in row
    return LoadResult(file, "table", tuple(levels), partial) if levels else None


def _cells(line: str) -> list[str]:
    for mark in "|│┃,":
        line = line.replace(mark, " ")
    return line.split()


def read(file: str, text: str) -> LoadResult | None:
    """Takes a load result out of the whole text of a file.

    Returns:
        The result, or None where the file is none, or holds something else beside it.
    """
    start = text.lstrip("\ufeff \t\r\n")
    if start.startswith("{"):
        return _json(file, start)
    lines = [line for line in start.splitlines() if line.strip()]
    if not lines or len(lines) > 2000:
        return None
    if lines[0].strip().startswith(_SUMMARY) or set(lines[0]) <= _FRAME:
        if not all(set(line[:2]) & _FRAME or line.startswith(_SUMMARY) for line in lines):
            return None
        if totals := _TOTALS.findall(start):
            levels = [Level(None, int(done), int(failed)) for _, done, failed in totals]
            return LoadResult(file, "evalscope", tuple(levels[:_MOST_LEVELS]))
        values = {name.strip().lower(): int(value) for name, value in _ROW.findall(start)}
        done = values.get("succeed requests", values.get("succeeded requests"))
        failed = values.get("failed requests")
        if done is not None and failed is not None:
            level = Level(values.get("number of concurrency"), done, failed)
            return LoadResult(file, "evalscope", (level,))
    return _table(file, lines)
