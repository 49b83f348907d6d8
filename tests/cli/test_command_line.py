"""What all commands have in common: one line for wrong usage and for what is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hisparse_guard.__main__ import NEEDED
from tests.cli.report.samples import world
from tests.startup.sandbox import ROOT, environment
from tests.support.bundles import hisparse_guard

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_what_the_commands_need_is_what_the_package_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = {one.partition(">")[0] for one in project["optional-dependencies"]["cli"]}
    assert set(NEEDED) | {"tomli"} == said


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("typer", ["path"]),
        ("rich", ["doctor"]),
        ("httpx", ["ramp", "--base-url", "http://127.0.0.1:9", "--model", "m"]),
        ("jinja2", ["report", "evidence", "--html", "page.html"]),
        ("prometheus_client", ["report", "evidence", "--prometheus", "hisparse.prom"]),
    ],
)
def test_what_is_not_installed(module: str, words: list[str], tmp_path: Path) -> None:
    for process in world():
        process.guarded().write(tmp_path / "evidence")
    program = (
        "import sys; sys.modules[sys.argv.pop(1)] = None; from hisparse_guard.__main__ import main;"
        "sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, module, *words],
        env=environment([ROOT]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"needs {module}, which is not installed here" in done.stderr
    assert f"pip install {' '.join(NEEDED)} " in done.stderr


@pytest.mark.parametrize(
    "words", [["doctor", "--jsn"], ["run", "--nocheck", "--", "true"], ["run", "-x", "true"]]
)
def test_options_that_do_not_exist(words: list[str]) -> None:
    assert f"No such option: {words[1]}" in one_line(hisparse_guard(*words))


def test_what_is_wrong_does_not_reach_a_terminal_raw() -> None:
    error = one_line(hisparse_guard("report", "no\x1b[31m\u202esuch"))
    assert "no\\x1b[31m\\u202esuch" in error and "\x1b" not in error and "\u202e" not in error


def test_options_of_the_command_are_its_own() -> None:
    for words in (["--", "echo", "--no-check", "--"], ["--no-check", "echo", "--no-check", "--"]):
        done = hisparse_guard("run", *words)
        assert (done.returncode, done.stdout) == (0, "--no-check --\n"), done


def test_a_value_that_is_none_of_the_choices() -> None:
    error = one_line(hisparse_guard("bundle", "x", "--format", "foo"))
    assert "--format': 'foo' is not one of 'dir'" in error


def test_help() -> None:
    assert "..." not in hisparse_guard("--help").stdout.replace("[ARGS]...", "")
    for command, codes in (("run", "2 126 127"), ("doctor", "0 1 2"), ("ramp", "0 1 2 130")):
        text = hisparse_guard(command, "--help").stdout
        exit_codes = " ".join(text.partition("Exit")[2].split())
        assert all(f" {code} " in exit_codes for code in codes.split()), (command, exit_codes)
