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
    1 something to fix or that cannot be told, 2 wrong usage.
    """
    import os

    from hisparse_guard.cli.doctor import render
    from hisparse_guard.cli.doctor.examine import examine

    result = examine(cmd or [], os.environ)
    if as_json:
        typer.echo(render.as_json(result))
    else:
        render.print_text(result)
    raise typer.Exit(result.exit_code)
