"""`run -- CMD…` takes the command's place, with the guard in front of PYTHONPATH."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hisparse_guard.cli.interpreter import probe
from hisparse_guard.cli.launchers import follow as started_by
from tests.startup.sandbox import ROOT, environment, python, vllm_folder, write
from tests.support.bundles import hisparse_guard

SHOW = "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1:])"


def test_in_front_of_what_is_there(bundle: Path) -> None:
    for there, want in (
        ("/a:/b", f"{bundle}:{bundle}:/a:/b"),
        ("", f"{bundle}"),
    ):
        env = environment([bundle], PYTHONPATH=f"{bundle}")
        code = (
            "import os, sys, runpy; "
            f"os.environ['PYTHONPATH'] = {there!r} or {str(bundle)!r}; "
            f"sys.argv = ['x', 'run', '--', sys.executable, '-c', {SHOW!r}, '--', '--help', 'a b'];"
            "runpy.run_module('hisparse_guard', run_name='__main__')"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=env,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        want = want.replace(f"{bundle}:{bundle}", f"{bundle}")
        assert done.stdout.strip() == f"{want} ['--', '--help', 'a b']", done


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_exit_code_and_stdin(bundle: Path, code: int) -> None:
    program = f"import sys; print(sys.stdin.read().upper()); sys.exit({code})"
    done = hisparse_guard(
        "run", "--no-check", "--", sys.executable, "-c", program, entry=bundle, stdin="abc"
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "ABC\n", "")


def test_signals_reach_the_command(bundle: Path) -> None:
    program = """
import os, signal, sys
def on(number, frame):
    os.write(1, b"got SIGTERM\\n")
    os._exit(9)
