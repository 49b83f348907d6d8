"""Many processes, many forks, and the end of a process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.startup.sandbox import ROOT, environment
from tests.support.environments import BASE_PYTHON, wrapt_path
from tests.worlds.batch import laid_out
from tests.worlds.builds import Shape

# HiSparse seen, then a decision; `resolve` gives the backend.
WORKER = """
import os, signal, sys, threading, time
import vllm.config, vllm.fused
import vllm.distributed.device_communicators.flashinfer_all_reduce as fi
from vllm.config.vllm import VllmConfig, Part
given = VllmConfig(attention_config=Part(hisparse_config=object()), model_config=Part(model="m"))
def resolve(group=None):
    with vllm.config.set_current_vllm_config(given):
        return fi._resolve_fi_ar_backend(group)[0]
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return laid_out(Shape("plain"), tmp_path_factory.mktemp("package") / "plain")


class Workers:
    """Interpreters that run `WORKER` and some more, with the guard and without."""

    def __init__(self, package: Path, evidence: Path | None = None) -> None:
        self.package, self.evidence = package, evidence

    def start(self, code: str, guarded: bool = True) -> subprocess.Popen[str]:
        more = {"HISPARSE_GUARD_EVIDENCE_DIR": str(self.evidence)} if self.evidence else {}
        path = [ROOT, wrapt_path(), self.package] if guarded else [self.package]
        return subprocess.Popen(
            [BASE_PYTHON, "-c", WORKER + code],
            env=environment(path, **more),
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, guarded: bool = True) -> tuple[int, str, list[str]]:
        """(exit code, stdout, lines of stderr that are no information)"""
        process = self.start(code, guarded)
        try:
            out, error = process.communicate(timeout=300)
        finally:
            process.kill()
        return process.returncode, out, [x for x in error.splitlines() if not x.startswith("INFO")]


def events(files: Sequence[Path]) -> dict[str, list[str]]:
    """The events in each file, every line of which is whole."""
    return {
        file.name: [json.loads(line)["event"] for line in file.read_text().splitlines()]
        for file in files
    }


def test_many_at_once_with_one_evidence_folder(package: Path, tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    workers = Workers(package, folder)
    running = [workers.start("print(resolve(), os.getpid())") for _ in range(24)]
    pids = set()
    for process in running:
        out, error = process.communicate(timeout=300)
        backend, pid = out.splitlines()[0].split()
        assert (backend, process.returncode) == ("trtllm", 0), error
        assert not [x for x in error.splitlines() if not x.startswith("INFO")], error
        pids.add(pid)
    found = events(list(folder.iterdir()))
    assert {name.rsplit("-", 1)[1] for name in found} == {f"{pid}.jsonl" for pid in pids}
    for name, seen in found.items():
        assert seen == ["armed", "config_seen", "resolved", "end"], (name, seen)


def test_many_forks_in_a_row_leak_nothing(package: Path, tmp_path: Path) -> None:
    code = """
def held():
    return sorted(os.listdir("/proc/self/fd")), threading.active_count()
resolve()
before = held()
for number in range(1000):
    pid = os.fork()
    if pid == 0:
        # Some of them work, as a parent's worker would.
        answer = resolve() if number % 100 == 0 else "trtllm"
        os._exit(0 if answer == "trtllm" and held() == before else 1)
    assert os.waitpid(pid, 0)[1] == 0, number
assert held() == before, (before, held())
print("served")
"""
    exit_code, out, said = Workers(package, tmp_path).run(code)
    assert (exit_code, out, said) == (0, "served\ndestroyed True\n", [])
    # The parent, and each child that worked; every one with an opening of its own.
    found = events(list(tmp_path.iterdir()))
    assert len(found) == 11
    assert all(seen[:2] == ["armed", "config_seen"] for seen in found.values())


def test_a_child_forked_while_threads_are_inside_the_guard(package: Path, tmp_path: Path) -> None:
    # Each new workspace is new evidence, so locks are taken. Not standard error's: a child forked
    # while another thread writes there hangs, with the guard or without.
    code = """
import logging
from hisparse_guard.runtime import telemetry
logging.getLogger("vllm").handlers[:] = [logging.NullHandler()]
resolve()
stop, held = threading.Event(), 0
def busy():
    while not stop.is_set():
        resolve()
        fi.get_fi_ar_workspace(2, 0, None)
        fi.destroy_fi_ar_workspace()
        time.sleep(0.0005)
def look():
    global held
    if telemetry._recorder.lock.acquire(blocking=False):
        telemetry._recorder.lock.release()
    else:
        held += 1
os.register_at_fork(before=look)
threads = [threading.Thread(target=busy) for _ in range(4)]
for thread in threads: thread.start()
stuck = 0
for number in range(100):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        os._exit(0 if resolve() == "trtllm" else 1)
    stuck += os.waitpid(pid, 0)[1] != 0
stop.set()
for thread in threads: thread.join()
print("served", stuck, held > 0)
"""
    exit_code, out, _ = Workers(package, tmp_path).run(code)
    assert (exit_code, out) == (0, "served 0 True\ndestroyed True\n")
    assert len(events(list(tmp_path.iterdir()))) == 101


ENDS = {
    "atexit": """
import atexit
# Runs before what the guard and the package registered, and after.
atexit.register(lambda: print("last", resolve(), fi.get_fi_ar_workspace(2, 0, None) is not None))
atexit.register(fi.destroy_fi_ar_workspace)
resolve()
""",
    "os._exit": "print(resolve(), flush=True); os._exit(7)",
    "sys.exit": "print(resolve()); sys.exit(5)",
    "exception": "print(resolve()); raise SystemExit('a word') from KeyError('x')",
    "interrupt": "print(resolve()); sys.stdout.flush(); os.kill(os.getpid(), signal.SIGINT)\n"
    "time.sleep(60)",
    "terminate": "print(resolve(), flush=True); os.kill(os.getpid(), signal.SIGTERM)\n"
    "time.sleep(60)",
    "daemon-threads": """
def busy():
    while True:
        resolve()
        fi.get_fi_ar_workspace(2, 0, None)
        fi.destroy_fi_ar_workspace()
for _ in range(4):
    threading.Thread(target=busy, daemon=True).start()
time.sleep(0.05)
# Whether they have a workspace when it is asked for at exit is chance.
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
""",
    "threads-that-end-later": """
def later():
    time.sleep(0.2)
    print("later", resolve())
threading.Thread(target=later).start()
""",
    "destructor": """
class Late:
    def __del__(self):
        print("late", resolve())
late = sys.late = Late()
resolve()
""",
    "weakref": """
import weakref
class Group:
    pass
groups = [Group() for _ in range(3)]
print([resolve(group) for group in groups])
weakref.finalize(groups[0], print, "finalized")
""",
}


@pytest.mark.parametrize("end", ENDS)
def test_the_end_is_as_without(end: str, package: Path, tmp_path: Path) -> None:
    plain = Workers(package).run(ENDS[end], guarded=False)
    for _ in range(2 if "threads" in end else 1):
        folder = tmp_path / "evidence"
        exit_code, out, said = Workers(package, folder).run(ENDS[end])
        said = [line for line in said if "hisparse-guard: workspace" not in line]
        assert (exit_code, out.replace("trtllm", "mnnvl"), said) == plain
        for name, seen in events(list(folder.iterdir())).items():
            # Written as it happened: an end without exit handlers loses none of it.
            assert seen[:3] == ["armed", "config_seen", "resolved"], (name, seen)
