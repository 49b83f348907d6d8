"""Ranks as people write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hisparse_guard.cli.report.model import Process

_MOST_NAMED = 3


def ranges(numbers: Iterable[int]) -> str:
    """Whole numbers as people write them: ``0-3, 7``."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def named(numbers: Iterable[int]) -> str:
    """``rank 2``, ``ranks 0-3, 7``."""
    several = set(numbers)
    return f"rank{'s' if len(several) > 1 else ''} {ranges(several)}"


def ranks(processes: Sequence[Process]) -> str:
    """Processes by rank, or by process id where that is not known."""
    known = [process.rank for process in processes if process.rank is not None]
    others = [process for process in processes if process.rank is None]
    words = [f"process {process.pid} of {process.host}" for process in others[:_MOST_NAMED]]
    if known:
        words.insert(0, named(known))
    if len(others) > _MOST_NAMED:
        words.append(f"{len(others) - _MOST_NAMED} more")
    return ", ".join(words)
