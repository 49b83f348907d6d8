"""How a server came to its end: only its own shutdown, seen to be done, is a healthy one."""

# Log lines are long.
# ruff: noqa: E501

from __future__ import annotations

from pathlib import Path

import pytest

from hisparse_guard.cli.triage import triage
from hisparse_guard.cli.triage.render import page
from tests.cli.triage.logs import line, read, request, start, started_up, stats
from tests.cli.triage.test_inputs import EXCERPTS, lead

API, ENGINE, WORKER = "APIServer pid=588", "EngineCore_DP0 pid=648", "Worker_TP0 pid=703"
UP = [start(connector="None"), started_up(), stats(), request()]
TOLD = [
    line(API, "[shutdown] API server: shutdown triggered", at="22:20:00", file="launcher.py:256"),
    line(API, "[shutdown] API server: stopping engine client mode=abort timeout=0s", at="22:20:00", file="launcher.py:272"),
    line(ENGINE, "[shutdown] EngineCore: trigger received signal=SIGTERM", at="22:20:00", file="core.py:1525"),
]  # fmt: skip
DONE = [
    f"({API}) INFO:     Shutting down",
    f"({API}) INFO:     Waiting for application shutdown.",
    f"({API}) INFO:     Application shutdown complete.",
]
LEAKED = (
    "/usr/lib/python3.12/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: "
    "There appear to be 1 leaked shared_memory objects to clean up at shutdown: {'/psm_b1c2'}\n"
    "  warnings.warn("
)


def test_a_shutdown_that_is_done_is_health(tmp_path: Path) -> None:
    assert read(tmp_path, *UP, *TOLD, *DONE).exit_code == 0
    assert read(tmp_path, *UP, *TOLD, *DONE, LEAKED).exit_code == 0


def at(minute: int, message: str, file: str) -> str:
    return line(ENGINE, message, "INFO", f"22:{minute}:00", file)


KILLS = [
    line(ENGINE, "[shutdown] Executor: workers still running after SIGTERM; sending SIGKILL count=1", "WARNING", "22:20:09", "multiproc_executor.py:602"),
    line("DPSupervisor pid=4", "DP server DPServer_1 did not exit within 30.0s; force killing.", "WARNING", "22:20:40", "dp_supervisor.py:547"),
]  # fmt: skip
STUCK = {
    "the log ends": [],
    "the engine waits": [
        at(21 + n, "No available shared memory broadcast block found in 60 seconds.", "shm_broadcast.py:802")
        for n in range(2)
    ],
    "connections stay open": [
        f"({API}) INFO:     Shutting down",
        f"({API}) INFO:     Waiting for connections to close. (CTRL+C to force quit)",
    ],
    "uvicorn waits for a task": [DONE[0], f"({API}) INFO:     Waiting for background tasks to complete. (CTRL+C to force quit)"],
    "requests without a token go on": [stats(gen=0.0, prompt=0.0, at=f"22:{20 + n}:30") for n in range(3)],
    "a kill": ["Killed"],
    "leaked": [LEAKED],
}  # fmt: skip


@pytest.mark.parametrize("what", STUCK)
def test_a_shutdown_that_sticks_is_no_health(tmp_path: Path, what: str) -> None:
    assert read(tmp_path, *UP, *TOLD, *STUCK[what]).exit_code in (1, 4)
    assert read(tmp_path, *UP, DONE[0], *STUCK[what]).exit_code in (1, 4)


@pytest.mark.parametrize("killed", KILLS)
def test_processes_that_vllm_had_to_kill_are_named(tmp_path: Path, killed: str) -> None:
    assert lead(read(tmp_path, *UP, *TOLD, killed, *DONE)) == [("shutdown-stuck", "proven")]


AT_ITS_END = [
    line(API, "[shutdown] Process manager: force killing remaining processes count=1", "WARNING", "22:20:05", "utils.py:648"),
    line(API, "[shutdown] force killing sub process VLLM::EngineCore pid 648", "WARNING", "22:20:05", "system_utils.py:248"),
]  # fmt: skip


