"""One line of the table that ``make bench`` prints."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Line:
    """A figure and what it is compared with, both measured in the same run.

    Attributes:
        median: with its unit.
        over: what the difference and the ratio are counted over.
        ratio: to `over`; of a peer's tax, to the guard's.
        target: what the figure has to be, where something is promised.
    """

    what: str
    median: str
    over: str = ""
    difference: str = ""
    ratio: str = ""
    target: str = ""


def machine() -> str:
    """What the figures were measured on."""
    return (
        f"Python {platform.python_version()}, {len(os.sched_getaffinity(0))} cores, "
        f"load {os.getloadavg()[0]:.1f} at the start"
    )


def show(parts: Iterable[tuple[str, list[Line]]], caption: str) -> None:
    table = Table(caption=caption, caption_justify="left", box=None, padding=(0, 1))
    for column in ("what", "median", "over", "difference", "ratio", "target"):
        table.add_column(column, justify="left" if column in ("what", "over") else "right")
    for name, lines in parts:
        table.add_row(f"[bold]{name}")
        for line in lines:
            values = (line.median, line.over, line.difference, line.ratio, line.target)
            table.add_row(f"  {line.what}", *values)
    Console(width=None if Console().is_terminal else 130).print(table)
