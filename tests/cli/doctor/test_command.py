"""The command itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.cli.doctor.support import ROOT, bare
from tests.support.bundles import hisparse_guard


def test_the_command(bundle: Path, tree: Path) -> None:
    path = os.pathsep.join(map(str, (bundle, tree)))
    words = ("--", str(bare()), "-m", "vllm", "serve", "--port", "8000")
    done = hisparse_guard("doctor", "--json", *words, PYTHONPATH=path)
    found = json.loads(done.stdout)
    assert (found["advice"], done.stderr) == ("needed", "")
    assert done.returncode == found["exit_code"]
    assert found["seen"]["classified"]["build"]["label"] == "unguarded"
    done = hisparse_guard("doctor", *words, PYTHONPATH=path)
    assert done.stdout.startswith("needed here: ")
    assert "unguarded" in done.stdout
    assert all(line == line.rstrip() for line in done.stdout.splitlines())


def test_this_python(tree: Path) -> None:
    done = hisparse_guard("doctor", PYTHONPATH=f"{ROOT}{os.pathsep}{tree}")
    assert f"at {sys.executable}" in done.stdout
    assert "unguarded" in done.stdout


def test_nothing_heavy_is_imported_here_either() -> None:
    code = (
        "import sys; from hisparse_guard.cli.doctor.examine import examine; import os;"
        "examine([], os.environ);"
        "sys.exit(bool({'vllm', 'torch', 'flashinfer', 'wrapt'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