@pytest.mark.parametrize("killed", AT_ITS_END)
def test_a_kill_after_a_time_out_is_likely_a_stuck_shutdown(tmp_path: Path, killed: str) -> None:
    waits = [text.replace("mode=abort timeout=0s", "mode=drain timeout=60s") for text in TOLD]
    assert lead(read(tmp_path, *UP, *waits, killed, *DONE)) == [("shutdown-stuck", "likely")]
    # Without a time-out vLLM kills its processes at once.
    assert read(tmp_path, *UP, *TOLD, killed, *DONE).exit_code == 0


@pytest.mark.parametrize("name", ["shutdown-032.log", "shutdown-032-two-servers.log"])
def test_a_real_shutdown(name: str) -> None:
    result = triage([str(EXCERPTS / name)])
    assert (result.exit_code, result.runs[0].reasons[2]) == (0, "it was told to stop and stopped")


def test_a_shutdown_that_goes_on_and_on_is_likely_stuck(tmp_path: Path) -> None:
    waits = STUCK["the engine waits"]
    assert lead(read(tmp_path, *UP, *TOLD, *waits)) == [("shutdown-stuck", "likely")]
    # Requests in flight are served to their end: that is no standstill.
    drain = [stats(at=f"22:{20 + n}:30") for n in range(6)]
    assert read(tmp_path, *UP, *TOLD, *drain, *DONE).exit_code == 0
    assert read(tmp_path, *UP, *TOLD, *drain).verdict == "inconclusive"


def test_leaked_objects_are_of_processes_that_were_killed(tmp_path: Path) -> None:
    assert read(tmp_path, *UP, LEAKED).exit_code == 4


SIGKILLED = [
    line(ENGINE, "Worker proc VllmWorker-2 died unexpectedly (exit code: -9), shutting down executor.", "ERROR", "22:20:01", "multiproc_executor.py:380"),
    line(ENGINE, "Worker proc VllmWorker-2 died with exit code -9", "WARNING", "22:20:01", "multiproc_executor.py:380"),
    f"({ENGINE}) Process VllmWorker-2 terminated with signal SIGKILL",
    "Process VllmWorker-2 (pid 705) was killed by signal 9",
    "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGKILL",
    "worker 2 exited, exitcode=-9",
    "E1103 22:20:01.123000 140 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 2 (pid: 705) of binary: /usr/bin/python3",
    "2026-11-03 22:20:01,123 WARN exited: vllm (terminated by SIGKILL; not expected)",
    "2026-11-03 22:20:01,123 INFO exited: vllm (terminated by SIGKILL; expected)",
    "[INFO  tini (1)] Main child exited with signal (with signal 'Killed')",
    "(raylet, ip=10.0.0.3) A worker died or was killed while executing a task by an unexpected system error.",
    "subprocess.CalledProcessError: Command '['vllm', 'serve', 'm']' died with <Signals.SIGKILL: 9>.",
]  # fmt: skip


@pytest.mark.parametrize("killed", SIGKILLED)
def test_a_worker_that_was_killed_is_no_orderly_end(tmp_path: Path, killed: str) -> None:
    assert read(tmp_path, *UP, killed, *TOLD, *DONE).exit_code in (1, 4)
    if "raylet" not in killed:
        # Ray says so of each actor that it stops.
        assert read(tmp_path, *UP, *TOLD, killed, *DONE).exit_code in (1, 4)


DUMP = [
    "Thread 0x00007f1e2b7fe640 (most recent call first):",
    '  File "/usr/lib/python3.12/threading.py", line 359 in wait',
    '  File "/opt/vllm/v1/executor/multiproc_executor.py", line 1060 in worker_busy_loop',
    "",
]
DUMPS = {
    "a watchdog": ["Timeout (0:00:30)!", *DUMP],
    "all threads": DUMP,
    "a named thread": [DUMP[0].replace(" (most", " [MainThread] (most"), *DUMP[1:]],
    "a fatal error": ["Fatal Python error: Segmentation fault", "", DUMP[0].replace("Thread", "Current thread"), *DUMP[1:]],
    "on exit": ["Fatal Python error: _enter_buffered_busy: could not acquire lock for <_io.BufferedWriter name='<stderr>'> at interpreter shutdown, possibly due to daemon threads"],
    "vLLM's own watchdog": [line(WORKER, "[Watchdog]Dumped stack to /tmp/VLLM_STACK_DUMP_for_worker_703.log due to feed timeout", file="watch_dog.py:95")],
}  # fmt: skip


