"""Runs cases of `program.py` with the guard in front, and without."""

from __future__ import annotations

import json
import os
import py_compile
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.startup.sandbox import ROOT, environment, write
from tests.support.environments import BASE_PYTHON, wrapt_path
from tests.worlds.builds import Shape, files

PROGRAM = Path(__file__).with_name("program.py")
# What arming would import in each child, so that a child costs a fork and little else.
STANDARD = (
    "logging",
    "json",
    "socket",
    "dis",
    "datetime",
    "inspect",
    "contextlib",
    "importlib.util",
    "atexit",
)
PRELOAD = (*STANDARD, "wrapt", "hisparse_guard.runtime.patching")


def laid_out(shape: Shape, folder: Path) -> Path:
    """Writes the package of `shape`; returns the entry for ``sys.path``."""
    write(folder, files(shape))
    if shape.form == "zip":
        archive = folder.with_suffix(".zip")
        with zipfile.ZipFile(archive, "w") as out:
            for file in sorted(folder.rglob("*.py")):
                out.write(file, file.relative_to(folder).as_posix())
        return archive
    if shape.form == "pyc":
        for file in sorted(folder.rglob("*.py")):
            py_compile.compile(os.fspath(file), cfile=os.fspath(file.with_suffix(".pyc")))
            file.unlink()
    return folder


def run(
    cases: Sequence[dict[str, Any]],
    guarded: bool,
    preload: Sequence[str] = PRELOAD,
    # Not this one: an editable installation puts the guard on its path.
    interpreter: Path | str = BASE_PYTHON,
    **env: str,
) -> dict[str, dict[str, Any]]:
    """The results of `cases` by name: ``exit``, ``stdout``, ``stderr``."""
    path = [ROOT, wrapt_path()] if guarded else [wrapt_path()]
    loaded = [n for n in preload if guarded or not n.startswith("hisparse_guard")]
    done = subprocess.run(
        [os.fspath(interpreter), os.fspath(PROGRAM)],
        input=json.dumps({"preload": loaded, "cases": list(cases)}),
        # Coroutines that nobody awaits are warned about whenever they are collected.
        env=environment(path, PYTHONWARNINGS="ignore:coroutine", **env),
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=570,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return {r["name"]: r for r in json.loads(done.stdout)}


def guard_lines(stderr: str) -> list[str]:
    """The guard's own lines, by their level."""
    return [line for line in stderr.splitlines() if "hisparse-guard:" in line]


def other_lines(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if "hisparse-guard:" not in line]


def trouble(stderr: str) -> set[str]:
    """The error lines about the guard itself; what it found out about a workspace is none."""
    return {
        line
        for line in guard_lines(stderr)
        if line.startswith("ERROR") and "hisparse-guard: workspace" not in line
    }


class Program:
    """The program of `program.py` on the plain package, under HiSparse."""

    def __init__(self, root: Path) -> None:
        self.path = str(laid_out(Shape("plain"), root / "plain"))
        self.unguarded = self.run([{}], guarded=False)[0]
        self.guarded = self.run([{}])[0]

    def run(self, changes: Sequence[dict[str, Any]], **how: Any) -> list[dict[str, Any]]:
        cases = [
            {
                "main": "",
                "path": [self.path],
                **change,
                "name": str(number),
                "env": {"SHAPE_HISPARSE": "1", **change.get("env", {})},
            }
            for number, change in enumerate(changes)
        ]
        results = run(cases, how.pop("guarded", True), **how)
        return [results[case["name"]] for case in cases]

    def as_guarded(self, result: dict[str, Any], most: int = 1) -> None:
        """The same answers, and at most so many lines of trouble."""
        self._as(result, self.guarded, most)
        assert result["stdout"] == self.guarded["stdout"], result

    def _as(self, result: dict[str, Any], other: dict[str, Any], most: int) -> None:
        assert (result["exit"], other_lines(result["stderr"])) == (
            other["exit"],
            other_lines(other["stderr"]),
        ), result
        found = trouble(result["stderr"])
        assert len(found) <= most, found
