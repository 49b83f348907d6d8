"""The command ``run``."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    cmd: Annotated[
        list[str], typer.Argument(metavar="-- CMD...", help="The command and its arguments.")
    ],
    check: Annotated[
        bool,
        typer.Option(
            "--check/--no-check",
            help="First start CMD's Python alone, to see that it can load the guard.",
        ),
    ] = True,
) -> None:
    """Starts CMD with the guard in front of whatever PYTHONPATH holds.

    CMD takes this process's place: signals, standard input and the exit code are its own. Exit
    code without it: 2 wrong usage, or CMD would run unguarded or could not be checked; 126 CMD
    cannot be run; 127 no such program, or none that its first line names.
    """
    from hisparse_guard.cli.app import usage_error
    from hisparse_guard.cli.run.start import Refused, start

    try:
        start(cmd, check=check)
    except (FileNotFoundError, ValueError) as error:
        raise usage_error(str(error)) from error
    except Refused as error:
        typer.echo(f"hisparse-guard run: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
