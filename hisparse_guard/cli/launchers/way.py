"""Where the following of a command line has come to, and what comes out of it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?")


class CannotTell(Exception):
    """What a command line starts cannot be told; the text says why."""


@dataclass(frozen=True)
class Started:
    """What a command line starts in the end.

    Attributes:
        program: the file that the command's first word names.
        environment: what the last Python gets.
        interpreter: that Python; None where it cannot be told.
        options: options of that interpreter, from the command line or a `#!` line.
        first: what that Python puts in front of `sys.path`: a script's folder, '' for the
            current one; None for nothing.
        cwd: the folder it starts in; None for this process's.
        words: the words of the last command that is known, its program included.
        via: the launchers on the way, for people.
        unknown: why it cannot be told what is started last; None where it can. The
            `interpreter` is then the last one that is known, if any.
    """

    program: str
    environment: Mapping[str, str]
    interpreter: str | None = None
    options: tuple[str, ...] = ()
    first: str | None = None
    cwd: str | None = None
    words: tuple[str, ...] = ()
    via: tuple[str, ...] = ()
    unknown: str | None = None


class NoSuchProgram(Exception):
    """The command's first word names nothing that can be started.

    Attributes:
        exit_code: as a shell's: 127 not found, 126 not executable.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass
class Way:
    """Where the following has come to."""

    words: list[str]
    environment: dict[str, str]
    cwd: str
    via: list[str] = field(default_factory=list)
    interpreter: str | None = None
    options: tuple[str, ...] = ()
    first: str | None = None

    def which(self, name: str) -> str | None:
        if os.sep in name:
            # Not by `Path`, which drops a slash at the end.
            name = os.path.join(self.cwd, name)  # noqa: PTH118
        entries = self.environment.get("PATH", os.defpath).split(os.pathsep)
        path = os.pathsep.join(str(Path(self.cwd, entry)) for entry in entries)
        return shutil.which(name, path=path) if name else None
