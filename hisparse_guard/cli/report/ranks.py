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


def ranks(processes: Sequence[Process]) -> str:
    """Processes by rank, or by process id where that is not known."""
    known = [process.rank for process in processes if process.rank is not None]
    others = [process for process in processes if process.rank is None]
    named = [f"process {process.pid} of {process.host}" for process in others[:_MOST_NAMED]]
    if known:
        named.insert(0, f"rank{'s' if len(set(known)) > 1 else ''} {ranges(known)}")
    if len(others) > _MOST_NAMED:
        named.append(f"{len(others) - _MOST_NAMED} more")
    return ", ".join(named)
