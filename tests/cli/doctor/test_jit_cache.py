"""What the version of a compiled kernel suggests, and that it is said as no proof."""

from __future__ import annotations

from pathlib import Path

import pytest

from hisparse_guard.cli.doctor.jit_cache import JitCache, jit_cache
from tests.runtime.telemetry import test_kernel_class


@pytest.mark.parametrize(
    ("version", "suggestion"),
    [
        ("0.6.12", "waits"),
        ("0.6.13", "races"),
        ("0.7.2.post1+cu130", "races"),
        ("0.7.3", None),
        ("0.7.4+cu129", "waits"),
        ("0.5.2", None),
        (None, None),
    ],
)
def test_the_version_suggests_a_class(
    tmp_path: Path, version: str | None, suggestion: str | None
) -> None:
    root = test_kernel_class.package(tmp_path)
    assert jit_cache([root]) is None
    test_kernel_class.jit_cache(tmp_path, version)
    assert jit_cache([root]) == JitCache(version, suggestion)  # type: ignore[arg-type]
