"""flashinfer-jit-cache: FlashInfer's kernels compiled, which only a version tells apart."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from hisparse_guard.runtime.telemetry.build_class import KernelClass, compiled_copy


class JitCache(NamedTuple):
    """An installed flashinfer-jit-cache.

    Attributes:
        version: None where its metadata is not beside it.
        suggestion: the kernel class of that release's source; a hint, not a reading.
    """

    version: str | None
    suggestion: KernelClass | None


def jit_cache(flashinfer_folders: Iterable[str]) -> JitCache | None:
    """The flashinfer-jit-cache that FlashInfer in these folders loads; None without one."""
    origin = compiled_copy(map(Path, flashinfer_folders))
    if origin is None:
        return None
    metadata = Path(origin).parent.parent.glob("flashinfer_jit_cache-*.dist-info")
    version = next((m.name.removesuffix(".dist-info").split("-")[1] for m in metadata), None)
    return JitCache(version, _suggestion(version or ""))


def _suggestion(version: str) -> KernelClass | None:
    """By the releases that were read: docs/kernel-class.md."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if (0, 6, 13) <= numbers < (0, 7, 3):
        return "races"
    if (0, 6, 10) <= numbers < (0, 6, 13) or numbers >= (0, 7, 4):
        return "waits"
    return None
