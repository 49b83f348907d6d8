"""Checks a command, and becomes it."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from hisparse_guard.cli import installation, interpreter
from hisparse_guard.cli.exit_codes import Exit
from hisparse_guard.cli.launchers import NoSuchProgram, Started, follow, only_tells
from hisparse_guard.cli.output import printable


class Refused(Exception):
    """The command is not started.

    Attributes:
        exit_code: as a shell's for what cannot be started, else 2.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(printable(message))
        self.exit_code = exit_code


def start(cmd: Sequence[str], *, check: bool) -> NoReturn:
    """Becomes `cmd`, with this installation in front of PYTHONPATH.

    Args:
        check: whether its Python is asked before that the guard gets in there.

    Raises:
        Refused: it cannot be started, or would run unguarded.
        FileNotFoundError: this installation has no `sitecustomize.py`.
        ValueError: the path of this installation cannot stand on PYTHONPATH.
    """
    environment = installation.in_front(os.environ)
    try:
        started = follow(cmd, environment)
    except NoSuchProgram as error:
        raise Refused(str(error), error.exit_code) from None
    if interpreter.switched_off(started.environment):
        _tell("HISPARSE_GUARD_MODE=off: CMD runs unguarded")
    elif check:
        _check(started)
    _become(started.program, cmd, environment)


def _check(started: Started) -> None:
    if started.interpreter is not None and not only_tells(started.options):
        probe = interpreter.probe(started)
        if not probe.checked:
            raise Refused(f"not started: {probe.reason}", Exit.USAGE)
        if probe.reason is not None:
            raise Refused(f"not started, since it would run unguarded: {probe.reason}", Exit.USAGE)
    if started.unknown is not None:
        _tell(
            f"not checked: {started.unknown}. CMD gets this PYTHONPATH; whether its Python keeps "
            "it is told by the server's log (`armed by`)"
        )


def _tell(text: str) -> None:
    if sys.stderr is not None:
        print(f"hisparse-guard run: {printable(text)}", file=sys.stderr, flush=True)


def _become(program: str, cmd: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    # Python ignores these two, and what is ignored stays so through exec.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    if sys.stdout is not None:
        sys.stdout.flush()
    try:
        try:
            os.execve(program, list(cmd), environment)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            # As a shell does with a script that has no #! line.
            os.execve("/bin/sh", ["/bin/sh", program, *cmd[1:]], environment)
    except OSError as error:
        why, code = str(error.strerror), Exit.CANNOT_RUN
        if isinstance(error, FileNotFoundError):
            # 127 as bash 5.2, dash and env have it.
            why = "the interpreter that its first line names does not exist"
            code = Exit.NO_SUCH_PROGRAM
        raise Refused(f"{program}: {why}", code) from error
