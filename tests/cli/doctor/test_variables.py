"""The guard's settings and vLLM's variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from hisparse_guard.cli.doctor.render import as_json
from tests.cli.doctor.support import ALL_REDUCE, bare, doctor, edit, metadata, said
from tests.support.environments import vllm_release

MAIN = "if __name__ == '__main__':\n    from vllm.entrypoints.cli.main import main\n    main()\n"


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
    assert said(result, "VLLM_FLASHINFER_ALLREDUCE_BACKEND").startswith("fix: mnnvl overrides")


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
    told = said(doctor(bundle, tree, words=words), "ray")
    assert "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY=PYTHONPATH" in told
    result = doctor(
        bundle,
        tree,
        words=words,
        VLLM_RAY_EXTRA_ENV_VARS_TO_COPY="PYTHONPATH",
        VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY="HISPARSE_GUARD_",
    )
    assert "\n" not in said(result, "ray")


@pytest.mark.parametrize(
    "arguments",
    [
        "--distributed-executor-backend ray",
        "--distributed_executor_backend=ray",
        "--distributed-executor-backend own.module.Executor",
        "--config ray.yaml",
        "--config missing.yaml",
    ],
)
def test_whether_raylets_have_the_guard_cannot_be_told(
    bundle: Path, tree: Path, tmp_path: Path, arguments: str
) -> None:
    (tmp_path / "ray.yaml").write_text("distributed-executor-backend: ray\n")
    text = f"exec {bare()} -m vllm serve m {arguments}"
    result = doctor(bundle, tree, python=Path("/bin/sh"), words=("-c", text))
    assert (result.verdict.advice, result.exit_code) == ("cannot tell", 1)
    assert "from the raylet" in result.verdict.reason
    (tmp_path / "none.yaml").write_text("tensor-parallel-size: 8\n")
    for harmless in ("--distributed-executor-backend mp", "--config none.yaml"):
        words = ("-c", text.replace(arguments, harmless))
        assert said(doctor(bundle, tree, python=Path("/bin/sh"), words=words), "ray") == ""
    # Without HiSparse there is nothing to guard in them.
    result = doctor(bundle, vllm_release("0.24.0"), words=("-m", "vllm", *arguments.split()))
    assert result.verdict.advice == "not needed"


@pytest.mark.parametrize("place", ["behind", "in front"])
@pytest.mark.parametrize(
    ("code", "advice", "text"),
    [
        ("['HISPARSE_GUARD_MODE'] = 'off'", "needed", "MODE=off keeps the guard out"),
        (".pop('PYTHONPATH')", "cannot tell", "from PYTHONPATH, so whether the processes"),
    ],
)
def test_variables_that_the_images_own_start_changes(
    tree: Path, bundle: Path, tmp_path: Path, place: str, code: str, advice: str, text: str
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text(f"import os\nos.environ{code}\n")
    both = (bundle, other) if place == "behind" else (other, bundle)
    result = doctor(*both, tree)
    assert (result.verdict.advice, result.exit_code) == (advice, 1)
    assert text in result.verdict.reason
    assert "the start of this Python changes" in said(result, "environment")


def test_values_of_variables_are_not_told(tree: Path, bundle: Path) -> None:
    result = doctor(bundle, tree, VLLM_API_KEY="a-key-of-someones")
    assert "a-key-of-someones" not in as_json(result) + str(result)


@pytest.mark.parametrize("edited", ["envs", "resolver", "plugin"])
def test_the_one_variable_is_enough_only_where_it_is_obeyed(
    tree: Path, bundle: Path, edited: str
) -> None:
    name = "VLLM_FLASHINFER_ALLREDUCE_BACKEND"
    if edited == "envs":
        edit(tree, f'"{name}": env_with_choices(', f'"{name}": fixed_value(', "vllm/envs.py")
    elif edited == "resolver":
        edit(tree, 'if backend != "auto":', 'if backend == "mnnvl":', ALL_REDUCE)
    else:
        (tree / "plugin.py").write_text(f"import os\nos.environ['{name}'] = 'auto'\n")
        points = "[vllm.general_plugins]\nown = plugin:register\n"
        (metadata(tree, "own", "1", "plugin.py") / "entry_points.txt").write_text(points)
    result = doctor(bundle, tree, VLLM_FLASHINFER_ALLREDUCE_BACKEND="trtllm")
    assert result.verdict.advice != "not needed"


@pytest.mark.parametrize(
    "code",
    [
        "for name in list(os.environ):\n    del os.environ[name]",
        "os.environ.update(PYTHONPATH='')",
        "os.environ = {}",
        "os.environ[chr(80) + 'ATH'] = ''",
        "sys.executable = '/usr/bin/python3'",
        "setattr(sys, 'meta_path', [])",
    ],
)
def test_launchers_that_change_what_their_children_get(
    tree: Path, bundle: Path, tmp_path: Path, code: str
) -> None:
    script = tmp_path / "serve"
    script.write_text(f"#!{bare()}\nimport os, sys\n{code}\n{MAIN}")
    script.chmod(0o755)
    result = doctor(bundle, tree, python=script, words=("serve",))
    assert (result.verdict.advice, result.exit_code) == ("cannot tell", 1)


@pytest.mark.parametrize(
    "way", ["sys.executable = ", "import multiprocessing as m; m.set_executable("]
)
def test_another_python_for_the_processes_that_the_server_starts(
    tree: Path, bundle: Path, tmp_path: Path, way: str
) -> None:
    other, isolated = tmp_path / "other", tmp_path / "isolated"
    other.mkdir()
    isolated.write_text(f'#!/bin/sh\nexec {bare()} -I "$@"\n')
    isolated.chmod(0o755)
    end = ")" if "(" in way else ""
    (other / "sitecustomize.py").write_text(f"import sys; {way}{str(isolated)!r}{end}\n")
    result = doctor(bundle, other, tree)
    assert (result.verdict.advice, result.exit_code) == ("not able", 1)
    assert f"by {isolated}, do not get the guard" in said(result, "way in")
    # Without the guard they are as good as this one is.
    assert "do not get" not in said(doctor(other, tree), "way in")
