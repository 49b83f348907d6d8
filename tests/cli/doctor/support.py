"""A small image of real vLLM code, and what `doctor` says of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hisparse_guard.cli.doctor.examine import examine
from hisparse_guard.cli.doctor.model import Examination
from tests.support.environments import vllm_release

ROOT = Path(__file__).resolve().parents[3]
NEEDED = (
    "config",
    "envs.py",
    "distributed/__init__.py",
    "distributed/device_communicators",
    "compilation/passes/fusion",
    "model_executor/layers/fused_allreduce_gemma_rms_norm.py",
    "v1/__init__.py",
    "v1/hisparse",
)
POISON = "raise SystemExit('vLLM was imported')\n"
ALL_REDUCE = "vllm/distributed/device_communicators/flashinfer_all_reduce.py"


def bare() -> Path:
    """A Python with neither the guard nor wrapt; a fixture makes it."""
    return Path(os.environ["HISPARSE_TESTS_BARE"])


def image(folder: Path, version: str = "0.33.0") -> Path:
    """vLLM's own code, as much as is read, under a package that must not be imported."""
    release = vllm_release(version)
    for name in NEEDED:
        source, target = release / "vllm" / name, folder / "vllm" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    (folder / "vllm" / "__init__.py").write_text(POISON)
    for name in ("flashinfer", "torch"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(POISON)
    metadata(folder, "vllm", version)
    metadata(folder, "flashinfer-python", "0.7.2.post1", files="flashinfer/__init__.py")
    return folder


def edit(tree: Path, old: str, new: str, file: str = ALL_REDUCE) -> None:
    """Replaces `old`, which must be there, in a file of the image."""
    text = (tree / file).read_text()
    assert old in text, old
    (tree / file).write_text(text.replace(old, new))


def metadata(folder: Path, name: str, version: str, files: str = "vllm/__init__.py") -> Path:
    home = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    home.mkdir()
    (home / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (home / "RECORD").write_text(f"{files},,\n{home.name}/METADATA,,\n")
    return home


def doctor(
    *path: Path | str, words: tuple[str, ...] = (), python: Path | None = None, **variables: str
) -> Examination:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "PYTHONNOUSERSITE": "1",
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        **variables,
    }
    return examine([str(python or bare()), *(words or ("-m", "vllm"))], environment)


def said(result: Examination, topic: str) -> str:
    return "\n".join(f"{one.level}: {one.text}" for one in result.findings if one.topic == topic)