@pytest.mark.parametrize("tag", ["", f"({WORKER}) ", f"({API}) "])
@pytest.mark.parametrize("what", DUMPS)
def test_a_dump_of_stacks_is_no_health(tmp_path: Path, what: str, tag: str) -> None:
    dumped = [text if text.startswith("(") else tag + text for text in DUMPS[what]]
    for end in ([], [request()], [*TOLD, *DONE]):
        assert read(tmp_path, *UP, *dumped, *end).exit_code in (1, 4)


def test_a_dump_that_vllm_makes_at_its_shutdown_is_none(tmp_path: Path) -> None:
    dumped = line(ENGINE, "[Watchdog]Dumped stack to /tmp/VLLM_STACK_DUMP_for_engine_648.log due to SIGTERM", file="watch_dog.py:95")  # fmt: skip
    assert read(tmp_path, *UP, *TOLD, dumped, *DONE).exit_code == 0


def test_a_restart_that_nobody_asked_for_is_not_health(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    first = [start(), started_up(), request()]
    second = [start(pid=600), started_up(pid=600), request()]
    log.write_text("\n".join([*first, *second, ""]))
    found = triage([str(log)])
    assert [one.verdict for one in found.runs] == ["inconclusive", "healthy"]
    assert found.exit_code == 4
    told = "(APIServer pid=588) INFO:     Shutting down"
    log.write_text("\n".join([*first, told, *second, ""]))
    assert triage([str(log)]).exit_code == 4
    done = "(APIServer pid=588) INFO:     Application shutdown complete."
    log.write_text("\n".join([*first, told, done, *second, ""]))
    assert triage([str(log)]).exit_code == 0


def test_that_it_stopped_is_said_only_where_the_log_says_so(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    told = [start(), started_up(), request(), "(APIServer pid=588) INFO:     Shutting down", ""]
    log.write_text("\n".join(told))
    assert "it was told to stop; that it stopped is not shown" in triage([str(log)]).runs[0].reasons
    log.write_text(
        "\n".join([*told, "(APIServer pid=588) INFO:     Finished server process [588]"])
    )
    assert "it was told to stop and stopped" in triage([str(log)]).runs[0].reasons


def test_a_log_without_an_end_is_not_said_to_be_of_a_living_server(tmp_path: Path) -> None:
    """A server that was killed at once leaves the same log as one that still runs."""
    running = read(tmp_path, *UP)
    assert running.exit_code == 0
    assert "its end is not in the log" in running.runs[0].reasons
    assert "Whether it lives after that line no log tells" in page(running, False)
    stopped = page(read(tmp_path, *UP, *TOLD, *DONE), False)
    assert "Stopped" in stopped and "lives after" not in stopped


def test_the_error_leads_and_not_the_dump_before_it(tmp_path: Path) -> None:
    dump = line(
        ENGINE, "Dumping input data for V1 LLM engine (v0.33.0)", "ERROR", file="dump_input.py:72"
    )
    texts = [
        "EngineCore encountered a fatal error.",
        "Traceback (most recent call last):",
        '  File "vllm/models/x.py", line 9, in forward',
        "AssertionError",
    ]
    error = [line(ENGINE, text, "ERROR", file="core.py:1586") for text in texts]
    found = read(tmp_path, *UP, dump, *error)
    trouble = found.runs[0].run.first_trouble()
    assert trouble is not None and (trouble.what, trouble.frame) == (
        "AssertionError",
        "vllm/models/x.py:9 in forward",
    )
    assert lead(found) == [("engine-died", "unconfirmed")]
    assert "an exception ended the engine process" in page(found, False)
    assert read(tmp_path, *UP, dump).exit_code == 4
