"""Evidence of the guard, given along with a log, joins its verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hisparse_guard.cli.app import run_app
from hisparse_guard.cli.triage import Triage
from hisparse_guard.cli.triage.checklist import checklist
from tests.cli.report.samples import Process, world
from tests.cli.triage.logs import (
    COPY_FRAMES,
    LAUNCH_FAILURE,
    excerpt,
    read,
    request,
    start,
    started_up,
    traceback,
    workspace,
)
from tests.cli.triage.test_inputs import lead

CRASH = [start(tp=2), started_up(), traceback(1, COPY_FRAMES, LAUNCH_FAILURE)]


def read_with(tmp_path: Path, log: list[str], *workers: Process) -> Triage:
    for worker in workers:
        worker.write(tmp_path / "evidence")
    return read(tmp_path, *log, evidence=[str(tmp_path / "evidence")])


def named(result: Triage) -> list[tuple[str, str]]:
    return lead(result)


def test_proves_mnnvl_where_the_line_is_missing(tmp_path: Path) -> None:
    result = read_with(tmp_path, CRASH, *(worker.observed() for worker in world(2, pid=703)))
    assert named(result) == [("hisparse-mnnvl", "proven")]
    (judged,) = result.runs
    items = {item.name: item for item in checklist(judged.run, judged.present)}
    assert items["all-reduce workspace"].state == "differs"


def test_rules_mnnvl_out_where_the_line_is_missing(tmp_path: Path) -> None:
    result = read_with(tmp_path, CRASH, *(worker.guarded() for worker in world(2, pid=703)))
    assert named(result) == [("host-mirror-collected", "unconfirmed")]
    assert "evidence of the guard: safe" in result.reasons


def test_unsafe_evidence_beside_a_healthy_log_is_a_fault(tmp_path: Path) -> None:
    result = read_with(
        tmp_path,
        [start(tp=2), started_up(), request()],
        *(worker.observed() for worker in world(2, pid=703)),
    )
    assert result.exit_code == 1


def test_evidence_of_other_processes_says_nothing_of_a_run(tmp_path: Path) -> None:
    others = [worker.observed() for worker in world(2, pid=40)]
    result = read_with(tmp_path, excerpt("fixed-ok.log").splitlines(), *others)
    assert (result.exit_code, named(result)) == (1, [])
    (note,) = [reason for reason in result.reasons if "process id" in reason]
    assert "18587" in note and "40, 41" in note


def test_the_log_decides_where_it_has_a_backend_line(tmp_path: Path) -> None:
    log = [start(tp=2), workspace("trtllm"), started_up(), request()]
    result = read_with(tmp_path, log, *(worker.observed() for worker in world(2, pid=703)))
    assert (result.exit_code, named(result)) == (1, [])
    assert not any("process id" in reason for reason in result.reasons)


def test_runs_that_disagree_say_nothing(tmp_path: Path) -> None:
    # Two runs of one container, with the same process ids.
    first = [worker.observed() for worker in world(2, pid=703)]
    second = [worker.guarded() for worker in world(2, pid=703, start=1000.0)]
    assert named(read_with(tmp_path, CRASH, *first, *second)) == [("hisparse-mnnvl", "likely")]


def test_missing_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("\n".join(CRASH))
    assert run_app(["triage", str(log), "--evidence", str(tmp_path / "none")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "none" in error


def test_a_kernel_that_waits_speaks_against_mnnvl_and_decides_nothing(tmp_path: Path) -> None:
    workers = [worker.observed() for worker in world(2, pid=703)]
    for worker in workers:
        armed = {**json.loads(worker.lines[0]), "kernel_class": "waits"}
        worker.lines[0] = json.dumps(armed)
    result = read_with(tmp_path, CRASH, *workers)
    assert named(result) == [("hisparse-mnnvl", "proven")]
    assert "speaks against the race" in result.runs[0].circumstances[0]
