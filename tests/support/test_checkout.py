"""Setting up a checkout: what fails is one line, and a later run begins again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.startup.sandbox import ROOT


def make(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "-C", folder, *words],
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "README.md", "LICENSE", "hisparse_guard"):
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, tmp_path / name)
    shutil.copytree(ROOT / "tests" / "support", tmp_path / "tests" / "support")
    (tmp_path / "tests" / "__init__.py").touch()
    return tmp_path


def test_no_network(checkout: Path) -> None:
    # An index where nobody listens, and no configuration that names another one.
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull}
    done = make(checkout, "demo", f"PYTHON={sys.executable}", **nowhere)
    assert done.returncode == 2
    line, makes_own = done.stderr.splitlines()
    assert line.startswith(f"{checkout}/.venv: packages: no connection; check the network"), line
    assert "run the same command again" in line and makes_own.startswith("make"), done.stderr
    assert not (checkout / ".venv" / ".ready").exists(), "the next run would not try again"


def test_a_python_that_is_too_old(checkout: Path, tmp_path: Path) -> None:
    old = tmp_path / "python3"
    # No such Python need be here: it runs the line with another version number.
    version = "import sys; sys.version_info = (3, 9, 0)"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{version}\n$2"\n')
    old.chmod(0o755)
    done = make(checkout, "test", f"PYTHON={old}")
    line, _ = done.stderr.splitlines()
    assert line == "Python 3.10 or newer is needed: make PYTHON=python3.12 …"
