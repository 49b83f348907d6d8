"""What a launcher does to the server's environment is followed, or cannot be told."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hisparse_guard.cli.launchers import follow

ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": "/guard"}
SERVER = f"exec {sys.executable} -m vllm"


@pytest.mark.parametrize(
    "text",
    [
        'printf -v PYTHONPATH ""',
        "printf -vPYTHONPATH x",
        "hash -p /bin/false python3",
        "trap 'unset PYTHONPATH' DEBUG",
        "trap 'unset PYTHONPATH' debug EXIT",
        "PYTHONPATH+=/more",
    ],
)
def test_shell_commands_that_set_something_are_not_ignored(text: str) -> None:
    assert follow(["bash", "-c", f"{text}; {SERVER}"], ENVIRONMENT).unknown


@pytest.mark.parametrize("text", ["trap 'kill 0' TERM EXIT", 'printf "%s" starting', "hash -r"])
def test_shell_commands_that_set_nothing_are(text: str) -> None:
    started = follow(["bash", "-c", f"{text}; {SERVER}"], ENVIRONMENT)
    assert (started.unknown, started.interpreter) == (None, sys.executable)


def test_a_shell_function_of_the_environment_hides_a_program() -> None:
    environment = {**ENVIRONMENT, "BASH_FUNC_python3%%": '() { command python3 -I "$@"; }'}
    assert follow(["bash", "-c", "python3 -m vllm"], environment).unknown


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.environ.clear()",
        "from os import environ\nenviron.clear()",
        "import sys\nsys.meta_path.clear()",
        "from sys import meta_path\nmeta_path.clear()",
        "import multiprocessing\nmultiprocessing.set_executable('/bin/false')",
        "import importlib\nimportlib.import_module('sub' + 'process')",
    ],
)
def test_a_script_that_takes_the_guard_away(tmp_path: Path, code: str) -> None:
    script = tmp_path / "serve.py"
    script.write_text(f"{code}\nimport vllm\n")
    assert follow([sys.executable, str(script)], ENVIRONMENT).unknown


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("export PYTHONPATH=/more:$PYTHONPATH", "/more:/guard"),
        ("PYTHONPATH=/more:$PYTHONPATH", "/more:/guard"),
        ("NAME=PYTHONPATH; unset $NAME", None),
        ("command unset PYTHONPATH", None),
    ],
)
def test_variables_without_quotes_are_filled_in(text: str, path: str | None) -> None:
    started = follow(["bash", "-c", f"{text}; {SERVER}"], ENVIRONMENT)
    assert (started.unknown, started.environment.get("PYTHONPATH")) == (None, path)


@pytest.mark.parametrize("text", ["command eval x", 'RUN=eval; $RUN "unset PYTHONPATH"', ": $$"])
def test_what_is_not_followed_stays_so_however_it_is_called(text: str) -> None:
    assert follow(["bash", "-c", f"{text}; {SERVER}"], ENVIRONMENT).unknown


OFF = "HISPARSE_GUARD_MODE=off"


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "-c", f"set -a; {OFF}; {SERVER}"],
        ["sh", "-c", f"set -ea; {OFF}; {SERVER}"],
        ["sh", "-c", f"set -o allexport; {OFF}; {SERVER}"],
        ["bash", "-ac", f"{OFF}; {SERVER}"],
        ["bash", "-o", "allexport", "-c", f"{OFF}; {SERVER}"],
        ["bash", "-k", "-c", f"{SERVER} {OFF}"],
    ],
)
def test_shell_options_that_export_what_is_assigned(command: list[str]) -> None:
    assert follow(command, ENVIRONMENT).unknown


def test_a_variable_that_is_exported_before_it_is_assigned() -> None:
    text = f"export HISPARSE_GUARD_MODE; {OFF}; {SERVER}"
    started = follow(["sh", "-c", text], ENVIRONMENT)
    assert started.unknown is None and started.environment["HISPARSE_GUARD_MODE"] == "off"
    started = follow(["sh", "-c", f"{OFF}; {SERVER}"], ENVIRONMENT)
    assert started.unknown is None and "HISPARSE_GUARD_MODE" not in started.environment
