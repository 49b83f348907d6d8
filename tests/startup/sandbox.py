"""Interpreters of their own, started with a guard folder on PYTHONPATH."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Every file that a process may load before vLLM's first patched module is executed.
START = (
    "sitecustomize.py",
    "hisparse_guard/__init__.py",
    "hisparse_guard/runtime/__init__.py",
    "hisparse_guard/runtime/chain.py",
)

# What of the environment a child needs to start at all.
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")

# Stands for all that comes after the start: it notes each module that it is to patch.
NOTES = """
import sys

def patch(executed):
    loaded = [m for name, m in list(sys.modules.items()) if f"{name}.".startswith("vllm.")]
    for module in loaded if executed is None else [executed]:
        sys.patched = getattr(sys, "patched", []) + [module.__name__]
"""
FAILS = """
def patch(executed):
    raise RuntimeError("a fault")
"""

# A finder that imports what it is asked for, and answers with what `sys.modules` holds, as
# ddtrace's did up to 4.0.
WATCHDOG = """
import importlib.util
class Watchdog:
    asked = set()
    def find_spec(self, name, path=None, target=None):
        if name in self.asked:
            return None
        self.asked.add(name)
        try:
            return importlib.util.find_spec(name)
        finally:
            self.asked.discard(name)
"""


def write(folder: Path, files: dict[str, str]) -> Path:
    """Writes `files` (relative name: text) under `folder`."""
    for name, text in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def guard_folder(folder: Path, *, activate: str = NOTES) -> Path:
    """A guard whose start is the real one, and `activate` the text of what comes after it."""
    start = {name: (ROOT / name).read_text() for name in START}
    return write(folder, {**start, "hisparse_guard/runtime/activate.py": activate})


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


FI = "vllm/distributed/device_communicators/flashinfer_all_reduce.py"
HISPARSE_VLLM = {
    "vllm/__init__.py": "",
    "vllm/distributed/__init__.py": "",
    "vllm/distributed/device_communicators/__init__.py": "",
    "vllm/envs.py": """
def compile_factors():
    return {"VLLM_FLASHINFER_ALLREDUCE_BACKEND": "auto"}
""",
    "vllm/config/__init__.py": """
from vllm.config.vllm import (
    get_current_vllm_config_or_none, given, set_current_vllm_config)
""",
    "vllm/config/vllm.py": """
from contextlib import contextmanager

class Config:
    def __init__(self, **parts):
        self.__dict__.update(parts)

current = None

@contextmanager
def set_current_vllm_config(vllm_config):
    global current
    before, current = current, vllm_config
    try:
        yield
    finally:
        current = before

def get_current_vllm_config_or_none():
    return current

given = Config(attention_config=Config(hisparse_config=1))
""",
    FI: """
class Workspace:
    def __init__(self, backend):
        self.backend = backend

workspace = None

def _resolve_fi_ar_backend(group=None):
    return "mnnvl", True

def _create_workspace(backend, group):
    return Workspace(backend)

def get_fi_ar_workspace(group=None):
    global workspace
    if workspace is None:
        workspace = _create_workspace(_resolve_fi_ar_backend(group)[0], group)
    return workspace

def destroy_fi_ar_workspace():
    global workspace
    workspace = None
""",
}


def hisparse_folder(folder: Path) -> Path:
    """The least of a vLLM that has HiSparse and the fault."""
    return write(folder, HISPARSE_VLLM)


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