signal.signal(signal.SIGTERM, on)
print(os.getpid(), signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)
signal.pause()
"""
    process = subprocess.Popen(
        [sys.executable, "-m", "hisparse_guard", "run", "--", sys.executable, "-c", program],
        env=environment([bundle]),
        cwd="/",
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=30)
    assert first == f"{process.pid} True\n", "the command is not in run's own process"
    assert (rest, process.returncode) == ("got SIGTERM\n", 9)


def test_a_broken_pipe_ends_the_command_as_ever(bundle: Path) -> None:
    # Python ignores SIGPIPE; what it starts by exec must not.
    done = hisparse_guard("run", "--", "grep", "SigIgn", "/proc/self/status", entry=bundle)
    ignored = int(done.stdout.split()[-1], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1)), done


def test_the_command_is_guarded(bundle: Path, bare: Path, tmp_path: Path) -> None:
    image = vllm_folder(tmp_path / "image")
    program = (
        f"import sys; sys.path.append({str(image)!r}); import vllm.config; "
        "print('hisparse_guard.runtime.activate' in sys.modules)"
    )
    done = hisparse_guard("run", "--", bare, "-c", program, entry=bundle)
    # Where a program itself says where modules come from, it cannot be told before.
    assert done.stdout == "True\n"
    assert "not checked" in done.stderr and "it uses sys.path" in done.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [(["-I"], "-I"), (["-E"], "-E"), (["-sE"], "-sE"), (["-S"], "-S")],
)
def test_refuses_a_python_that_would_run_unguarded(
    bundle: Path, options: list[str], reason: str
) -> None:
    words = [sys.executable, *options, "-c", "print('ran')"]
    done = hisparse_guard("run", "--", *words, entry=bundle)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1
    done = hisparse_guard("run", "--no-check", "--", *words, entry=bundle)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done


def test_refuses_a_script_whose_first_line_ignores_pythonpath(bundle: Path, tmp_path: Path) -> None:
    script = write(tmp_path, {"serve": f"#!{sys.executable} -I\nprint('ran')\n"}) / "serve"
    script.chmod(0o755)
    done = hisparse_guard("run", "--", script, entry=bundle)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert "-I" in done.stderr


def test_source_without_wrapt_is_refused_with_the_way_out(bare: Path) -> None:
    done = hisparse_guard("run", "--", bare, "-c", "print('ran')", entry=ROOT)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert "No module named 'wrapt'" in done.stderr
    assert "bundle" in done.stderr


def test_off_is_not_in_the_way(bare: Path, bundle: Path) -> None:
    words = ["run", "--", bare, "-c", "print('ran')"]
    done = hisparse_guard(*words, entry=bundle, HISPARSE_GUARD_MODE="off")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert done.stderr == "hisparse-guard run: HISPARSE_GUARD_MODE=off: CMD runs unguarded\n"


def test_no_python_program_runs_with_a_note(bundle: Path) -> None:
    done = hisparse_guard("run", "--", "sh", "-c", "echo $PYTHONPATH; exit 4", entry=bundle)
    assert (done.returncode, done.stdout) == (4, f"{bundle}\n"), done
    assert "run: not checked: " in done.stderr


def test_no_such_program(bundle: Path, tmp_path: Path) -> None:
    done = hisparse_guard("run", "--", "no-such-program", entry=bundle)
    assert done.returncode == 127
    assert done.stderr == "hisparse-guard run: no-such-program: no such program on PATH\n"
    broken = write(tmp_path, {"broken": "#!/no/such/interpreter\n"}) / "broken"
    broken.chmod(0o755)
    done = hisparse_guard("run", "--", broken, entry=bundle)
    assert done.returncode == 127, done
    assert done.stderr.splitlines()[-1] == (
        f"hisparse-guard run: {broken}: the interpreter that its first line names does not exist"
    )
    plain = write(tmp_path, {"plain": ""}) / "plain"
    for program, code, why in (
        (tmp_path / "none", 127, "no such file"),
        (plain, 126, "not executable"),
        (tmp_path, 126, "a folder"),
        ("/bin/sh/", 126, "not executable"),
    ):
        done = hisparse_guard("run", "--", program, entry=bundle)
        assert done.returncode == code, done
        assert done.stderr == f"hisparse-guard run: {program}: {why}\n"


def test_without_a_command(bundle: Path) -> None:
    done = hisparse_guard("run", entry=bundle)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done


P = sys.executable


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (f"#!{P}\n", (P, ())),
        (f"#!{P} -I\n", (P, ("-I",))),
        (f"#! {P}  -sE \n", (P, ("-sE",))),
        ("#!/usr/bin/env python3\n", ("{bin}/python3", ())),
        ("#!/usr/bin/env -S python3 -I\n", ("{bin}/python3", ("-I",))),
        ("#!/usr/bin/env -S A=b python3 -E -X utf8\n", ("{bin}/python3", ("-E", "-X", "utf8"))),
        ("#!/usr/bin/env no-such-python\n", None),
        (
            "#!/bin/sh\n'''exec' \"/a path/python3\" \"$0\" \"$@\"\n' '''\n",
            ("{spaced}/python3", ()),
        ),
        ("#!/bin/sh\necho\n", None),
        ("#!/bin/sh\n'''exec' \"/unclosed \"$0\" \"$@\"\n'''\n", None),
        ('#!/usr/bin/env -S "python3\n', None),
        ("#!", None),
        ("#! \n", None),
        ("\x7fELF", None),
        ("", None),
    ],
)
def test_which_python_a_script_runs(
    text: str, want: tuple[str, tuple[str, ...]] | None, tmp_path: Path
) -> None:
    script = tmp_path / "serve"
    spaced = tmp_path / "a path"
    spaced.mkdir()
    (spaced / "python3").symlink_to(sys.executable)
    script.write_text(text.replace("/a path", str(spaced)))
    script.chmod(0o755)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "python3").symlink_to(sys.executable)
    found = started_by([str(script)], {"PATH": f"{bin_folder}{os.pathsep}/usr/bin"})
    assert found is not None and found.program == str(script)
    if want is None:
        assert found.interpreter is None
    else:
        assert found.interpreter == want[0].format(bin=bin_folder, spaced=spaced)
        assert (found.options, found.first) == (want[1], str(tmp_path))
        assert found.environment.get("A") == ("b" if "A=b" in text else None)


def test_a_program_that_may_be_run_and_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    program = write(tmp_path, {"serve": "#!/bin/sh\n"}) / "serve"
    program.chmod(0o711)
    monkeypatch.setattr(Path, "open", refuse)
    found = started_by([str(program)], {})
    assert found is not None and (found.program, found.interpreter) == (str(program), None)


def test_whatever_else_the_image_prints(bundle: Path, tmp_path: Path) -> None:
    source = r"""
import atexit, os
os.write(1, b"caf\xe9\n{}")
os.write(2, b"caf\xe9\n")
atexit.register(print, "bye")
"""
    there = write(tmp_path / "there", {"sitecustomize.py": source})
    program = f"""
