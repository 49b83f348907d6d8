"""The published excerpts get the right name with the right certainty."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hisparse_guard.cli.app import run_app
from hisparse_guard.cli.triage import triage
from tests.triage.logs import DATA, excerpt

# excerpt, exit code, fault, certainty
EXPECTED = [
    ("main-crash.log", 1, "hisparse-mnnvl", "proven"),
    ("mirror-collected.txt", 1, "host-mirror-collected", "likely"),
    ("replay-faulting.txt", 1, "host-mirror-replay", "likely"),
    ("fixed-ok.log", 0, None, None),
    ("serve-command.sh", 3, None, None),
    ("evalscope-summary.txt", 3, None, None),
]


@pytest.mark.parametrize(("name", "code", "fault", "certainty"), EXPECTED)
def test_excerpt(name: str, code: int, fault: str | None, certainty: str | None) -> None:
    result = triage([str(DATA / name)])
    assert result.exit_code == code
    named = [(f.fault.id, f.certainty) for _, judged in result.lives for f in judged.findings]
    assert named == ([] if fault is None else [(fault, certainty)])


def test_without_the_workspace_line_it_is_only_likely(tmp_path: Path) -> None:
    path = tmp_path / "cut.log"
    path.write_text("".join(excerpt("main-crash.log").splitlines(keepends=True)[1:]))
    (finding,) = triage([str(path)]).lives[0][1].findings
    assert (finding.fault.id, finding.certainty) == ("hisparse-mnnvl", "likely")
    assert any("missing" in word for word in finding.when.likely)


def test_crash_says_which_rank_and_on_which_lines() -> None:
    (_, judged), *_ = triage([str(DATA / "main-crash.log")]).lives
    (finding,) = judged.findings
    assert finding.ranks == ("TP2",)
    numbers = [line.number for line in finding.evidence]
    assert {1, 11, 14, 19} <= set(numbers)
    stats = judged.life.stats_before_fault
    assert stats and (stats.running, stats.waiting, stats.kv_usage) == (32, 0, 37.0)


def test_collected_says_that_it_was_collected_there_and_how_to_go_on() -> None:
    (_, judged), *_ = triage([str(DATA / "mirror-collected.txt")]).lives
    fault = judged.findings[0].fault
    assert "where an already failed asynchronous launch was collected" in fault.meaning
    assert "CUDA_LAUNCH_BLOCKING=1" in fault.next_steps[0]
    assert "cures nothing" in fault.next_steps[0]


def test_replay_names_its_lead_as_unproven() -> None:
    (_, judged), *_ = triage([str(DATA / "replay-faulting.txt")]).lives
    (finding,) = judged.findings
    assert any("not a proven cause" in lead for lead in finding.fault.unproven)
    assert not any("submit_layer_mirror" in word for word in finding.when.proven)


def test_healthy_log_says_what_was_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["triage", str(DATA / "fixed-ok.log")]) == 0
    out = capsys.readouterr().out
    assert "1 line `backend=trtllm`" in out
    assert "0 lines with `CUDA error`" in out


def test_mixed_log_with_two_restarts_names_both(tmp_path: Path) -> None:
    from tests.triage.logs import (
        LAUNCH_FAILURE,
        MIRROR_FRAMES,
        NIXL,
        request,
        served,
        start,
        traceback,
        workspace,
    )

    path = tmp_path / "mixed.log"
    first = excerpt("main-crash.log")
    second = "\n".join(
        [
            start(pid=1588, connector=NIXL, at="22:20:00"),
            workspace("trtllm", pid=1703),
            served(1588),
            *(traceback(rank, MIRROR_FRAMES, LAUNCH_FAILURE, pid=1703) for rank in range(4)),
        ]
    )
    third = "\n".join(
        [start(pid=2588, at="23:00:00"), workspace("trtllm", pid=2703), served(2588), request()]
    )
    path.write_text("\n".join([first.rstrip("\n"), second, third]))
    result = triage([str(path)])
    named = [[(f.fault.id, f.certainty) for f in judged.findings] for _, judged in result.lives]
    assert named == [
        [("hisparse-mnnvl", "proven")],
        [("host-mirror-collected", "likely")],
        [],
    ]
    assert [judged.verdict for _, judged in result.lives] == ["fault", "fault", "healthy"]
    assert result.exit_code == 1
    # The second life's facts are its own.
    assert "NixlConnector" not in result.lives[0][1].life.connectors
    assert "NixlConnector" not in result.lives[2][1].life.connectors


def test_restarted_container_has_the_same_process_ids(tmp_path: Path) -> None:
    from tests.triage.logs import COPY_FRAMES, LAUNCH_FAILURE, served, start, traceback, workspace

    def life(backend: str, late: str = "") -> list[str]:
        lines = start().splitlines()
        return [*lines[:2], *late.splitlines(), lines[2], workspace(backend), served(),
                *traceback(1, COPY_FRAMES, LAUNCH_FAILURE).splitlines()[:-1]]  # fmt: skip

    late = traceback(1, COPY_FRAMES, LAUNCH_FAILURE).splitlines()[-1]
    path = tmp_path / "vllm.log"
    path.write_text("\n".join([*life("mnnvl"), *life("trtllm", late)]))
    first, second = (judged for _, judged in triage([str(path)]).lives)
    # The last line of the first server came after the banner of the second.
    assert [f.fault.id for f in first.findings] == ["hisparse-mnnvl"]
    assert second.life.count("workspace_trtllm") == 1
    assert second.life.count("launch_failure") == 0


def test_excerpts_behind_one_another_without_a_banner(tmp_path: Path) -> None:
    path = tmp_path / "joined.log"
    path.write_text(excerpt("main-crash.log") + excerpt("fixed-ok.log"))
    result = triage([str(path)])
    assert [judged.verdict for _, judged in result.lives] == ["fault", "healthy"]
    assert "18587" in (result.lives[1][1].life.begun_by or "")


def test_pieces_of_one_log_and_a_load_result_beside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = excerpt("main-crash.log").splitlines(keepends=True)
    (tmp_path / "vllm.log.1").write_text("".join(lines[:4]))
    (tmp_path / "vllm.log").write_text("".join(lines[4:]))
    ramp = {
        "tool": "hisparse-guard ramp",
        "schema": 1,
        "verdict": "failed",
        "partial": True,
        "levels": [
            {"concurrency": 8, "planned": 16, "done": 16, "failed": 0},
            {"concurrency": 16, "planned": 32, "done": 9, "failed": 23},
        ],
    }
    (tmp_path / "ramp.json").write_text(json.dumps(ramp))
    paths = [str(tmp_path / name) for name in ("vllm.log.1", "vllm.log", "ramp.json")]
    assert run_app(["triage", "--json", "--joined", *paths]) == 1
    data = json.loads(capsys.readouterr().out)
    (life,) = data["lives"]
    assert [(f["id"], f["certainty"]) for f in life["findings"]] == [("hisparse-mnnvl", "proven")]
    files = {Path(line["file"]).name for line in life["findings"][0]["evidence"]}
    assert files == {"vllm.log.1", "vllm.log"}
    (load,) = data["load"]
    assert (load["done"], load["failed"], load["partial"]) == (25, 23, True)


def test_pieces_of_one_log_keep_their_names_and_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    script, log = (str(DATA / name) for name in ("serve-command.sh", "main-crash.log"))
    assert run_app(["triage", "--json", "--joined", script, log]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [(file["file"], file["lives"]) for file in data["files"]] == [(script, 1), (log, 0)]
    (life,) = data["lives"]
    assert (life["file"], life["last_file"], life["last_line"]) == (script, log, 19)
    files = [line["file"] for line in life["findings"][0]["evidence"]]
    assert files == sorted(files, reverse=True), "the serve script came first"
    assert {item["file"] for item in life["checklist"]} == {script, log, None}
    assert life["facts"]["connector_files"] == {"HiSparseConnector": script}
    assert life["facts"]["last_statistics"]["file"] == log
    assert life["ranks_failed"][0]["file"] == log

    run_app(["triage", "--joined", script, log])
    shown = capsys.readouterr().out
    assert f"{script}, life 1: {script}:1 to {log}:19" in shown
    assert f"all-reduce workspace: mnnvl [expected: trtllm]  ({log}:1)" in shown
    assert f"block size: 64  ({script}:4)" in shown
    assert not re.search(r"\(line \d", shown)


def test_a_load_result_before_the_pieces_hides_nothing() -> None:
    names = ("evalscope-summary.txt", "main-crash.log")
    result = triage([str(DATA / name) for name in names], joined=True)
    assert result.exit_code == 1
    assert [log.kind for log in result.files] == ["load result (evalscope)", "log"]
