"""One row of what ``make bench`` prints: a figure beside what it is compared with."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

HEADER = ("what", "median", "quartiles", "compared with", "its median", "difference", "promised")
WIDTHS = (46, 10, 17, 34, 10, 11, 10)


@dataclass(frozen=True)
class Row:
    """A figure, and what it is compared with in the same run.

    Attributes:
        values: one a round, in `unit`.
        base: what it is compared with, and `base_values` its figures, of the same rounds; both
            empty where there is nothing to compare it with.
        promised: the most that the median, the ``difference`` or the ``ratio`` may be, in words.
    """

    what: str
    unit: str
    values: Sequence[float]
    base: str = ""
    base_values: Sequence[float] = ()
    promised: str = ""

    def cells(self) -> tuple[str, ...]:
        """As `HEADER` names them. The difference is the median of the rounds' differences, and
        stands beside the ratio of the medians."""
        low, _, high = _quartiles(self.values)
        median = statistics.median(self.values)
        base = difference = ""
        if self.base_values:
            other = statistics.median(self.base_values)
            pairs = zip(self.values, self.base_values, strict=True)
            apart = statistics.median(mine - bare for mine, bare in pairs)
            base = f"{_number(other)} {self.unit}"
            difference = f"{'+' if apart >= 0 else '-'}{_number(abs(apart))}"
            difference += f" ({median / other:.2f}x)" if other else ""
        return (
            self.what,
            f"{_number(median)} {self.unit}",
            f"{_number(low)} to {_number(high)}",
            self.base,
            base,
            difference,
            self.promised,
        )


def _quartiles(values: Sequence[float]) -> Sequence[float]:
    if len(values) < 2:
        return [values[0]] * 3
    return statistics.quantiles(values, n=4, method="inclusive")


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def machine() -> str:
    """What the figures are measured on."""
    return (
        f"Python {platform.python_version()}, {len(os.sched_getaffinity(0))} cores shared with "
        f"others, load {os.getloadavg()[0]:.1f} at the start"
    )


def as_text(cells: Sequence[str]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True))
    return " ".join(padded).rstrip()


def as_markdown(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
