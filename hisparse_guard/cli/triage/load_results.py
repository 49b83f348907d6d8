"""What a load generator says beside the log: how many requests were done and failed.

Read are the result of `hisparse-guard ramp` (JSON), evalscope's summary (its table or
its JSON file), and a table like the published ones, with columns conc, done and fail.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

# Summaries are small; a log that is given as one is not read to its end for it.
LARGEST = 4 << 20


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
        file: where it was read from.
        kind: "ramp", "evalscope" or "table".
        levels: in the order of the file.
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


_TOTALS = re.compile(r"Total / Success / Failed[^\d\n]*(\d+) */ *(\d+) */ *(\d+)")
_CONCURRENCY = re.compile(r"^\W*(?:Number of concurrency|Concurrency)\W+(\d+)", re.M)
_SUCCEEDED = re.compile(r"^\W*Succeed(?:ed)? requests\W+(\d+)", re.M)
_FAILED = re.compile(r"^\W*Failed requests\W+(\d+)", re.M)
_HEADER = re.compile(r"^.*\bconc\w*\b.*\bdone\b.*\bfail\w*\b.*$", re.M | re.I)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _ramp(file: str, data: dict[str, Any]) -> LoadResult | None:
    levels = []
    for item in data.get("levels") or []:
        if not isinstance(item, dict):
            continue
        done, failed = _whole(item.get("done")), _whole(item.get("failed"))
        if done is not None and failed is not None:
            levels.append(Level(_whole(item.get("concurrency")), done, failed))
    verdict = data.get("verdict")
    return LoadResult(
        file,
        "ramp",
        tuple(levels),
        data.get("partial") is True,
        verdict if isinstance(verdict, str) else None,
    )


def _evalscope_json(file: str, data: dict[str, Any]) -> LoadResult | None:
    names = {str(key).lower(): value for key, value in data.items()}
    done, failed = _whole(names.get("succeed requests")), _whole(names.get("failed requests"))
    if done is None or failed is None:
        return None
    return LoadResult(
        file, "evalscope", (Level(_whole(names.get("number of concurrency")), done, failed),)
    )


def _table(file: str, text: str) -> LoadResult | None:
    header = _HEADER.search(text)
    if header is None:
        return None
    titles = [word.strip().lower() for word in re.split(r"[|│┃\s]+", header[0]) if word.strip()]
    level_at = next(i for i, word in enumerate(titles) if word.startswith("conc"))
    done_at, fail_at = (
        titles.index("done"),
        next(i for i, w in enumerate(titles) if w.startswith("fail")),
    )
    levels = []
    partial = False
    for row in text[header.end() :].splitlines()[1:]:
        cells = [word for word in re.split(r"[|│┃\s]+", row) if word]
        if not cells or set(row) <= set("-=+|─━┄┼╋┿├┤└┘┌┐ :"):
            continue
        try:
            levels.append(Level(int(cells[level_at]), int(cells[done_at]), int(cells[fail_at])))
        except (ValueError, IndexError):
            break
        partial = partial or "engine dead" in row
    return LoadResult(file, "table", tuple(levels), partial) if levels else None


def read(file: str, text: str) -> LoadResult | None:
    """Takes a load result out of a file's text.

    Returns:
        The result, or None where the text is none of the known kinds.
    """
    start = text.lstrip("\ufeff \t\r\n")
    if start.startswith("{"):
        try:
            data: Any = json.loads(start)
        except (ValueError, RecursionError):
            return None
        if not isinstance(data, dict):
            return None
        if data.get("tool") == "hisparse-guard ramp":
            return _ramp(file, data)
        return _evalscope_json(file, data)
    totals = list(_TOTALS.finditer(text))
    if totals:
        steps = [int(found[1]) for found in _CONCURRENCY.finditer(text)]
        levels = tuple(
            Level(steps[i] if len(steps) == len(totals) else None, int(found[2]), int(found[3]))
            for i, found in enumerate(totals)
        )
        return LoadResult(file, "evalscope", levels)
    done, failed = _SUCCEEDED.findall(text), _FAILED.findall(text)
    if done and len(done) == len(failed):
        steps = [int(value) for value in _CONCURRENCY.findall(text)]
        return LoadResult(
            file,
            "evalscope",
            tuple(
                Level(steps[i] if len(steps) == len(done) else None, int(done[i]), int(failed[i]))
                for i in range(len(done))
            ),
        )
    return _table(file, text)
