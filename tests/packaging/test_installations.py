"""The sdist and the wheel, installed as users install them, on each CPython of this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hisparse_guard import __version__
from hisparse_guard.__main__ import NEEDED
from tests.startup.sandbox import ROOT
from tests.support import environments
from tests.support.interpreters import SUPPORTED, interpreter

UV = environments.uv()
DATA = ROOT / "tests" / "data"
# Of a virtual environment: this one's, and the folder of these tests, must not be seen.
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in ("PYTHONPATH", "VIRTUAL_ENV") and not name.startswith("HISPARSE_GUARD_")
} | {"UV_NATIVE_TLS": "1", "UV_NO_PROGRESS": "1"}
LOAD = """
import importlib.resources as resources
from importlib.metadata import entry_points
(point,) = entry_points(group="vllm.general_plugins", name="hisparse_guard")
print(point.load().__name__, (resources.files("hisparse_guard") / "py.typed").is_file())
"""


def run(*command: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [os.fspath(word) for word in command],
        env=ENVIRONMENT | more,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def output(*command: str | Path, **more: str) -> str:
    done = run(*command, **more)
    assert done.returncode == 0, done
    return done.stdout


@pytest.mark.parametrize("version", SUPPORTED)
def test_the_sdist_without_the_extra_and_the_wheel_with_it(
    version: str, sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    found = interpreter(version)
    if found is None:
        pytest.skip(f"no CPython {version} on this machine")
    output(UV, "venv", "-q", "--python", found, tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    command = python.with_name("hisparse-guard")

    output(UV, "pip", "install", "-q", "--python", python, sdist)
    assert output(python, "-c", LOAD) == "register True\n"
    bare = run(command, "--version")
    assert (bare.returncode, bare.stdout, bare.stderr.count("\n")) == (2, "", 1), bare
    assert "needs typer, which is not installed here; for all commands run: pip" in bare.stderr
    assert " ".join(name for name in NEEDED if name != "tomli") in bare.stderr
    # For exec probes, which run in the image.
    assert "--base-url" in output(command, "probe", "--help")

    output(UV, "pip", "install", "-q", "--python", python, f"{wheel}[cli]")
    assert output(command, "--version") == f"hisparse-guard {__version__}\n"
    entry = Path(output(command, "path").strip())
    assert (entry / "sitecustomize.py").is_file() and entry.is_relative_to(python.parents[1])
    # Of each library that the commands use, something.
    done = run(command, "triage", DATA / "logs" / "main-crash.log")
    assert (done.returncode, done.stderr) == (1, ""), done
    page, metrics = tmp_path / "report.html", tmp_path / "hisparse.prom"
    evidence = DATA / "evidence"
    run(command, "report", evidence, "--html", page, "--prometheus", metrics)
    assert "</html>" in page.read_text() and "hisparse_guard" in metrics.read_text()
    assert "try: hisparse-guard ramp --help" in run(command, "ramp").stderr
    sums = [bundle(command, tmp_path / f"{seed}.zip", seed) for seed in ("1", "2")]
    assert sums[0] == sums[1]


def bundle(command: Path, target: Path, seed: str) -> str:
    """The sha256 that `bundle` prints."""
    said = output(command, "bundle", target, PYTHONHASHSEED=seed)
    found = re.search(r"\b[0-9a-f]{64}\b", said)
    assert found is not None, said
    return found[0]


def test_uv_tool_install(wheel: Path, tmp_path: Path) -> None:
    folders = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    output(UV, "tool", "install", "-q", f"{wheel}[cli]", **folders)
    said = output(tmp_path / "bin" / "hisparse-guard", "--version")
    assert said == f"hisparse-guard {__version__}\n"


def test_pipx_run(wheel: Path, tmp_path: Path) -> None:
    pipx = [UV, "tool", "run", "-q", "pipx", "run"]
    more = {"PIPX_HOME": str(tmp_path / "pipx"), "UV_TOOL_DIR": str(tmp_path / "tools")}
    command = [*pipx, "--python", sys.executable, "--spec", f"{wheel}[cli]", "hisparse-guard"]
    assert output(*command, "--version", **more) == f"hisparse-guard {__version__}\n"


def test_shell_completion_in_bash(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None, "bash is needed"
    script = """
set -eu
eval "$(hisparse-guard --show-completion bash)"
complete -p hisparse-guard | grep -q _hisparse_guard_completion
for line in 'hisparse-guard re' 'hisparse-guard report --ht' 'hisparse-guard bundle x --format '; do
  read -ra COMP_WORDS <<< "$line"
  [ "${line% }" = "$line" ] || COMP_WORDS+=('')
  COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
  _hisparse_guard_completion hisparse-guard
  echo "${COMPREPLY[*]}"
done
"""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # typer asks the processes above it which shell this is: a file, so that bash is one of them.
    (tmp_path / "try.sh").write_text(script)
    lines = output(bash, tmp_path / "try.sh", PATH=path).splitlines()
    assert lines == ["report", "--html", "dir zip configmap"]
