"""The result as a table, for a person."""

from __future__ import annotations

from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

COLOURS = {"passed": "green", "failed": "red", "interrupted": "yellow", "inconclusive": "yellow"}


def number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def rows(document: dict[str, Any]) -> list[list[str]]:
    """Level, done, fail, tok/s, TTFT median and p99, ITL median and p99, note."""
    return [
        [
            str(level["concurrency"]),
            str(level["done"]),
            str(level["failed"]),
            number(level["output_tokens_per_s"]),
            number(level["ttft_ms"]["median"]),
            number(level["ttft_ms"]["p99"]),
            number(level["itl_ms"]["median"]),
            number(level["itl_ms"]["p99"]),
            "" if level["state"] == "complete" else level["state"],
        ]
        for level in document["levels"]
    ] + [
        [str(level["concurrency"]), "-", "-", "-", "-", "-", "-", "-", "not run"]
        for level in document["levels_not_run"]
    ]


HEADINGS = (
    "level",
    "done",
    "fail",
    "tok/s",
    "TTFT ms",
    "TTFT p99",
    "ITL ms",
    "ITL p99",
    "",
)


def print_table(document: dict[str, Any], verdict: str, stream: TextIO) -> None:
    """Prints the table, the first failure and the verdict of a result's document."""
    console = Console(file=stream, highlight=False, emoji=False)
    table = Table()
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading else "left")
    for row in rows(document):
        table.add_row(*row)
    console.print(table)
    first = document["first_failure"]
    if first is not None:
        console.print(
            f"first failure: level {first['level']}, request {first['request']}"
            f" ({first['id']}): {first['error']}",
            markup=False,
            soft_wrap=True,
        )
    console.print(document["sentence"], style=COLOURS[verdict], markup=False, soft_wrap=True)
