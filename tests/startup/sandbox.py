"""Interpreters of their own, started with a guard folder on PYTHONPATH."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START = {
    name: (ROOT / name).read_text()
    for name in ("sitecustomize.py", "hisparse_guard/runtime/start.py")
}
"""The guard's way into a process: file name to text."""

# What of the environment a child needs to start at all.
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")

STUB_ARM = """
import sys
def arm(how):
    sys.armings = getattr(sys, "armings", []) + [how]
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


def guard_folder(folder: Path, *, source: Mapping[str, str] = START, arm: str = STUB_ARM) -> Path:
    """A guard whose start is the real one and whose arming only notes that it was called."""
    return write(
        folder,
        {
            **source,
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


FI = "vllm/distributed/device_communicators/flashinfer_all_reduce.py"
HISPARSE_VLLM = {
    "vllm/__init__.py": "",
    "vllm/distributed/__init__.py": "",
    "vllm/distributed/device_communicators/__init__.py": "",
    "vllm/config.py": """
from contextlib import contextmanager
from types import SimpleNamespace

hisparse_config = None
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

given = SimpleNamespace(attention_config=SimpleNamespace(hisparse_config=1))
""",
    FI: """
class Workspace:
    def __init__(self, backend):
        self.backend = backend

workspace = None

def _resolve_fi_ar_backend():
    return "mnnvl", True

def _create_workspace(backend, group):
    return Workspace(backend)

def get_fi_ar_workspace(group=None):
    global workspace
    if workspace is None:
        workspace = _create_workspace(_resolve_fi_ar_backend()[0], group)
    return workspace
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