import os, runpy, sys
os.environ["PYTHONPATH"] = {str(there)!r}
sys.argv = ["x", "run", "--no-check", "--", sys.executable, "-c", "import sys; sys.exit(5)"]
runpy.run_module("hisparse_guard", run_name="__main__")
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, env=environment([bundle]), cwd="/", capture_output=True, check=False
    )
    assert done.returncode == 5, done


@pytest.mark.parametrize("option", ["-V", "-VV", "--version", "-h", "--help", "-?"])
def test_a_python_that_only_tells_about_itself(bundle: Path, option: str) -> None:
    done = hisparse_guard("run", "--", sys.executable, option, entry=bundle)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "ython" in done.stdout


def test_standard_output_may_be_closed(bundle: Path) -> None:
    words = [
        "-m",
        "hisparse_guard",
        "run",
        "--no-check",
        "--",
        sys.executable,
        "-c",
        "import sys; sys.exit(5)",
    ]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, *words],
        env=environment([bundle]),
        cwd="/",
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (5, "")


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["-m", "vllm", "-I"], ()),
        (["-Im", "vllm"], ("-I",)),
        (["-uIc", "pass"], ("-uI",)),
        (["-W", "ignore", "-X", "dev", "serve.py", "-I"], ("-W", "ignore", "-X", "dev")),
        (["-Wignore", "-Xdev", "-"], ("-Wignore", "-Xdev")),
        (["--check-hash-based-pycs", "never", "-B"], ("--check-hash-based-pycs", "never", "-B")),
        ([], ()),
    ],
)
def test_which_options_a_python_has(words: list[str], options: tuple[str, ...]) -> None:
    found = started_by([sys.executable, *words], {})
    assert found is not None
    assert (found.program, found.interpreter) == (sys.executable, sys.executable)
    assert found.options == options
    assert found.first == (str(Path.cwd()) if "serve.py" in words else "")


@pytest.mark.parametrize(
    ("words", "want"),
    [
        (["A=b", "PYTHONPATH=/x=y"], {"KEEP": "1", "GO": "1", "A": "b", "PYTHONPATH": "/x=y"}),
        (["-u", "GO", "--unset=KEEP"], {}),
        (["-i", "A=b", "--", "C=d"], {"A": "b", "C": "d"}),
        (["-", "env", "A=b"], {"A": "b"}),
        (["--chdir=/", "A=b"], {"KEEP": "1", "GO": "1", "A": "b"}),
        (["-u"], None),
    ],
)
def test_what_env_starts(words: list[str], want: dict[str, str] | None) -> None:
    found = started_by(["env", *words, sys.executable, "-m", "vllm"], {"KEEP": "1", "GO": "1"})
    assert found is not None and found.program.endswith("/env")
    if want is None:
        assert found.interpreter is None
    else:
        assert (found.interpreter, found.environment) == (sys.executable, want)


def test_env_is_seen_through(bundle: Path, bare: Path) -> None:
    words = ["env", "-i", bare, "-c", "print('ran')"]
    done = hisparse_guard("run", "--", *words, entry=bundle)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert "has no PYTHONPATH in its environment (`env -i` and" in done.stderr


def test_an_installation_of_another_python(installed: Path, bare: Path) -> None:
    # Seen by the Python that the command is installed in, and by no other.
    code = f"""
import runpy, sys
sys.path.insert(0, {str(installed)!r})
sys.argv = ["hisparse-guard", "run", "--", {str(bare)!r}, "-c", "print('ran')"]
runpy.run_module("hisparse_guard", run_name="__main__")
"""
    done = python(code)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert "No module named 'wrapt'; use a bundle, which brings all that it needs" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_current_folder_is_no_part_of_a_scripts_path(
    bundle: Path, bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkout, where the guard's source is without wrapt."""
    monkeypatch.chdir(ROOT)
    folder = write(tmp_path, {"bin/serve": f"#!{bare}\n"}) / "bin"
    (folder / "serve").chmod(0o755)
    (tmp_path / "link").symlink_to(folder / "serve")

    def reason(*words: str | Path) -> str | None:
        started = started_by([str(word) for word in words], environment([bundle]))
        assert started is not None
        return probe(started).reason

    # The package is imported at the start, before these folders are on the path.
    write(folder, {"hisparse_guard/__init__.py": "raise ImportError('beside the script')"})
    for words in ((folder / "serve",), (tmp_path / "link",), (bare, folder / "serve")):
        assert reason(*words) is None
    for words in ((bare, "-m", "vllm"), (bare, "-c", "")):
        assert reason(*words) is None
