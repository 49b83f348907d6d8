"""No "not needed" and no "the guard gets in" that is not shown: real code, edited."""

from __future__ import annotations

import os
import py_compile
import shutil
import time
from pathlib import Path

import pytest

from tests.cli.doctor.support import ALL_REDUCE, bare, doctor, edit, image, metadata, said
from tests.support.environments import vllm_release

DEF_RESOLVER = "def _resolve_fi_ar_backend(group: ProcessGroup) -> tuple[str | None, bool]:"
LAST_ANSWER = "    return backend, allow_trtllm_fallback\n"


@pytest.mark.parametrize(
    ("old", "new", "level", "text"),
    [
        (
            DEF_RESOLVER,
            DEF_RESOLVER.replace("_resolve_fi_ar_backend", "_pick_backend"),
            "fix",
            "has no _resolve_fi_ar_backend: there the guard cannot act",
        ),
        (DEF_RESOLVER, "async " + DEF_RESOLVER, "fix", "is a coroutine function"),
        (
            "def _create_workspace(",
            "class _create_workspace:\n    pass\n\n\ndef _create_it(",
            "fix",
            "is a class and no function",
        ),
        (LAST_ANSWER, "    return backend, allow_trtllm_fallback, 3\n", "fix", "a shape that"),
        (LAST_ANSWER, "    return {'backend': backend}\n", "unknown", "cannot be told"),
        (LAST_ANSWER, "    return Choice(backend)\n", "unknown", "cannot be told"),
        (LAST_ANSWER, "    return 'nccl', False\n", "fix", "('nccl', False), a shape that"),
        (
            LAST_ANSWER,
            "    backend, f = pick(group)\n    return backend, f\n",
            "unknown",
            "unpacks",
        ),
        (LAST_ANSWER, "    yield backend, False\n", "unknown", "it is a generator"),
        (DEF_RESOLVER, "@traced\n" + DEF_RESOLVER, "unknown", "is decorated with traced"),
        (
            "def get_fi_ar_workspace(",
            "from vllm._compiled import _resolve_fi_ar_backend\n\n\ndef get_fi_ar_workspace(",
            "unknown",
            "in more than one way",
        ),
        (
            DEF_RESOLVER,
            "def cache(f):\n    return None\n\n\n@cache\n" + DEF_RESOLVER,
            "unknown",
            "is decorated with cache",
        ),
        (
            DEF_RESOLVER,
            f'setattr(sys, "_resolve_fi_ar_backend", None)\n\n\n{DEF_RESOLVER}',
            "unknown",
            "it calls setattr",
        ),
        *(
            (DEF_RESOLVER, f"{code}\n\n\n{DEF_RESOLVER}", "unknown", "in more than one way")
            for code in (
                "(_resolve_fi_ar_backend := None)",
                "try:\n    pass\nexcept OSError as _resolve_fi_ar_backend:\n    pass",
                "match 1:\n    case _resolve_fi_ar_backend:\n        pass",
                'vars()["_resolve_fi_ar_backend"] = None',
            )
        ),
    ],
)
def test_what_a_patch_needs(
    tree: Path, bundle: Path, old: str, new: str, level: str, text: str
) -> None:
    edit(tree, old, new)
    result = doctor(bundle, tree)
    assert f"{level}: " in said(result, "patches")
    assert text in said(result, "patches")
    advice = {"fix": "not able", "unknown": "cannot tell"}[level]
    assert (result.verdict.advice, result.exit_code) == (advice, 1)


def test_a_config_without_its_context(tree: Path, bundle: Path) -> None:
    for name in ("vllm", "__init__"):
        edit(tree, "set_current_vllm_config", "use_config", f"vllm/config/{name}.py")
    result = doctor(bundle, tree)
    assert "fix: vllm.config.vllm has no set_current_vllm_config" in said(result, "patches")


def test_hisparse_under_another_name_is_not_absent(tree: Path, bundle: Path) -> None:
    for file in (tree / "vllm" / "config").rglob("*.py"):
        file.write_text(file.read_text().replace("hisparse_config", "sparse_host_config"))
    result = doctor(bundle, tree)
    assert said(result, "build class").startswith("ok: no-hisparse")
    assert "yet HiSparse is named in" in said(result, "signs")
    assert (result.verdict.advice, result.exit_code) == ("cannot tell", 1)


