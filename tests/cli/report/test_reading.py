"""The reader on whole, torn, mixed and hostile files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse_guard.cli.report import reader as module
from hisparse_guard.cli.report.reader import Evidence, read_evidence
from hisparse_guard.runtime.telemetry.events import Resolved
from tests.cli.report.samples import Process, world


def problems(found: Evidence) -> str:
    return "\n".join(str(problem) for problem in found.problems)


def test_a_whole_file_has_no_problems(tmp_path: Path) -> None:
    process = Process().guarded()
    process.write(tmp_path)
    found = read_evidence([tmp_path])
    assert (found.files, found.lines, found.torn) == (1, len(process.lines), [])
    assert found.problems == []
    (one,) = found.processes
    assert (one.host, one.pid, one.ranks, one.world_sizes) == ("node-a", 100, {0}, {2})
    assert (one.lost, list(one.misses.values())) == (0, [1])
    resolved = [record.event for record in one.records if type(record.event) is Resolved]
    assert [event.answer for event in resolved] == [("trtllm", False)] * 2


@pytest.mark.parametrize("cut", [1, 2, 40, 200])
def test_a_last_line_cut_short_is_torn_and_costs_only_itself(tmp_path: Path, cut: int) -> None:
    process = Process().guarded()
    path = process.write(tmp_path)
    path.write_text(process.text[: -1 - cut])
    found = read_evidence([tmp_path])
    assert found.torn == [str(path)]
    assert "cut short" in problems(found)
    assert found.processes[0].lines == len(process.lines) - 1


def test_a_last_line_that_lacks_only_its_newline_is_whole(tmp_path: Path) -> None:
    process = Process().guarded()
    process.write(tmp_path).write_text(process.text[:-1])
    found = read_evidence([tmp_path])
    assert (found.torn, found.problems) == ([], [])


def test_the_next_process_writes_behind_a_torn_line(tmp_path: Path) -> None:
    """A container restarts: same host, same pid, same file, and no newline was written."""
    first, second = Process().guarded(), Process(start=900.0).guarded()
    path = first.write(tmp_path)
    path.write_text(first.text[:-60] + second.text)
    found = read_evidence([tmp_path])
    assert [one.lines for one in found.processes] == [len(first.lines) - 1, len(second.lines) - 1]
    assert all(one.problems for one in found.processes)


def test_zeros_after_a_power_loss(tmp_path: Path) -> None:
    process = Process().guarded()
    process.write(tmp_path).write_bytes(process.text.encode() + b"\0" * 5000)
    found = read_evidence([tmp_path])
    assert found.processes[0].lines == len(process.lines)
    assert found.processes[0].problems


def test_lines_longer_than_any_evidence_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE", 5000)
    monkeypatch.setattr(module, "_CHUNK", 1000)
    process = Process().guarded()
    path = process.write(tmp_path)
    path.write_text("x" * 100_000 + "\n" + process.text + "y" * 100_000)
    found = read_evidence([tmp_path])
    assert found.processes[0].lines == len(process.lines)
    assert "is longer than" in problems(found) and found.problems[0].count == 2


@pytest.mark.parametrize("chunk", [1, 7, 100, 4096])
def test_chunks_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    Process().guarded().write(tmp_path)
    whole = read_evidence([tmp_path])
    monkeypatch.setattr(module, "_CHUNK", chunk)
    assert read_evidence([tmp_path]).processes == whole.processes


def test_newer_schemas_and_events_are_counted_and_told(tmp_path: Path) -> None:
    process = Process().config().line("self_destruct", fuse=3)
    path = process.write(tmp_path)
    path.write_text(process.text + process.lines[0].replace('"schema":1', '"schema":2') + "\n")
    found = read_evidence([tmp_path])
    assert found.unknown_events == {"self_destruct": 1}
    assert found.unknown_schema == 1
    assert len(found.problems) == 2


@pytest.mark.parametrize(
    "line",
    [
        "[]", "7", "null", "{}", "[" * 100_000,
        '{"schema":1,"event":["resolved"]}',
        '{"schema":1,"event":"resolved","rank":' + "9" * 5000 + "}",
        '{"schema":1,"event":"context_miss","stack":[1,{"file":2}],"left_s":1e999,"where":[]}',
        '{"schema":1,"event":"armed","settings":[],"environment":{"A":1},"ppid":true}',
        '{"schema":1,"event":"workspace","state":{},"backend":[]}',
        '{"schema":1,"event":"config_seen","model":"\\ud800"}',
    ],
)  # fmt: skip
def test_hostile_lines_never_end_the_reading(tmp_path: Path, line: str) -> None:
    process = Process().guarded()
    process.write(tmp_path).write_text(line + "\n" + process.text)
    found = read_evidence([tmp_path])
    assert [one.lines for one in found.processes] == [len(process.lines)]
    assert len(found.problems) == 1 and found.processes[0].problems


def test_folders_are_searched_and_a_file_is_read_once(tmp_path: Path) -> None:
    for process in world(3, host="n1"):
        process.guarded().write(tmp_path / "n1" / "deep")
    path = Process(host="n2").guarded().write(tmp_path / "n2")
    (tmp_path / "n1" / "vllm.log").write_text("not evidence\n")
    (tmp_path / "n2" / "loop").symlink_to(tmp_path)
    (tmp_path / "n2" / "hisparse-guard-again-100.jsonl").symlink_to(path)
    found = read_evidence([tmp_path, tmp_path / "n1", path])
    assert (found.files, found.problems) == (4, [])
    assert sorted({one.host for one in found.processes}) == ["n1", "n2"]


def test_a_missing_path_is_the_callers_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_evidence([tmp_path / "nothing"])


def test_a_name_that_is_no_utf8(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/hisparse-guard-\xff-1.jsonl"
    with open(name, "wb") as handle:
        handle.write(b"hello\n")
    assert len(read_evidence([tmp_path]).problems) == 1


def test_running_counts_are_not_added_up(tmp_path: Path) -> None:
    process = Process().config().resolve()
    for count in (1, 10, 100, 137):
        process.miss(count=count)
    process.miss(count=5, where={"file": "other.py", "line": 1, "function": "f"})
    process.write(tmp_path)
    (found,) = read_evidence([tmp_path]).processes
    assert sorted(found.misses.values()) == [5, 137]


def test_sharing_the_work_changes_nothing(tmp_path: Path) -> None:
    for process in world(5):
        process.guarded().miss(where={"file": f"{process.pid}.py", "line": 1, "function": "f"})
        process.write(tmp_path)
    alone, shared = read_evidence([tmp_path], jobs=1), read_evidence([tmp_path], jobs=2)
    by_site = [
        {(found.misses[n].event.where, c) for p in found.processes for n, c in p.misses.items()}
        for found in (alone, shared)
    ]
    assert by_site[0] == by_site[1]
    for process_found in alone.processes + shared.processes:
        process_found.misses = {}
    assert alone.processes == shared.processes


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=300), at=st.integers(0, 5))
def test_any_bytes_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int
) -> None:
    lines = [line.encode() + b"\n" for line in Process().guarded().lines]
    lines.insert(at, data)
    path = tmp_path_factory.mktemp("any") / "hisparse-guard-x-1.jsonl"
    path.write_bytes(b"".join(lines))
    found = read_evidence([path])
    assert sum(one.lines for one in found.processes) >= 4
    json.dumps([problem.to_json() for problem in found.problems]).encode()
