"""However a ramp is ended: the partial result is there, and no process of ours after 5 s."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.ramp.process import Ramp, ramp
from tests.cli.ramp.stub import MODEL, Handler, Stub, stub_server

WORDS = ("--levels", "2", "--requests", "50", "--isl", "8", "--osl", "6")
GONE_S = 5.0


@pytest.fixture
def slow() -> Iterator[Stub]:
    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        if number < 3:
            return False
        handler.begin_stream()
        handler.token()
        time.sleep(30)
        return True

    with stub_server(Stub(answer=answer)) as stub:
        yield stub


def await_load(stub: Stub) -> None:
    deadline = time.monotonic() + 60
    while len(stub.load) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def partial(document: dict[str, Any]) -> None:
    assert document["interrupted"] and document["partial"]
    assert document["done"] in (2, 3) and document["levels"][0]["planned"] == 50


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals(slow: Stub, tmp_path: Path, number: signal.Signals) -> None:
    archive = str(tmp_path / "a.tar.gz")
    running = Ramp(tmp_path, slow.url, MODEL, *WORDS, "--archive", archive)
    await_load(slow)
    running.signal(number)
    _, err = running.process.communicate(timeout=GONE_S)
    assert running.process.returncode == 130
    assert "Traceback" not in err and "was not written: the ramp was interrupted" in err
    partial(json.loads(running.json.read_text()))


def test_signals_until_it_is_gone(slow: Stub, tmp_path: Path) -> None:
    running = Ramp(tmp_path, slow.url, MODEL, *WORDS)
    await_load(slow)
    while running.process.poll() is None:
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            running.signal(number)
        time.sleep(0.002)
    assert running.process.returncode == 130
    partial(json.loads(running.json.read_text()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_archive_is_made(tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "server.log"
    log.write_text("INFO 01-01 10:00:00 [a.py:1] a line like many\n" * 100_000)
    words = ("--levels", "1", "--requests", "1", "--isl", "8", "--osl", "2", "--server-log", log)
    archive = tmp_path / "a.tar.gz"
    with stub_server(Stub()) as stub:
        running = Ramp(tmp_path, stub.url, MODEL, *words, "--archive", archive)
        deadline = time.monotonic() + 60
        while not running.json.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        running.signal(number)
        found = running.finish()
    assert found.code == 130 and "a.tar.gz was not written: the ramp was interrupted" in found.err
    assert {one.name for one in tmp_path.iterdir()} == {"ramp.json", "server.log"}


def test_a_parent_that_is_killed(slow: Stub, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hisparse_guard", "ramp", "--base-url", slow.url]
    command += ["--model", MODEL, "--json", str(tmp_path / "r.json"), *WORDS]
    program = (
        "import subprocess, sys, time; p = subprocess.Popen(sys.argv[1:], stdout=2);"
        "print(p.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    await_load(slow)
    parent.kill()
    parent.wait()
    assert gone(child)
    partial(json.loads((tmp_path / "r.json").read_text()))


def gone(pid: int) -> bool:
    deadline = time.monotonic() + GONE_S
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.05)
    return False


def test_a_terminal_that_is_closed(slow: Stub, tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if not pid:
        words = ["ramp", "--base-url", slow.url, "--model", MODEL, *WORDS]
        words += ["--json", str(tmp_path / "r.json")]
        os.execv(sys.executable, [sys.executable, "-m", "hisparse_guard", *words])
    shown = os.read(terminal, 4096)
    assert b"loading" in shown, "progress from the first second on"
    import threading

    closing = threading.Event()
    seen = [shown]

    def drain() -> None:
        while not closing.is_set():
            try:
                seen.append(os.read(terminal, 4096))
            except OSError:
                return

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    await_load(slow)
    time.sleep(0.5)
    closing.set()
    reader.join(2)
    os.close(terminal)
    assert gone(pid)
    os.waitpid(pid, 0)
    text = b"".join(seen)
    assert b"level" in text and b"tokens/s" in text
    partial(json.loads((tmp_path / "r.json").read_text()))


def test_a_full_disk_for_the_table(slow: Stub, tmp_path: Path) -> None:
    with stub_server(Stub()) as stub, open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "hisparse_guard", "ramp", "--base-url", stub.url]
        command += ["--model", MODEL, "--json", str(tmp_path / "r.json")]
        command += ["--levels", "1", "--requests", "1", "--isl", "8", "--osl", "2"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1 and "not written" in done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "passed"


def test_a_full_disk_for_the_json(tmp_path: Path) -> None:
    with stub_server(Stub()) as stub:
        words = ("--levels", "1", "--requests", "1", "--isl", "8", "--osl", "2")
        found = ramp(tmp_path, stub.url, MODEL, *words, "--html", "/dev/full")
    assert found.code == 1
    assert "/dev/full was not written" in found.err and "passed" in found.out


def test_a_standard_output_that_is_closed(tmp_path: Path) -> None:
    words = "ramp --model stub --levels 1 --requests 1 --isl 8 --osl 2"
    with stub_server(Stub()) as stub:
        line = f"exec {sys.executable} -m hisparse_guard {words} --base-url {stub.url} >&-"
        done = subprocess.run(
            [*("bash", "-c", f"{line} --json {tmp_path}/r.json")], capture_output=True, check=False
        )
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "passed"


def test_too_few_files_here_are_no_failure_of_the_server(tmp_path: Path) -> None:
    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        time.sleep(1)
        return False

    words = "ramp --model stub --levels 64 --requests 64 --isl 8 --osl 2"
    with stub_server(Stub(answer=answer)) as stub:
        line = f"ulimit -n 48; exec {sys.executable} -m hisparse_guard {words}"
        done = subprocess.run(
            ["bash", "-c", f"{line} --base-url {stub.url} --json {tmp_path}/r.json"],
            capture_output=True,
            check=False,
        )
    found = json.loads((tmp_path / "r.json").read_text())
    assert (done.returncode, found["verdict"]) == (1, "inconclusive")
    assert set(found["levels"][0]["failures"]) == {"not sent"}
    assert "ulimit" in found["first_failure"]["error"]


@pytest.mark.parametrize("name", [b"st\xffub", b"", b"a\nb"])
def test_a_model_that_no_request_can_name(tmp_path: Path, name: bytes) -> None:
    with stub_server(Stub()) as stub:
        found = ramp(tmp_path, stub.url, name.decode(errors="surrogateescape"))
    assert found.code == 2 and found.err.count("\n") == 1