def test_a_workspace_that_is_made_elsewhere(tree: Path, bundle: Path) -> None:
    moved = tree / "vllm/distributed/device_communicators/fi_comm.py"
    (tree / ALL_REDUCE).rename(moved)
    result = doctor(bundle, tree)
    assert said(result, "build class").startswith("ok: no-fi-allreduce")
    assert "FlashInfer's workspace is made elsewhere" in said(result, "signs")
    assert (result.verdict.advice, result.exit_code) == ("cannot tell", 1)


def test_a_second_maker_of_workspaces(tree: Path, bundle: Path) -> None:
    second = tree / "vllm/distributed/second.py"
    second.write_text("import flashinfer\nflashinfer.comm.create_allreduce_fusion_workspace()\n")
    result = doctor(bundle, tree)
    assert "is also named in distributed/second.py" in said(result, "signs")
    assert (result.verdict.advice, result.exit_code) == ("cannot tell", 1)


@pytest.mark.parametrize("version", ["0.33.0", "0.24.0"])
@pytest.mark.parametrize("what", ["folder", "dangling link", "pipe"])
@pytest.mark.parametrize("file", [ALL_REDUCE, "vllm/v1/hisparse.py", "vllm/config/more.py"])
def test_what_cannot_be_read_is_not_absent(
    tmp_path: Path, bundle: Path, version: str, what: str, file: str
) -> None:
    tree = tmp_path / "image"
    shutil.copytree(
        vllm_release(version) / "vllm" / "config", tree / "vllm" / "config", symlinks=True
    )
    shutil.copytree(
        vllm_release(version) / "vllm/distributed/device_communicators",
        tree / "vllm/distributed/device_communicators",
    )
    for package in ("vllm", "vllm/distributed", "vllm/v1", "flashinfer"):
        (tree / package).mkdir(exist_ok=True)
        (tree / package / "__init__.py").write_text("")
    place = tree / file
    place.unlink(missing_ok=True)
    if what == "folder":
        place.mkdir()
    elif what == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to("/nonexistent/source.py")
    result = doctor(bundle, tree)
    assert "cannot be read" in said(result, "signs")
    assert (result.verdict.advice, result.exit_code) == ("cannot tell", 1)


@pytest.mark.parametrize("name", ["flashinfer_all_reduce.cpython-311-x86_64-linux-gnu.so", "x.so"])
def test_compiled_modules(tree: Path, bundle: Path, name: str) -> None:
    source = tree / ALL_REDUCE
    source.with_name(name).write_bytes(b"\x7fELF\0create_allreduce_fusion_workspace\0")
    if name != "x.so":
        source.unlink()
    result = doctor(bundle, tree)
    assert (result.verdict.advice, result.exit_code) == ("cannot tell", 1)


def test_no_hisparse_but_in_a_compiled_module(tmp_path: Path, bundle: Path) -> None:
    tree = image(tmp_path / "old", "0.33.0")
    shutil.rmtree(tree / "vllm" / "v1" / "hisparse")
    shutil.rmtree(tree / "vllm" / "config")
    shutil.copytree(vllm_release("0.24.0") / "vllm" / "config", tree / "vllm" / "config")
    for file in (tree / "vllm" / "compilation").rglob("*.py"):
        file.unlink()
    assert doctor(bundle, tree).verdict.advice == "not needed"
    (tree / "vllm" / "_C.abi3.so").write_bytes(b"\x7fELF" + bytes(1 << 23) + b"hisparse_copy\0")
    result = doctor(bundle, tree)
    assert "HiSparse is named in _C.abi3.so" in said(result, "signs")
    assert (result.verdict.advice, result.exit_code) == ("cannot tell", 1)


