"""FlashInfer: whether the kernel of the trtllm workspace can be had."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hisparse_guard.cli.doctor.model import Facts, Finding

# The kernel behind the trtllm workspace, as FlashInfer names its library.
KERNEL = "trtllm_comm"


def flashinfer(facts: Facts) -> Iterator[Finding]:
    found = facts.seen["flashinfer"]
    if not facts.has_flashinfer:
        text = "not on this Python's path: vLLM does without its all-reduce"
        if found and found.get("error"):
            yield Finding("unknown", "flashinfer", f"cannot be looked for: {found['error']}")
        elif facts.seen["flashinfer_named"]:
            text = (
                f"{facts.seen['flashinfer_named'][0]} is there, and Python finds no package in it"
            )
            yield Finding("unknown", "flashinfer", text)
        else:
            yield Finding("note", "flashinfer", text)
        return
    version = (found.get("distribution") or {}).get("version")
    yield Finding("ok", "flashinfer", f"{version or 'version unknown'}, in {found['folders'][0]}")
    have, why = kernel(facts.seen, facts.environment)
    if have:
        yield Finding("ok", "kernel", why)
        return
    wanted = facts.concerned and facts.settings.backend == "trtllm"
    yield Finding(
        "fix" if wanted else "note",
        "kernel",
        f"{KERNEL} cannot be had: {why}; without it the workspace fails and vLLM goes on "
        "without FlashInfer's all-reduce: install flashinfer-jit-cache of FlashInfer's own "
        "version, or mount a filled FlashInfer cache",
    )


def kernel(seen: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[bool, str]:
    """Whether FlashInfer can load or make the kernel of its trtllm workspace, and how.

    FlashInfer 0.6 and 0.7 look in the installed package, in flashinfer-jit-cache if its version
    is FlashInfer's own, in the cache under ``$FLASHINFER_WORKSPACE_BASE`` or the home folder,
    and then compile with nvcc, a C++ compiler and ninja.
    """
    package = Path(seen["flashinfer"]["folders"][0])
    version = (seen["flashinfer"].get("distribution") or {}).get("version")
    library = f"{KERNEL}/{KERNEL}.so"
    if (package / "data" / "aot" / library).is_file():
        return True, f"{KERNEL} is in the FlashInfer package"
    reasons = []
    cache = seen["jit_cache"]
    if cache and cache.get("folders"):
        its = (cache.get("distribution") or {}).get("version")
        folder = Path(cache["folders"][0])
        # Newer wheels are a shim with one package an architecture beside it.
        held = [
            place
            for home in folder.parent.glob(f"{folder.name}*")
            for place in (home / library, home / "jit_cache" / library)
            if place.is_file()
        ]
        if (
            version
            and its
            and its.partition("+")[0] != version
            and not environment.get("FLASHINFER_DISABLE_VERSION_CHECK")
        ):
            reasons.append(f"flashinfer-jit-cache {its} is not for FlashInfer {version}")
        elif held:
            return True, f"{KERNEL} is in flashinfer-jit-cache {its or ''}".rstrip()
        else:
            reasons.append(f"flashinfer-jit-cache {its or ''} holds no {KERNEL}")
    else:
        reasons.append("no flashinfer-jit-cache")
    base = environment.get("FLASHINFER_WORKSPACE_BASE") or environment.get("HOME") or "~"
    home = Path(base).expanduser() / ".cache" / "flashinfer"
    filled = sorted(home.glob(f"{version or '*'}/*/cached_ops/{library}"))
    if filled:
        return True, f"{KERNEL} is in the cache: {filled[0]} (for the architecture in its path)"
    reasons.append(f"none in {home}")
    nvcc = _nvcc(environment)
    path = environment.get("PATH", os.defpath)
    missing = [name for name, there in (
        ("nvcc", nvcc),
        ("a C++ compiler", shutil.which(environment.get("CXX") or "c++", path=path)),
        ("ninja", shutil.which("ninja", path=_with_own_scripts(path, seen))),
    ) if not there]  # fmt: skip
    if missing:
        *most, last = missing
        needs = f"{', '.join(most)} and {last}" if most else last
        reasons.append(f"to compile it, {needs} would be needed")
        return False, "; ".join(reasons)
    if not can_make(home):
        reasons.append(f"to compile it, {home} would have to be writable")
        return False, "; ".join(reasons)
    return True, f"{KERNEL} will be compiled on first use, which takes minutes, with {nvcc}"


def _with_own_scripts(path: str, seen: Mapping[str, Any]) -> str:
    return path + os.pathsep + str(Path(seen["executable"] or "python").parent)


def _nvcc(environment: Mapping[str, str]) -> str | None:
    path = environment.get("PATH", os.defpath)
    given = environment.get("FLASHINFER_NVCC")
    if given:
        return shutil.which(given, path=path)
    home = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    if home:
        return shutil.which(str(Path(home) / "bin" / "nvcc"))
    return shutil.which("nvcc", path=path) or shutil.which("/usr/local/cuda/bin/nvcc")


def can_make(folder: Path) -> bool:
    """Whether files can be made below `folder`, which need not exist yet. Tried, not guessed."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
