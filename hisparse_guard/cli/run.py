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

    CMD takes this process's place: signals, standard input and the exit code are its own.
    """
    import os
    import signal
    import sys

    from hisparse_guard.cli import installation, interpreter
    from hisparse_guard.cli.app import usage_error

    def refuse(code: int, message: str) -> typer.Exit:
        typer.echo(f"hisparse-guard run: {message}", err=True)
        return typer.Exit(code)

    try:
        entry = str(installation.path_entry())
    except FileNotFoundError as error:
        raise usage_error(str(error)) from error
    if os.pathsep in entry:
        raise usage_error(f"{entry} cannot stand on PYTHONPATH: it holds a {os.pathsep!r}")

    environment = dict(os.environ)
    # An empty entry would put the current folder on the path.
    behind = environment.get("PYTHONPATH", "")
    if behind.partition(os.pathsep)[0] != entry:
        environment["PYTHONPATH"] = entry + (os.pathsep + behind if behind else "")

    started = interpreter.started_by(cmd, environment)
    if started is None:
        # As a shell or `env` answers.
        raise refuse(127, f"{cmd[0]}: no such program on PATH")
    if check and started.interpreter is None:
        typer.echo(
            f"hisparse-guard run: {cmd[0]} is not a Python program: not checked; Python "
            "processes that it starts with this PYTHONPATH are guarded",
            err=True,
        )
    elif check:
        reason = interpreter.probe(started, environment).reason
        if reason is not None:
            raise refuse(2, f"not started, since it would run unguarded: {reason}")

    # Python ignores these two, and what is ignored stays so through exec.
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    sys.stdout.flush()
    try:
        os.execvpe(started.program, cmd, environment)
    except OSError as error:
        raise refuse(126, f"{started.program}: {error.strerror}") from error
