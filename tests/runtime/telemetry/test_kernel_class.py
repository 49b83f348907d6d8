"""FlashInfer's kernel class on its real releases, and on copies of them edited one way each."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hisparse_guard.runtime.telemetry.build_class import KERNEL_FILE, Kernel, kernel_class
from tests.runtime.telemetry.kernel_classes import CLASSES
from tests.support import flashinfer

DOCS = Path(__file__).resolve().parents[3] / "docs" / "kernel-class.md"
OLD, RACES, WAITS = "0.6.12", "0.7.2.post1", "0.7.4"
EVERY_SHAPE = pytest.mark.parametrize("version", [OLD, RACES, WAITS])


def text_of(version: str) -> str:
    return (flashinfer.release(version) / flashinfer.KERNEL).read_text()


def package(home: Path, *texts: str, below: str = "flashinfer/comm") -> str:
    """A FlashInfer package below `home` that holds these kernel files."""
    root = home / "flashinfer"
    root.mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        folder = root / "data" / "include" / below / (str(number) if number else "")
        folder.mkdir(parents=True)
        (folder / KERNEL_FILE).write_text(text)
    return str(root)


def replaced(text: str, old: str, new: str) -> str:
    assert old in text, f"the release no longer holds {old!r}"
    return text.replace(old, new)


def jit_cache(home: Path, version: str | None) -> None:
    (home / "flashinfer_jit_cache").mkdir()
    (home / "flashinfer_jit_cache" / "__init__.py").touch()
    if version:
        (home / f"flashinfer_jit_cache-{version}.dist-info").mkdir()


@pytest.mark.parametrize("version", flashinfer.RELEASES)
def test_releases(version: str) -> None:
    found = kernel_class([str(flashinfer.release(version) / "flashinfer")])
    assert found.label == CLASSES[version]
    assert found.reason
    assert "flashinfer" not in sys.modules


def test_the_docs_hold_the_table() -> None:
    rows = dict(re.findall(r"(?m)^\| (\d[\w.]*) \| `(\w+)` \|", DOCS.read_text()))
    read = {
        version: kernel_class([str(flashinfer.release(version) / "flashinfer")]).label
        for version in flashinfer.RELEASES
    }
    assert rows == read


def comments_off(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)


def comments_everywhere(text: str) -> str:
    return text.replace(";", "; // __cluster_barrier_wait();\n/* void ctaArrive() { */")


def spaced(text: str) -> str:
    return re.sub(r"([(){};.])(?!\d)", r" \1 \n\t ", comments_off(text)).replace("  \n", "\r\n")


def renamed(text: str) -> str:
    text = re.sub(r"\bcluster\b", "blocksOfToken", text)
    return re.sub(r"\btid\b", "thread", re.sub(r"\bUseCGA\b", "kWide", text))


@EVERY_SHAPE
@pytest.mark.parametrize("edit", [comments_off, comments_everywhere, renamed])
def test_the_same_code_written_otherwise(
    tmp_path: Path, version: str, edit: Callable[[str], str]
) -> None:
    assert kernel_class([package(tmp_path, edit(text_of(version)))]).label == CLASSES[version]


@EVERY_SHAPE
def test_other_white_space(tmp_path: Path, version: str) -> None:
    text = text_of(version)
    start = text.index("void ctaArrive()")
    body = re.sub(r"(?m)^(?!#)(.*)$", lambda line: spaced(line[1]), text[start : start + 900])
    edited = text[:start] + body + text[start + 900 :]
    assert kernel_class([package(tmp_path, edited)]).label == CLASSES[version]


@EVERY_SHAPE
def test_a_moved_file_is_found(tmp_path: Path, version: str) -> None:
    root = package(tmp_path, text_of(version), below="flashinfer/comm/mnnvl/kernels")
    assert kernel_class([root]).label == CLASSES[version]


WAIT = "__cluster_barrier_wait();"


@pytest.mark.parametrize(
    ("version", "old", "new"),
    [
        # Only one block waits.
        (WAITS, WAIT, f"if (cluster.block_rank() == 0) {{ {WAIT} }}"),
        (WAITS, WAIT, f"if (threadIdx.x >= 32) return; {WAIT}"),
        (WAITS, WAIT, f"// {WAIT}"),
        (WAITS, WAIT, f"#if OLD\n{WAIT}\n#endif"),
        (WAITS, "if constexpr (UseCGA)", "if constexpr (!UseCGA)"),
        (WAITS, "__cluster_barrier_arrive();", "__cluster_barrier_arrive_relaxed();"),
        (WAITS, "flag.ctaArrive();", ""),
        (OLD, "cluster.sync();", "if (threadIdx.x < 32) { cluster.sync(); }"),
        (OLD, "__CUDA_ARCH__ >= 900", "__CUDA_ARCH__ >= 1000"),
        # A fork that mended it elsewhere.
        (RACES, "flag.ctaArrive();", "flag.ctaArrive(); cluster.sync();"),
        (RACES, "&& threadIdx.x < 32", ""),
        (RACES, "void ctaArrive()", "void ctaArriveAll()"),
        (
            RACES,
            "  __device__ void ctaArrive() {",
            "#if 0\nvoid ctaArrive() {}\n#endif\nvoid ctaArrive() {",
        ),
    ],
)
def test_a_shape_that_nobody_knows_is_unknown(
    tmp_path: Path, version: str, old: str, new: str
) -> None:
    found = kernel_class([package(tmp_path, replaced(text_of(version), old, new))])
    assert found.label == "unknown"


def test_copies_that_differ_are_unknown(tmp_path: Path) -> None:
    root = package(tmp_path, text_of(RACES), text_of(WAITS), below="elsewhere")
    assert kernel_class([root]).label == "unknown"


def test_no_file_and_no_package(tmp_path: Path) -> None:
    missing = Kernel("unknown", f"no {KERNEL_FILE}")
    assert kernel_class([package(tmp_path)]) == missing
    assert kernel_class([str(tmp_path / "absent")]) == missing
    assert kernel_class([]) == missing


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    root = Path(package(tmp_path, "void ctaArrive() {"))
    file = next(root.rglob(KERNEL_FILE))
    assert kernel_class([str(root)]).label == "unknown"
    file.write_bytes(b"\xff\xfe\x00" * 1000)
    assert kernel_class([str(root)]).label == "unknown"
    file.unlink()
    file.mkdir()
    assert "cannot be read" in kernel_class([str(root)]).reason


def test_jit_cache_is_used_whatever_the_source_says(tmp_path: Path) -> None:
    root = package(tmp_path, text_of(WAITS))
    jit_cache(tmp_path, "0.7.4")
    found = kernel_class([root])
    assert found.label == "unknown"
    assert "flashinfer-jit-cache" in found.reason


def test_jit_cache_elsewhere_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    jit_cache(tmp_path / "other", "0.7.4")
    monkeypatch.syspath_prepend(tmp_path / "other")
    assert kernel_class([package(tmp_path, text_of(WAITS))]).label == "unknown"
