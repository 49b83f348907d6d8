"""The files that were asked for: checked before the load, written after it."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hisparse_guard.cli.output import replace_file


@dataclass
class Outputs:
    """What to write besides the table, and what the archive is to hold."""

    json: Path | None = None
    html: Path | None = None
    archive: Path | None = None
    keep_names: bool = False
    server_logs: Sequence[Path] = field(default_factory=list)
    evidence: Sequence[Path] = field(default_factory=list)
    deployment: Sequence[Path] = field(default_factory=list)

    def named(self) -> list[tuple[str, Path]]:
        pairs = (("--json", self.json), ("--html", self.html), ("--archive", self.archive))
        return [(name, path) for name, path in pairs if path is not None]

    def inputs(self) -> list[tuple[str, Path]]:
        return [
            *(("--server-log", one) for one in self.server_logs),
            *(("--evidence", one) for one in self.evidence),
            *(("--deployment", one) for one in self.deployment),
        ]


def check(outputs: Outputs) -> None:
    """Tries all that will be written or read.

    Raises:
        ValueError: one cannot be; the text says which and what to do.
    """
    for name, path in outputs.inputs():
        if not path.exists():
            raise ValueError(f"{name} {path}: no such file")
        if not os.access(path, os.R_OK):
            raise ValueError(f"{name} {path}: cannot be read")
    taken = {path.resolve() for _, path in outputs.inputs()}
    for name, path in outputs.named():
        if path.resolve() in taken:
            raise ValueError(f"{name} {path}: another option names this file too")
        taken.add(path.resolve())
        _try_to_write(name, path)
    if outputs.deployment and outputs.archive is None:
        raise ValueError("--deployment goes with --archive")
    if outputs.html is not None:
        from hisparse_guard.cli.ramp.page import NoChart, check_chart

        try:
            check_chart()
        except NoChart as error:
            raise ValueError(str(error)) from None


def _try_to_write(name: str, path: Path) -> None:
    if path.is_dir():
        raise ValueError(f"{name} {path}: is a folder")
    try:
        if path.exists() and not path.is_file():
            # A device or a pipe: opening it for a trial could already be an answer.
            return
        with tempfile.NamedTemporaryFile(dir=path.absolute().parent, prefix=f".{path.name}."):
            pass
    except OSError as error:
        raise ValueError(f"{name} {path}: cannot be written there: {error.strerror}") from None


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Raises:
    OSError: it cannot be written.
    """
    replace_file(path, json.dumps(document, indent=2) + "\n")


def write_page(path: Path, document: dict[str, Any]) -> None:
    """Raises:
    OSError: it cannot be written.
    """
    from hisparse_guard.cli.ramp.page import page

    replace_file(path, page(document))


def silence(descriptor: int) -> None:
    """Points a stream that cannot be written at nothing: what is left in its buffer would fail
    once more at exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
