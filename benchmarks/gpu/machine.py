"""What is on this machine: GPUs, the compiler, the packages that the ranks will import."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from benchmarks.gpu.names import BACKEND, KERNELS

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "vllm", "flashinfer-python")
LOOK_UP = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[name] = None
print(json.dumps(found))
"""


@dataclasses.dataclass(frozen=True)
class Machine:
    """Where one FlashInfer release runs.

    Attributes:
        gpus: the name of each GPU.
        python: the ranks' interpreter.
        paths: folders in front of what that interpreter finds by itself.
        kernels: the folder that FlashInfer keeps its compiled kernels under.
    """

    gpus: tuple[str, ...]
    driver: str | None
    nvcc: str | None
    python: str
    paths: tuple[Path, ...]
    kernels: Path

    def environment(self, first: Iterable[Path] = ()) -> dict[str, str]:
        """A rank's environment: `first`, then `paths`, in front of PYTHONPATH; no setting of the
        guard and no backend by hand."""
        found = {
            name: value
            for name, value in os.environ.items()
            if name != BACKEND and not name.startswith("HISPARSE_GUARD_")
        }
        parts = [*map(str, (*first, *self.paths)), found.get("PYTHONPATH", "")]
        found["PYTHONPATH"] = os.pathsep.join(part for part in parts if part)
        found["PYTHONUNBUFFERED"] = "1"
        found[KERNELS] = str(self.kernels)
        return found

    def versions(self) -> dict[str, str | None]:
        """The release of each of `PACKAGES` that a rank would import; None where it is missing."""
        command = [self.python, "-c", LOOK_UP, *PACKAGES]
        done = subprocess.run(
            command, env=self.environment(), cwd="/", capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout.splitlines()[-1])


def gpu_names() -> tuple[str, ...]:
    """The GPUs that a process started here may use."""
    names = nvidia_smi("name")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = names[: len([part for part in visible.split(",") if part.strip()])]
    return tuple(names)


def driver() -> str | None:
    return next(iter(nvidia_smi("driver_version")), None)


def nvidia_smi(field: str) -> list[str]:
    """`field` of each GPU; empty where there is no nvidia-smi, or it fails."""
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def nvcc() -> str | None:
    """The CUDA compiler, where FlashInfer looks for it."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    for place in (home, None, "/usr/local/cuda"):
        found = shutil.which("nvcc", path=str(Path(place) / "bin") if place else None)
        if found:
            return found
    return None
