"""What a launcher does to the server's environment is followed, or cannot be told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hisparse_guard.cli.launchers import follow
from tests.startup.sandbox import ROOT

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
        "import os\nenv = os.environ\nfor name in list(env):\n    del env[name]",
        "from os import environ as held\nheld.clear()",
        "from sys import meta_path as finders\ndel finders[0]",
        "from multiprocessing import set_executable as use\nuse('/bin/false')",
        "import os\nos.environb[b'HISPARSE_' b'GUARD_MODE'] = b'off'",
        "import ctypes\nctypes.CDLL(None)",
        "import sys\nsetattr(sys, 'executable', '/bin/false')",
        "import os\nos.setuid(65534)",
        "import asyncio, sys\nasyncio.create_subprocess_exec(sys.executable, '-I')",
        "import boto3",
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
        ("MORE=/old; export MORE=/more; PYTHONPATH=$MORE:$PYTHONPATH", "/more:/guard"),
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


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nsys.path.insert(0, '/opt/fork')",
        "import sys as system\nsystem.path[:0] = ['/opt/fork']",
        "from sys import path\npath.insert(0, '/opt/fork')",
        "import sys, fork\nsys.modules['vllm'] = fork",
        "import site\nsite.addsitedir('/opt/fork')",
        "from importlib.util import spec_from_file_location\nspec_from_file_location('vllm', '/x')",
        "from dotenv import load_dotenv\nload_dotenv()",
        "import os\nfor n, v in read():\n    os.environ.setdefault(n, v)",
    ],
)
def test_a_script_that_imports_another_vllm_or_sets_what_is_elsewhere(
    tmp_path: Path, code: str
) -> None:
    script = tmp_path / "serve.py"
    script.write_text(f"{code}\nimport vllm\n")
    assert follow([sys.executable, str(script)], ENVIRONMENT).unknown


def test_torchrun_takes_its_python_from_a_variable(tmp_path: Path) -> None:
    script = tmp_path / "serve.py"
    script.write_text("import vllm\n")
    other = tmp_path / "python3"
    other.symlink_to(sys.executable)
    command = [sys.executable, "-m", "torch.distributed.run", str(script)]
    started = follow(command, {**ENVIRONMENT, "PYTHON_EXEC": str(other)})
    assert (started.unknown, started.interpreter) == (None, str(other))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("conda-meta/state", '{"env_vars": {"PYTHONPATH": "/other"}}'),
        ("etc/conda/env_vars.d/own.json", '{"HISPARSE_GUARD_MODE": "off"}'),
        ("etc/conda/activate.d/own.sh", "export VLLM_PLUGINS=\n"),
        ("etc/conda/activate.d/own.sh", ". /etc/site.sh\n"),
    ],
)
def test_variables_that_a_conda_environment_keeps(tmp_path: Path, file: str, text: str) -> None:
    conda, home = tmp_path / "conda", tmp_path / "home"
    conda.write_text("#!/bin/sh\n")
    conda.chmod(0o755)
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python").symlink_to(sys.executable)
    command = [str(conda), "run", "-p", str(home), "python", "-m", "vllm"]
    assert follow(command, ENVIRONMENT).unknown is None
    kept = home / file
    kept.parent.mkdir(parents=True)
    kept.write_text(text)
    assert file in str(follow(command, ENVIRONMENT).unknown)


@pytest.mark.parametrize(
    "text", ["pip install vllm==0.33.0", "rm /opt/guard.zip", "python3 prepare.py", "/bin/cp a b"]
)
def test_a_program_that_runs_before_the_server_may_change_the_image(text: str) -> None:
    assert follow(["sh", "-c", f"{text} && {SERVER}"], ENVIRONMENT).unknown
    assert follow(["sh", "-c", f"{text}; export A=b; {SERVER}"], ENVIRONMENT).unknown
    assert follow(["sh", "-c", f"mkdir -p /tmp/x && {SERVER}"], ENVIRONMENT).unknown is None


@pytest.mark.parametrize(
    "text",
    [
        "export PYTHONPATH=~/app:$PYTHONPATH",
        "export PYTHONPATH=/opt/{a,b}",
        "IFS=:",
        f"{OFF} :",
        f"{OFF} cd /",
    ],
)
def test_what_a_shell_makes_of_an_assignment(text: str) -> None:
    assert follow(["bash", "-c", f"{text}; {SERVER}"], ENVIRONMENT).unknown


@pytest.mark.parametrize("inherit", ["false", "prefer", "fallback"])
def test_a_pex_that_inherits_pythonpath_starts_no_sitecustomize(
    tmp_path: Path, inherit: str
) -> None:
    """Measured with PEX files that pex made: the finder is not in, whatever they inherit."""
    file = tmp_path / "server.pex"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("PEX-INFO", json.dumps({"inherit_path": inherit}))
        archive.writestr("__main__.py", "import vllm\n")
    started = follow([sys.executable, str(file)], ENVIRONMENT)
    assert bool(started.unknown) == (inherit != "false")
    expected = (None, ()) if started.unknown else (sys.executable, ("-I",))
    assert (started.interpreter, started.options) == expected


@pytest.mark.parametrize(
    "text",
    [
        "export PYTHONPATH=/opt/*/guard",
        "cd /op?",
        "exec /opt/*/bin/python -m vllm",
        "cd ~root",
        'export PYTHONPATH=~/guard:"/app"',
        "exec env -u PYTHON{PATH,HOME} python3 -m vllm",
        "export PYTHONPATH=/run/$UID/guard",
        "cd /no/such/folder",
        "cd lib",
        f'A="b {OFF}"; exec env A=$A {sys.executable} -m vllm',
        f"exec env $@ {sys.executable} -m vllm",
        "A=off B=$A; export HISPARSE_GUARD_MODE=$B",
        "export HISPARSE_GUARD_MODE=${A:-${B:-off}}",
        "echo x > /usr/lib/python3/usercustomize.py",
        ": > guard.zip",
        "export PYTHONPATH=/guard\r\n",
    ],
)
def test_shell_expansions_that_are_not_worked_out(text: str) -> None:
    command = ["sh", "-c", f"{text}; {SERVER}", "sh", f"A=b {OFF}"]
    assert follow(command, {**ENVIRONMENT, "HOME": "/root", "CDPATH": "/usr"}).unknown


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("export HISPARSE_GUARD_\\\nMODE=off", "off"),
        ("# a comment \\\nexport HISPARSE_GUARD_MODE=off", "off"),
        ("A='x\\\ny'; export HISPARSE_GUARD_MODE=$A", None),
        ('A=off; export HISPARSE_GUARD_MODE="\\$A"', "$A"),
        ('A=off; export HISPARSE_GUARD_MODE="\\\\$A"', "\\off"),
        ("export HISPARSE_GUARD_MODE=x$10", "xoff0"),
        ("export HISPARSE_GUARD_MODE=$HISPARSE_GUARD_NONE$1", "off"),
    ],
)
def test_how_a_shell_reads_words(text: str, mode: str | None) -> None:
    started = follow(["sh", "-c", f"{text}\n{SERVER}", "sh", "off"], ENVIRONMENT)
    if mode is None:
        assert started.unknown
    else:
        assert (started.unknown, started.environment["HISPARSE_GUARD_MODE"]) == (None, mode)


def test_the_current_folder_of_a_shell(tmp_path: Path) -> None:
    """`PWD` is the shell's own, whatever the environment says, and `cd` changes it."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    text = f"cd {tmp_path}/link/..; export PYTHONPATH=$OLDPWD:$PWD; {SERVER}"
    started = follow(["sh", "-c", text], {**ENVIRONMENT, "PWD": "/tmp", "OLDPWD": "/guard"})
    assert started.environment["PYTHONPATH"] == f"{os.getcwd()}:{tmp_path}"
    assert (started.unknown, started.cwd) == (None, str(tmp_path))


