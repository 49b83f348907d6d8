"""The other CPython versions that this machine has, of those that the guard supports."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

SUPPORTED = ("3.10", "3.11", "3.12", "3.13", "3.14")


@functools.cache
def interpreter(version: str) -> Path | None:
    """A CPython of this version: from PATH or among pyenv's; None where there is none."""
    name = f"python{version}"
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/{name}"))
    on_path = shutil.which(name)
    base = [Path(sys.base_prefix) / "bin" / name]
    for found in [*base, *pyenv, *([Path(on_path)] if on_path else [])]:
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        try:
            done = subprocess.run([found, "-c", code], capture_output=True, text=True, check=False)
        except OSError:
            continue
        if done.stdout.strip() == version:
            return found
    return None
