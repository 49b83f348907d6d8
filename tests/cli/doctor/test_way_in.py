"""How the guard gets in, and what keeps it out."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import pytest

from hisparse_guard.cli.doctor.examine import examine
from tests.cli.doctor.support import ROOT, bare, doctor, said
from tests.support.environments import vllm_release

MAIN = "from vllm.entrypoints.cli.main import main\n"


@pytest.mark.parametrize("option", ["-I", "-E", "-IS"])
def test_options_that_ignore_pythonpath(bundle: Path, tree: Path, option: str) -> None:
    result = doctor(bundle, tree, words=(option, "-m", "vllm"))
    assert result.exit_code == 1
    assert f"ignores PYTHONPATH: it runs with {option}" in said(result, "way in")
    # vLLM came by PYTHONPATH too: the reason is what to mend.
    assert result.verdict.advice == "cannot tell"
    assert "ignores PYTHONPATH" in result.verdict.reason


def test_no_site(bundle: Path, tree: Path) -> None:
    """The plugin is left, since the bundle's metadata is on PYTHONPATH."""
    result = doctor(bundle, tree, words=("-S", "-m", "vllm"))
    assert "started with -S" in said(result, "sitecustomize")
    assert said(result, "way in").startswith("note: by vLLM's plugin loading only")
    result = doctor(bundle, tree, words=("-S", "-m", "vllm"), VLLM_PLUGINS="other")
    assert said(result, "way in").startswith("fix: ")
    assert result.verdict.advice == "not able"


def test_a_first_line_that_ignores_pythonpath(bundle: Path, tree: Path, tmp_path: Path) -> None:
    script = tmp_path / "vllm"
    script.write_text(f"#!{bare()} -I\n{MAIN}")
    script.chmod(0o755)
    result = doctor(bundle, tree, python=script, words=("serve",))
    assert "it runs with -I" in said(result, "way in")
    script.write_text(f"#!{bare()}\n{MAIN}")
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
    assert (result.verdict.advice, result.exit_code) == ("not able", 1)
    # vLLM loads the plugin all the same, where it may.
    result = doctor(other, bundle, tree)
    assert said(result, "way in").startswith("note: by vLLM's plugin loading only")
    # The right way round it shadows the other one, and runs it.
    result = doctor(bundle, other, tree)
    assert f"it shadows {other}/sitecustomize.py, and runs it" in said(result, "sitecustomize")


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
    assert result.verdict.advice == "not able"


def test_switched_off(bundle: Path, tree: Path) -> None:
    result = doctor(bundle, tree, HISPARSE_GUARD_MODE="off")
    assert "HISPARSE_GUARD_MODE=off keeps the guard out" in result.verdict.reason
    for path in ((bundle, tree), (tree,)):
        result = doctor(*path, HISPARSE_GUARD_MODE="off")
        assert said(result, "mode").startswith("fix: off")
        if bundle in path:
            assert "it does not wait for vLLM's import" in said(result, "sitecustomize")
        assert result.exit_code == 1
    result = doctor(bundle, vllm_release("0.24.0"), HISPARSE_GUARD_MODE="off")
    assert (result.verdict.advice, said(result, "mode")) == ("not needed", "")


def test_a_script_started_from_the_checkout(
    bundle: Path, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source there, without wrapt, is on the path of `python -m` and of no script."""
    monkeypatch.chdir(ROOT)
    script = tmp_path / "vllm"
    script.write_text(f"#!{bare()}\n{MAIN}")
    script.chmod(0o755)
    (tmp_path / "sitecustomize.py").write_text("")
    result = doctor(bundle, tree, python=script, words=("serve",))
    assert said(result, "way in").startswith("ok: by sitecustomize")
    # `site` runs before the script's folder is put on the path.
    assert "shadows" not in said(result, "sitecustomize")


def test_env_is_seen_through(bundle: Path, tree: Path) -> None:
    words = ["env", f"PYTHONPATH={bundle}:{tree}", "HISPARSE_GUARD_MODE=strict", str(bare())]
    result = examine([*words, "-m", "vllm"], {"PATH": os.environ["PATH"], "HOME": "/nonexistent"})
    assert said(result, "way in").startswith("ok: by sitecustomize")
    assert "mode strict" in said(result, "settings")
    result = examine(["env"], os.environ)
    assert "env starts no command" in said(result, "command")


def test_run_is_seen_through(tree: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(tree)}
    script = str(Path(sys.executable).with_name("hisparse-guard"))
    for before in ([script], [sys.executable, "-m", "hisparse_guard"], ["env", "A=b", script]):
        for more in (["run", "--"], ["run"], ["run", "--no-check", "--"]):
            result = examine([*before, *more, sys.executable, "-m", "vllm"], environment)
            assert said(result, "way in").startswith("ok: by sitecustomize"), (before, more)


@pytest.mark.parametrize(
    ("word", "text"), [("no-such-program", "no such program"), ("ls", "is not a Python program")]
)
def test_commands_that_are_no_python(word: str, text: str) -> None:
    result = examine([word], os.environ)
    assert (result.verdict.advice, result.exit_code) == ("cannot tell", 1)
    assert text in said(result, "command")


def test_a_python_that_does_not_start(tmp_path: Path) -> None:
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\necho oh no >&2\nexit 3\n")
    broken.chmod(0o755)
    result = doctor(python=broken)
    assert "exit 3: oh no" in said(result, "python")
