"""An examination as text and as JSON."""

from __future__ import annotations

import json

from hisparse_guard.cli.doctor.model import Examination
from hisparse_guard.cli.output import print_table, printable

STYLE = {"ok": "green", "note": "yellow", "unknown": "bold yellow", "fix": "bold red"}
ADVICE = {
    "needed": "bold",
    "not needed": "green",
    "not able": "bold red",
    "cannot tell": "bold yellow",
}
SHOWN = {"unknown": "?"}


def as_json(result: Examination) -> str:
    return json.dumps(
        {
            "schema": 1,
            "advice": result.verdict.advice,
            "reason": result.verdict.reason,
            "exit_code": result.exit_code,
            "findings": [
                {"level": one.level, "topic": one.topic, "text": one.text}
                for one in result.findings
            ],
            "seen": result.seen,
        },
        indent=1,
    )


def print_text(result: Examination) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)
    advice = result.verdict.advice
    heading = advice if advice == "cannot tell" else f"{advice} here"
    console.print(Text.assemble((heading, ADVICE[advice]), f": {printable(result.verdict.reason)}"))
    console.print()
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("level", "topic", "text"):
        table.add_column(column, overflow="fold", no_wrap=column != "text")
    order = ("fix", "unknown", "note", "ok")
    for finding in sorted(result.findings, key=lambda one: order.index(one.level)):
        table.add_row(
            Text(SHOWN.get(finding.level, finding.level), style=STYLE[finding.level]),
            Text(printable(finding.topic)),
            Text(printable(finding.text)),
        )
    print_table(console, table)
