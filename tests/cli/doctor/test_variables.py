"""The guard's settings and vLLM's variables."""

from __future__ import annotations

from pathlib import Path

from tests.cli.doctor.support import doctor, said


def test_bad_values_are_named(tree: Path) -> None:
    result = doctor(
        tree,
        HISPARSE_GUARD_MODE="enforec",
        HISPARSE_GUARD_SPEED="9",
        VLLM_FLASHINFER_ALLREDUCE_BACKEND="trt",
        VLLM_ALLREDUCE_USE_FLASHINFER="yes",
    )
    settings = said(result, "settings")
    assert "HISPARSE_GUARD_MODE='enforec' is not valid" in settings
    assert "HISPARSE_GUARD_SPEED" in settings
    assert "'trt' is not valid" in said(result, "VLLM_FLASHINFER_ALLREDUCE_BACKEND")
    assert "'yes' is not valid" in said(result, "VLLM_ALLREDUCE_USE_FLASHINFER")


def test_mnnvl_by_hand_is_to_be_fixed(tree: Path) -> None:
    result = doctor(tree, VLLM_FLASHINFER_ALLREDUCE_BACKEND="mnnvl")
    assert said(result, "VLLM_FLASHINFER_ALLREDUCE_BACKEND").startswith("fix: mnnvl is obeyed")


def test_evidence_folders(tree: Path, tmp_path: Path) -> None:
    good, open_to_all, file = tmp_path / "good", tmp_path / "open", tmp_path / "file"
    good.mkdir(), open_to_all.mkdir(), file.write_text("")
    open_to_all.chmod(0o777)
    assert said(doctor(tree, HISPARSE_GUARD_EVIDENCE_DIR=str(good)), "evidence") == ""
    assert said(doctor(tree, HISPARSE_GUARD_EVIDENCE_DIR=str(good / "new")), "evidence") == ""
    assert not (good / "new").exists()
    for folder, why in (
        (open_to_all, "written to by others"),
        (file, "File exists"),
        (file / "below", "cannot be made"),
    ):
        result = doctor(tree, HISPARSE_GUARD_EVIDENCE_DIR=str(folder))
        assert why in said(result, "evidence") and said(result, "evidence").startswith("fix: ")


def test_ray_must_be_told(bundle: Path, tree: Path) -> None:
    words = ("-m", "vllm", "serve", "m", "--data-parallel-backend", "ray")
    assert "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY=PYTHONPATH" in said(
        doctor(bundle, tree, words=words), "ray"
    )
    result = doctor(
        bundle,
        tree,
        words=words,
        VLLM_RAY_EXTRA_ENV_VARS_TO_COPY="PYTHONPATH",
        VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY="HISPARSE_GUARD_",
    )
    assert said(result, "ray") == ""
