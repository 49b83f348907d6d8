"""`run -- CMD…`: starts a command with the guard injected."""

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
    code without it: 2 wrong usage, or CMD would run unguarded; 126 CMD cannot be run; 127 no such
    program.
    """
    import os
    import signal
    import sys
    from pathlib import Path

    from hisparse_guard.cli import installation, interpreter
    from hisparse_guard.cli.app import usage_error

    def refuse(code: int, message: str) -> typer.Exit:
        typer.echo(f"hisparse-guard run: {message}", err=True)
        return typer.Exit(code)

    try:
        environment = installation.in_front(os.environ)
    except (FileNotFoundError, ValueError) as error:
        raise usage_error(str(error)) from error

    started = interpreter.started_by(cmd, environment)
    if started is None:
        # As a shell or `env` answers.
        named = Path(cmd[0])
        if os.sep not in cmd[0]:
            raise refuse(127, f"{cmd[0]}: no such program on PATH")
        if not named.exists():
            raise refuse(127, f"{cmd[0]}: no such file")
        raise refuse(126, f"{cmd[0]}: " + ("a folder" if named.is_dir() else "not executable"))
    if interpreter.switched_off(environment):
        typer.echo("hisparse-guard run: HISPARSE_GUARD_MODE=off: CMD runs unguarded", err=True)
    if check and started.interpreter is None:
        typer.echo(
            f"hisparse-guard run: {cmd[0]} is not a Python program: not checked; Python "
            "processes that it starts with this PYTHONPATH are guarded",
            err=True,
        )
    elif check and not interpreter.only_tells(started):
        reason = interpreter.probe(started).reason
        if reason is not None:
            raise refuse(2, f"not started, since it would run unguarded: {reason}")

    # Python ignores these two, and what is ignored stays so through exec.
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    if sys.stdout is not None:
        sys.stdout.flush()
    try:
        os.execvpe(started.program, cmd, environment)
    except OSError as error:
        why = str(error.strerror)
        if isinstance(error, FileNotFoundError):
            why = "the interpreter that its first line names does not exist"
        raise refuse(126, f"{started.program}: {why}") from error
