"""Whether the kernel of the trtllm workspace can be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.doctor.support import POISON, doctor, metadata, said

LIBRARY = Path("trtllm_comm", "trtllm_comm.so")


def library(home: Path) -> None:
    (home / LIBRARY).parent.mkdir(parents=True)
    (home / LIBRARY).write_bytes(b"")


def kernel(tree: Path, **variables: str) -> str:
    return said(
        doctor(tree, **{"PATH": "/nonexistent", "CUDA_HOME": "/nonexistent", **variables}), "kernel"
    )


def test_no_kernel(tree: Path) -> None:
    text = kernel(tree)
    assert text.startswith("fix: trtllm_comm cannot be had: no flashinfer-jit-cache; none in ")
    assert "nvcc, a C++ compiler and ninja would be needed" in text
    # Where it is not wanted, its absence is no fault.
    assert kernel(tree, HISPARSE_GUARD_BACKEND="none").startswith("note: ")


def test_a_kernel_in_the_package(tree: Path) -> None:
    library(tree / "flashinfer" / "data" / "aot")
    assert kernel(tree) == "ok: trtllm_comm is in the FlashInfer package"


@pytest.mark.parametrize(
    ("version", "home", "text"),
    [
        ("0.7.2.post1+cu130", "flashinfer_jit_cache/jit_cache", "ok: trtllm_comm is in flashinfer"),
        ("0.7.2.post1", "flashinfer_jit_cache_sm90/jit_cache", "ok: trtllm_comm is in flashinfer"),
        ("0.6.18", "flashinfer_jit_cache/jit_cache", "0.6.18 is not for FlashInfer 0.7.2.post1"),
        ("0.7.2.post1", "flashinfer_jit_cache/other", "holds no trtllm_comm"),
    ],
)
def test_a_kernel_in_the_jit_cache_package(tree: Path, version: str, home: str, text: str) -> None:
    (tree / "flashinfer_jit_cache").mkdir()
    (tree / "flashinfer_jit_cache" / "__init__.py").write_text(POISON)
    metadata(tree, "flashinfer-jit-cache", version, files="flashinfer_jit_cache/__init__.py")
    library(tree / home)
    assert text in kernel(tree)


def test_a_kernel_in_a_filled_cache(tree: Path, tmp_path: Path) -> None:
    library(tmp_path / ".cache/flashinfer/0.7.2.post1/90a/cached_ops")
    assert kernel(tree, FLASHINFER_WORKSPACE_BASE=str(tmp_path)).startswith("ok: ")
    assert kernel(tree, HOME=str(tmp_path)).startswith("ok: trtllm_comm is in the cache")
    # Of another version: FlashInfer does not look there.
    (tmp_path / ".cache/flashinfer/0.7.2.post1").rename(tmp_path / ".cache/flashinfer/0.6.0")
    assert kernel(tree, HOME=str(tmp_path)).startswith("fix: ")


def test_a_kernel_that_can_be_compiled(tree: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("nvcc", "c++", "ninja"):
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    text = kernel(tree, PATH=str(tools), CUDA_HOME="", HOME=str(tmp_path))
    assert (
        text
        == f"ok: trtllm_comm will be compiled on first use, which takes minutes, with {tools}/nvcc"
    )
    text = kernel(tree, PATH=str(tools), CUDA_HOME="", FLASHINFER_WORKSPACE_BASE="/proc")
    assert "/proc/.cache/flashinfer would have to be writable" in text
    (tools / "ninja").unlink()
    assert "ninja would be needed" in kernel(
        tree, PATH=str(tools), CUDA_HOME="", HOME=str(tmp_path)
    )
