"""What the running guard leaves on disk, whenever and however its process ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hisparse_guard.cli.report import read_evidence
from tests.startup.sandbox import ROOT, environment, hisparse_folder
from tests.support.environments import BASE_PYTHON, wrapt_path


def start(folder: Path, code: str, **more: Any) -> subprocess.Popen[bytes]:
    """A process with the guard in it, tracing, which writes evidence below `folder`."""
    path = [ROOT, wrapt_path(), hisparse_folder(folder / "image")]
    program = folder / "program.py"
    program.write_text(code)
    settings = {
        "HISPARSE_GUARD_EVIDENCE_DIR": str(folder / "evidence"),
        "HISPARSE_GUARD_TRACE_CONTEXT": "1",
    }
    env = environment(path, **settings)
    return subprocess.Popen([BASE_PYTHON, program], env=env, cwd="/", **more)


def lines(folder: Path) -> list[dict[str, Any]]:
    found = sorted((folder / "evidence").glob("*.jsonl"))
    return [json.loads(line) for path in found for line in path.read_text().splitlines()]


# Kill -9 ---------------------------------------------------------------------------------------

# Ever new call sites, and a byte to the parent after each: by then its line must be on disk.
STORM = """
import os
import vllm.config
for number in range(900):
    code = "\\n" * number + "vllm.config.get_current_vllm_config_or_none()"
    exec(compile(code, "site.py", "exec"))
    os.write(1, b".")
os.write(1, b"!")
"""


@pytest.mark.parametrize("after", [1, 2, 17, 150, 400, 777])
def test_a_kill_loses_at_most_the_line_in_flight(tmp_path: Path, after: int) -> None:
    process = start(tmp_path, STORM, stdout=subprocess.PIPE)
    assert process.stdout is not None
    told = 0
    while told < after:
        told += len(os.read(process.stdout.fileno(), 64))
    process.kill()
    left = process.stdout.read()
    process.stdout.close()
    process.wait()
    assert b"!" not in left, "it was too quick to be killed"
    told += len(left)

    found = read_evidence([tmp_path / "evidence"])
    (process_found,) = found.processes
    assert told <= sum(process_found.misses.values()) <= told + 1
    assert process_found.lost == 0
    assert all("the last line is cut short" in problem.what for problem in found.problems)
    # The next process to get this pid writes behind whatever was cut.
    assert len(found.torn) <= 1


# Counts ----------------------------------------------------------------------------------------

HOT = """
import multiprocessing, os, sys
import vllm.config

def hot():
    for _ in range(1234):
        vllm.config.get_current_vllm_config_or_none()
    for _ in range(7):
        vllm.config.get_current_vllm_config_or_none()

if __name__ == "__main__":
    way = WAY
    if way == "itself":
        hot()
    elif way == "os.fork":
        if os.fork() == 0:
            hot()
            sys.exit()
        os.wait()
    elif way == "sys.exit in a thread's way":
        import threading
        runner = threading.Thread(target=hot)
        runner.start()
        sys.exit(3)
    else:
        child = multiprocessing.get_context(way).Process(target=hot)
        child.start()
        child.join()
"""


@pytest.mark.parametrize(
    "way", ["itself", "os.fork", "sys.exit in a thread's way", "fork", "spawn", "forkserver"]
)
def test_a_hot_loop_is_counted_and_not_listed(tmp_path: Path, way: str) -> None:
    start(tmp_path, HOT.replace("WAY", repr(way))).wait(60)
    misses = [line for line in lines(tmp_path) if line["event"] == "context_miss"]
    by_site: dict[int, list[tuple[int, bool]]] = {}
    for miss in misses:
        by_site.setdefault(miss["where"]["line"], []).append((miss["count"], miss["at_exit"]))
    powers = [(10**n, False) for n in range(4)]
    # A forked child of multiprocessing leaves by `os._exit`: its last counts are those of the
    # powers of ten.
    forked = way in ("fork", "forkserver")
    last = [] if forked else [(1234, True)], [] if forked else [(7, True)]
    assert sorted(by_site.values()) == sorted([[*powers, *last[0]], [powers[0], *last[1]]])
    found = read_evidence([tmp_path / "evidence"])
    assert found.problems == []
    counted = sum(sum(one.misses.values()) for one in found.processes)
    assert counted == (1001 if forked else 1241)


# Before the log --------------------------------------------------------------------------------

# Dies in the very log call that tells of something: it is on disk by then.
DIES = """
import logging, os, signal
import vllm.config

class Last(logging.Handler):
    def emit(self, record):
        if TEXT in record.getMessage():
            os.kill(os.getpid(), signal.SIGKILL)

logging.getLogger("vllm").addHandler(Last())
logging.getLogger("vllm").setLevel("INFO")
import vllm.distributed.device_communicators.flashinfer_all_reduce as fi

with vllm.config.set_current_vllm_config(vllm.config.given):
    pass
vllm.config.get_current_vllm_config_or_none()
fi.get_fi_ar_workspace(None)
"""


@pytest.mark.parametrize(
    ("text", "event", "field"),
    [
        ("armed by", "armed", ("how", "sitecustomize")),
        ("context miss at", "context_miss", ("origin", "resolver")),
        ("trace: ", "context_miss", ("origin", "trace")),
        ("workspace verified", "workspace", ("state", "verified")),
    ],
)
def test_evidence_is_written_before_the_log_line(
    tmp_path: Path, text: str, event: str, field: tuple[str, str]
) -> None:
    process = start(tmp_path, DIES.replace("TEXT", repr(text)))
    assert process.wait(60) == -signal.SIGKILL, f"no log line {text!r}"
    written = [(line["event"], line.get(field[0])) for line in lines(tmp_path)]
    assert (event, field[1]) in written


WHILE_HANDLING = """
import vllm.config
import vllm.distributed.device_communicators.flashinfer_all_reduce as fi

with vllm.config.set_current_vllm_config(vllm.config.given):
    pass
try:
    raise OSError("no matter of the workspace's")
except OSError:
    fi.get_fi_ar_workspace(None)
"""


def test_a_workspace_made_while_an_exception_is_handled_is_no_failure(tmp_path: Path) -> None:
    assert start(tmp_path, WHILE_HANDLING).wait(60) == 0
    made = [line for line in lines(tmp_path) if line["event"] == "workspace"]
    assert [(line["state"], line["error"]) for line in made] == [("made", None), ("verified", None)]