def test_the_one_variable_counts_where_the_code_reads_it(tree: Path, bundle: Path) -> None:
    variable = {"VLLM_FLASHINFER_ALLREDUCE_BACKEND": "trtllm"}
    assert doctor(bundle, tree, **variable).verdict.advice == "not needed"
    edit(tree, "envs.VLLM_FLASHINFER_ALLREDUCE_BACKEND", '"auto"')
    assert doctor(bundle, tree, **variable).verdict.advice != "not needed"


def test_observe_and_keep_say_what_they_leave_open(tree: Path, bundle: Path) -> None:
    result = doctor(bundle, tree, HISPARSE_GUARD_MODE="observe")
    assert said(result, "mode").startswith("fix: observe: the guard records and changes nothing")
    assert result.exit_code == 1 and "mnnvl is still made" in result.verdict.reason
    result = doctor(bundle, tree, HISPARSE_GUARD_MULTINODE="keep")
    assert "is left with vLLM's mnnvl" in said(result, "multinode")
    assert "MULTINODE=keep" in result.verdict.reason


def test_a_sitecustomize_that_waits(
    tree: Path, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hisparse_guard.cli.interpreter.PROBE_S", 2.0)
    there = tmp_path / "there"
    there.mkdir()
    (there / "sitecustomize.py").write_text(
        "import os, subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\nchild.wait()\n"
    )
    result = doctor(bundle, there, tree)
    assert (result.verdict.advice, result.exit_code) == ("cannot tell", 1)
    assert "could not be checked" in result.verdict.reason
    assert "--no-check" in result.verdict.reason
    # What it had started is ended with it, soon; a zombie has no command line.
    command = Path("/proc", (tmp_path / "child").read_text(), "cmdline")
    deadline = time.monotonic() + 30
    while command.exists() and command.read_bytes() != b"":
        assert time.monotonic() < deadline, "the child still runs"
        time.sleep(0.05)


def test_a_finder_in_front_that_answers_by_itself(tree: Path, bundle: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "sitecustomize.py").write_text(
        "import sys\nfrom importlib.machinery import PathFinder\n"
        "class Own:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        return PathFinder.find_spec(name, path) if name.startswith('vllm') else None\n"
        "sys.meta_path.insert(0, Own())\n"
    )
    result = doctor(bundle, there, tree)
    assert "by vLLM's plugin loading only" in said(result, "way in")
    assert "another finder (SourceFileLoader) answers for vllm." in said(result, "way in")
    result = doctor(bundle, there, tree, VLLM_PLUGINS="")
    assert said(result, "way in").startswith("fix: another finder")
    assert result.verdict.advice == "not able"


def test_names_do_not_reach_a_terminal_raw(tree: Path, bundle: Path) -> None:
    import subprocess
    import sys

    from tests.cli.doctor.support import ROOT

    odd = tree.with_name("odd\x1b[31m\udcff")
    tree.rename(odd)
    done = subprocess.run(
        [sys.executable, "-m", "hisparse_guard", "doctor", "--", str(bare()), "-m", "vllm"],
        cwd="/",
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(bundle), str(odd)]),
            "VLLM_ALLREDUCE_USE_FLASHINFER": "9" * 5000,
            "HISPARSE_GUARD_MODE": "\x1b[2J",
        },
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1 and b"Traceback" not in done.stderr, done
    assert b"\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "code",
    [
        "from vllm.distributed.device_communicators import flashinfer_all_reduce as fi\n"
        "fi._resolve_fi_ar_backend = None\n",
        "import sys\nsys.modules['vllm.config'] = None\n",
        "NAME = '_resolve_fi_ar_backend'\n",
    ],
)
def test_other_code_that_replaces_what_the_guard_patches(
    tree: Path, bundle: Path, code: str
) -> None:
    (tree / "vllm" / "replacing.py").write_text(code)
    result = doctor(bundle, tree)
    assert "replacing.py has" in said(result, "patches")
    assert result.verdict.advice == "cannot tell"


def test_a_package_whose_modules_are_found_elsewhere(tree: Path, bundle: Path) -> None:
    edit(tree, "import", "__path__.append('/opt/other')\nimport", "vllm/config/__init__.py")
    result = doctor(bundle, tree)
    assert "__path__.append(" in said(result, "patches")
    assert result.verdict.advice == "cannot tell"


