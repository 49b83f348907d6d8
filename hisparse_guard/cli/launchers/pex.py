"""PEX files: they start Python again, with -I."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

from hisparse_guard.cli.launchers.table import through_env
from hisparse_guard.cli.launchers.way import PYTHON, CannotTell, Way


def information(file: str) -> dict[str, object] | None:
    """The PEX-INFO of a PEX file or folder; None where it is no PEX."""
    path = Path(file)
    if path.is_dir():
        held = path / "PEX-INFO"
        text = held.read_bytes() if held.is_file() else None
    elif path.is_file() and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            text = archive.read("PEX-INFO") if "PEX-INFO" in archive.namelist() else None
    else:
        return None
    found = json.loads(text) if text is not None else None
    return found if isinstance(found, dict) else None


def restarted(way: Way, file: str, interpreter: str | None = None) -> bool:
    """A PEX starts Python again, with -I.

    Told to inherit PYTHONPATH it starts it without (as a venv with it), and the program then has
    the entries of PYTHONPATH, but no `sitecustomize` and no finder of one (pex 2 on Python 3.11).

    Raises:
        CannotTell: it is told so.
    """
    inherit = way.environment.get("PEX_INHERIT_PATH") or (information(file) or {}).get(
        "inherit_path"
    )
    if str(inherit).lower() in ("prefer", "fallback"):
        way.interpreter = None
        raise CannotTell(f"what the PEX {file} keeps of PYTHONPATH's sitecustomize is not known")
    way.interpreter = interpreter or _interpreter(way, file)
    way.options = ("-I",)
    way.first = file
    return True


def _interpreter(way: Way, file: str) -> str:
    with Path(file).open("rb") as opened:
        first = os.fsdecode(opened.readline()[2:]).split()
    words, _ = through_env(first[1:], {}, way.cwd) if first[:1] == ["/usr/bin/env"] else (first, "")
    found = way.which(words[0]) if words else None
    if found is None or not PYTHON.fullmatch(Path(found).name):
        found = way.which("python3")
    if found is None:
        raise CannotTell(f"which Python {file} starts is not known")
    return found
