"""Interpreters of their own, started with a guard folder on PYTHONPATH."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SITECUSTOMIZE = (ROOT / "sitecustomize.py").read_text()

# What of the environment a child needs to start at all.
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")

STUB_ARM = """
import sys
def arm(how):
    sys.armings = getattr(sys, "armings", []) + [how]
"""


def write(folder: Path, files: dict[str, str]) -> Path:
    """Writes `files` (relative name: text) under `folder`."""
    for name, text in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def guard_folder(folder: Path, *, source: str = SITECUSTOMIZE, arm: str = STUB_ARM) -> Path:
    """A guard whose start is the real one and whose arming only notes that it was called."""
    return write(
        folder,
        {
            "sitecustomize.py": source,
            "hisparse_guard/__init__.py": "",
            "hisparse_guard/runtime/__init__.py": "",
            "hisparse_guard/runtime/arm.py": arm,
        },
    )


def zipped(folder: Path) -> Path:
    """The contents of `folder` as a zip beside it."""
    archive = folder.with_name(folder.name + ".zip")
    with zipfile.ZipFile(archive, "w") as out:
        for file in sorted(folder.rglob("*.py")):
            out.write(file, file.relative_to(folder).as_posix())
    return archive


def vllm_folder(folder: Path) -> Path:
    """A package in vLLM's name with one submodule."""
    return write(folder, {"vllm/__init__.py": "", "vllm/config.py": "x = 1\n"})


def environment(path: Sequence[Path | str] = (), **more: str) -> dict[str, str]:
    """A clean environment with `path` as PYTHONPATH."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    if path:
        kept["PYTHONPATH"] = os.pathsep.join(map(os.fspath, path))
    return kept | {"PYTHONDONTWRITEBYTECODE": "1"} | more


def python(
    code: str,
    path: Sequence[Path | str] = (),
    *,
    options: Sequence[str] = (),
    timeout: float = 60,
    env: dict[str, str] | None = None,
    cwd: Path | str = "/",  # `-c` puts it on sys.path, first
    interpreter: Path | str = sys.executable,
) -> subprocess.CompletedProcess[str]:
    """Runs `code` in an interpreter of its own."""
    return subprocess.run(
        [os.fspath(interpreter), *options, "-c", code],
        env=environment(path) if env is None else env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
