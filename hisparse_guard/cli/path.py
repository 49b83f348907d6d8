"""`path`: what to put on PYTHONPATH for this installation."""

from __future__ import annotations

import typer


def command() -> None:
    """Prints what to put on PYTHONPATH for this installation."""
    from hisparse_guard.cli import installation
    from hisparse_guard.cli.app import usage_error

    try:
        typer.echo(installation.path_entry())
    except FileNotFoundError as error:
        raise usage_error(str(error)) from error
