"""The command ``doctor``."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    cmd: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- CMD...]",
            help="The server's command line: its Python is examined. Without it, this Python.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what this environment is and what the guard would do in it.

    Reads files only; vLLM, torch and FlashInfer are not imported. Exit code: 0 fine,
    1 something to fix, 2 wrong usage.
    """
    import os

    from hisparse_guard.cli.doctor.examine import examine

    result = examine(cmd or [], os.environ)
    if as_json:
        import json

        typer.echo(json.dumps(result.to_json(), indent=1))
        raise typer.Exit(result.exit_code)

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from hisparse_guard.cli.output import print_table

    style = {"ok": "green", "note": "yellow", "fix": "bold red"}
    advice = {"needed": "bold", "not needed": "green", "not able": "bold red"}
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)
    console.print(
        Text.assemble((f"{result.advice} here", advice[result.advice]), f": {result.reason}")
    )
    console.print()
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("level", "topic", "text"):
        table.add_column(column, overflow="fold", no_wrap=column != "text")
    order = {"fix": 0, "note": 1, "ok": 2}
    for finding in sorted(result.findings, key=lambda one: order[one.level]):
        table.add_row(
            Text(finding.level, style=style[finding.level]), finding.topic, Text(finding.text)
        )
    print_table(console, table)
    raise typer.Exit(result.exit_code)