@pytest.mark.parametrize("group", ["general_plugins", "platform_plugins"])
def test_a_plugin_that_makes_a_workspace_of_its_own(tree: Path, bundle: Path, group: str) -> None:
    (tree / "other.py").write_text("comm.create_allreduce_fusion_workspace()\n")
    home = metadata(tree, "other", "1", files="other.py")
    (home / "entry_points.txt").write_text(f"[vllm.{group}]\nother = other:register\n")
    result = doctor(bundle, tree)
    assert "a plugin that vLLM loads names FlashInfer's workspace" in said(result, "signs")
    assert result.verdict.advice == "cannot tell"


@pytest.mark.parametrize("group", ["general_plugins", "stat_logger_plugins"])
@pytest.mark.parametrize(
    "code",
    [
        "fi._resolve_fi_ar_backend = print",
        "setattr(fi, 'get_fi_ar_workspace', print)",
        f"sys.modules['{ALL_REDUCE[:-3].replace('/', '.')}'] = fi",
        None,
    ],
)
def test_a_plugin_that_replaces_what_the_guard_patches_or_is_not_found(
    tree: Path, bundle: Path, group: str, code: str | None
) -> None:
    """Also one in a package without an `__init__`."""
    home = metadata(tree, "other", "1.0", files="company/other.py")
    (home / "entry_points.txt").write_text(f"[vllm.{group}]\nother = company.other:register\n")
    if code is not None:
        (tree / "company").mkdir()
        (tree / "company" / "other.py").write_text(f"def register():\n    {code}\n")
    result = doctor(bundle, tree)
    assert (result.exit_code, result.verdict.advice) == (1, "cannot tell")
    assert "plugin" in said(result, "patches") + said(result, "signs")


def test_the_one_variable_in_a_comment_is_not_obeyed(tree: Path, bundle: Path) -> None:
    text = (tree / ALL_REDUCE).read_text()
    name = "envs.VLLM_FLASHINFER_ALLREDUCE_BACKEND"
    (tree / ALL_REDUCE).write_text(f"# {name}\n" + text.replace(name, "'auto'"))
    result = doctor(bundle, tree, VLLM_FLASHINFER_ALLREDUCE_BACKEND="trtllm")
    assert result.verdict.advice != "not needed"


def test_byte_code_that_python_runs_though_its_source_is_another(tree: Path, bundle: Path) -> None:
    """Unchecked hashes, as in images that are reproducible, and a source edited since."""
    source = tree / "vllm" / "v1" / "more.py"
    source.write_text("NAME = 'hisparse'\n")
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert doctor(bundle, tree).verdict.advice == "needed"
    source.write_text("NAME = 'nothing'\n")
    result = doctor(bundle, tree)
    assert (result.verdict.advice, result.exit_code) == ("cannot tell", 1)
    assert "made of another more.py" in said(result, "signs")


def test_a_module_that_holds_its_own_function_before_it_is_patched(
    tree: Path, bundle: Path
) -> None:
    edit(
        tree,
        "def get_fi_ar_workspace(",
        "_held = _resolve_fi_ar_backend\n\n\ndef get_fi_ar_workspace(",
    )
    result = doctor(bundle, tree)
    assert (result.verdict.advice, result.exit_code) == ("cannot tell", 1)
    assert "takes hold of _resolve_fi_ar_backend" in said(result, "patches")


def test_what_the_images_own_start_loads_is_searched_too(tmp_path: Path, bundle: Path) -> None:
    """A patch of vLLM that a sitecustomize or a .pth file brings, and no plugin."""
    tree, other = vllm_release("0.24.0"), tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import vllm_more\n")
    (other / "vllm_more.py").write_text("")
    assert doctor(bundle, other, tree).verdict.advice == "not needed"
    (other / "vllm_more.py").write_text("class HiSparseConfig: pass\n")
    result = doctor(bundle, other, tree)
    assert (result.verdict.advice, result.exit_code) == ("cannot tell", 1)
    assert "own start loads" in said(result, "signs")
