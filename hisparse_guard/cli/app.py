"""The command line: one table of commands, one way to report a usage error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import typer

from hisparse_guard.cli.exit_codes import Exit
from hisparse_guard.cli.output import printable

PROG = "hisparse-guard"

app = typer.Typer(
    name=PROG,
    help="Runtime guard for vLLM servers that run HiSparse and cannot be rebuilt.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

# name -> module in this package that defines a function `command`.
# Modules are imported for their signatures only: what is heavy is imported inside `command`.
COMMANDS: dict[str, str] = {
    "run": "run",
    "path": "path",
    "bundle": "bundle.command",
    "inject": "inject.command",
    "report": "report",
    "triage": "triage",
    "ramp": "ramp.command",
    "probe": "probe.command",
    "doctor": "doctor",
}

# Words from the first on that is no option, or after `--`, belong to another program, and are
# not to be parsed here.
PASS_THROUGH = {"run", "doctor"}


def _version(value: bool) -> None:
    if value:
        from hisparse_guard import __version__

        typer.echo(f"{PROG} {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(Exit.USAGE)


for _name, _module in COMMANDS.items():
    app.command(
        _name,
        context_settings={"allow_interspersed_args": False} if _name in PASS_THROUGH else {},
    )(import_module(f"{__package__}.{_module}").command)


def usage_error(message: str) -> typer.BadParameter:
    """The exception to raise for a wrong option or argument: one line, exit 2."""
    return typer.BadParameter(message)


def run_app(arguments: Sequence[str]) -> int:
    """Runs one command.

    Returns:
        The command's exit code; 2 for a usage error, after one line on standard error;
        130 after Ctrl-C.
    """
    command = typer.main.get_command(app)
    try:
        result = command.main(args=list(arguments), prog_name=PROG, standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except Exception as error:
        # typer's own errors, whichever click they derive from in this environment
        # (typer ships its own since 0.2x): told by what they can do.
        describe = getattr(error, "format_message", None)
        if describe is None:
            raise
        # How typer's validators begin, which says nothing to an operator.
        message = " ".join(describe().split()).replace("Value error, ", "")
        context = getattr(error, "ctx", None)
        where = context.command_path if context else PROG
        print(f"{where}: {printable(message)} (try: {where} --help)", file=sys.stderr)
        return int(getattr(error, "exit_code", Exit.USAGE))
    return result if isinstance(result, int) else Exit.OK