@pytest.mark.parametrize("name", ["BASH_ENV", "SHELLOPTS", "BASHOPTS", "PATH"])
def test_variables_by_which_a_shell_does_more_than_its_text(name: str) -> None:
    environment = {**ENVIRONMENT, name: "allexport"}
    if name == "PATH":
        del environment["PATH"]
    shell = "/bin/bash"
    assert follow([shell, "-c", f"{OFF}; {SERVER}"], environment).unknown


def test_a_launcher_that_changes_the_user(tmp_path: Path) -> None:
    """Who may not read the guard's files, and has another home."""
    for name in ("gosu", "su-exec", "setpriv"):
        (tmp_path / name).write_bytes(b"\x7fELF\0")
        (tmp_path / name).chmod(0o755)
        command = [str(tmp_path / name), "nobody", sys.executable, "-m", "vllm"]
        assert follow(command, ENVIRONMENT).unknown


OFF_BY_A_MODULE = "import os\nos.environ['HISPARSE_GUARD_MODE'] = 'off'\n"


@pytest.mark.parametrize(
    ("code", "files"),
    [
        ("import prepare", {"prepare.py": OFF_BY_A_MODULE}),
        ("def f():\n    from prepare.more import x", {"prepare/__init__.py": "",
                                                      "prepare/more.py": OFF_BY_A_MODULE}),
        ("import prepare", {"prepare/__init__.py": "from . import more",
                            "prepare/more.py": OFF_BY_A_MODULE}),
        ("import calendar", {"calendar.py": OFF_BY_A_MODULE}),
        ("import vllm_extra", {"vllm_extra.py": OFF_BY_A_MODULE}),
        ("import prepare.more", {"prepare/more.py": OFF_BY_A_MODULE}),
        ("import prepare", {"prepare.pyc": ""}),
        ("import prepare", {"prepare.cpython-311-x86_64-linux-gnu.so": "", "prepare.py": ""}),
        ("import prepare", {"prepare.py": "def"}),
    ],
)  # fmt: skip
def test_modules_of_a_launch_script_are_read_too(
    tmp_path: Path, code: str, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {**files, "serve.py": f"{code}\nimport vllm\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert follow([sys.executable, str(tmp_path / "serve.py")], ENVIRONMENT).unknown
    monkeypatch.chdir(tmp_path)
    assert follow([sys.executable, "-c", f"{code}\nimport vllm\n"], ENVIRONMENT).unknown
    if any(name.endswith(".so") for name in files):
        return  # A zip's are not imported.
    with zipfile.ZipFile("app.pyz", "w") as archive:
        archive.writestr("__main__.py", f"{code}\nimport vllm\n")
        for name, text in files.items():
            archive.writestr(name, text)
    assert follow([sys.executable, "app.pyz"], ENVIRONMENT).unknown


def test_modules_that_change_nothing_are_followed(tmp_path: Path) -> None:
    script = tmp_path / "serve.py"
    script.write_text("import argparse, os, torch, own.names\nfrom vllm import LLM\n")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text("from .names import NAME as name\n")
    text = "import os\nNAME = os.environ.get('MODEL', os.environ.setdefault('TP', '8'))\n"
    (tmp_path / "own" / "names.py").write_text(text)
    started = follow([sys.executable, str(script)], ENVIRONMENT)
    assert (started.unknown, started.first) == (None, str(tmp_path))


@pytest.mark.parametrize("path", ["", ":/other", "/other::/third", "/other:/other"])
def test_run_is_followed_to_the_path_that_it_passes_on(path: str) -> None:
    command = [sys.executable, "-m", "hisparse_guard", "run", "--no-check", "--", sys.executable]
    environment = {**os.environ, "PYTHONPATH": path}
    look = ["-c", "import os; print(os.environ['PYTHONPATH'])"]
    done = subprocess.run(
        [*command, *look], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    started = follow([*command, "-m", "vllm"], environment)
    assert started.environment["PYTHONPATH"] == done.stdout.strip()
