"""A fault of the guard is one line, and standard error may be closed, full or anything."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.startup.sandbox import FAILS, environment, guard_folder, python, vllm_folder

PROGRAM = "import vllm.config; print('served')"


@pytest.fixture
def path(tmp_path: Path) -> list[Path]:
    """A guard that fails at the first module that it is to patch, and a vLLM."""
    guard = guard_folder(tmp_path / "guard", activate=FAILS)
    return [guard, vllm_folder(tmp_path / "image")]


@pytest.fixture
def damaged(tmp_path: Path) -> list[Path]:
    """A guard whose start fails, and a vLLM."""
    guard = guard_folder(tmp_path / "damaged")
    (guard / "hisparse_guard" / "__init__.py").write_text("raise RuntimeError('a fault')\n")
    return [guard, vllm_folder(tmp_path / "image")]


def lines_of_ours(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if "hisparse-guard: " in line]


@pytest.mark.parametrize("which", ["path", "damaged"])
def test_a_fault_is_one_line(which: str, request: pytest.FixtureRequest) -> None:
    done = python(PROGRAM, request.getfixturevalue(which))
    assert (done.returncode, done.stdout) == (0, "served\n"), done
    (line,) = done.stderr.splitlines()
    assert (
        line.startswith("hisparse-guard: ") and "unguarded" in line
    ) or "without the guard" in line
    assert "RuntimeError('a fault')" in line


@pytest.mark.parametrize("which", ["path", "damaged"])
@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full", "2>/dev/null"])
def test_standard_error_that_takes_nothing(
    which: str, stderr: str, request: pytest.FixtureRequest
) -> None:
    # The shell opens it, so that the interpreter starts with it so.
    done = subprocess.run(
        ["sh", "-c", f"exec {shlex.join([sys.executable, '-c', PROGRAM])} {stderr}"],
        env=environment(request.getfixturevalue(which)),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "served\n")


@pytest.mark.parametrize("which", ["path", "damaged"])
def test_standard_error_is_a_full_pipe(which: str, request: pytest.FixtureRequest) -> None:
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(writing, b"x" * 65536)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment(request.getfixturevalue(which)),
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=writing,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        os.close(reading)
        os.close(writing)
    assert (done.returncode, done.stdout) == (0, "served\n")


@pytest.mark.parametrize("stderr", ["None", "object()", "open('/dev/null')", "io.StringIO()"])
def test_the_program_has_another_standard_error(stderr: str, path: list[Path]) -> None:
    code = f"import io, sys; sys.stderr = {stderr}; {PROGRAM}; sys.stderr = sys.__stderr__"
    done = python(code, path)
    assert (done.returncode, done.stdout) == (0, "served\n"), done
