"""What a line says is what the guard comes to from the lines before it, or it proves nothing.

Real evidence of two ranks each, names and paths replaced: vLLM 0.33.0 with guard 0.2.0 and, for
`evidence`, guard 0.1.0.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hisparse_guard.cli.report.report import judge
from hisparse_guard.runtime.state import ENV_BACKEND
from tests.cli.report.editing import Line, Ranks, change, of, renumber, said, write

DATA = Path(__file__).resolve().parents[2] / "data"
# A workspace made, destroyed and made again; one asked for by the variable; none because of nodes;
# none because of HISPARSE_GUARD_BACKEND; and a workspace under guard 0.1.0.
RECREATED, ENV, NODES, NONE = "evidence-0.2.0", "evidence-env", "evidence-nodes", "evidence-none"
OLD = "evidence"

Edit = Callable[[list[Line]], object]


def original(name: str) -> Ranks:
    return [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted((DATA / name).glob("*.jsonl"))
    ]


@pytest.mark.parametrize("name", [RECREATED, ENV, NODES, NONE, OLD])
def test_the_evidence_as_it_stands_is_safe(name: str) -> None:
    report = judge([DATA / name])
    doubts = [p.doubts for result in report.results for p in result.server.processes]
    assert (report.verdict, report.evidence.problems, doubts) == ("safe", [], [[], []])


def _every(event: str, **fields: Any) -> Edit:
    return lambda lines: change(lines, event, **fields)


def _setting(**settings: str) -> Edit:
    return lambda lines: lines[0]["settings"].update(settings)


def _gone(event: str, **fields: Any) -> Edit:
    """Lines taken away, and the others numbered anew."""

    def edit(lines: list[Line]) -> None:
        gone = of(lines, event, **fields)
        assert gone
        lines[:] = [line for line in lines if line not in gone]
        renumber(lines)

    return edit


def _both(*edits: Edit) -> Edit:
    return lambda lines: [edit(lines) for edit in edits]


def _counted_seven(lines: list[Line]) -> None:
    of(lines, "context_miss")[0]["count"] = 7


def _asked_before_it_was_decided(lines: list[Line]) -> None:
    miss = lines.index(of(lines, "context_miss")[0])
    decision = lines.index(of(lines, "resolved", config_current=False)[0])
    lines[miss], lines[decision] = lines[decision], lines[miss]
    lines[miss]["ts"], lines[decision]["ts"] = lines[decision]["ts"], lines[miss]["ts"]
    renumber(lines)


def _one_decision_by_another_variable(lines: list[Line]) -> None:
    decision = dict(of(lines, "resolved")[0])
    decision.update(rule="env", env_backend="trtllm", vllm_answer=["trtllm", False], pinned=None)
    lines.insert(4, {**decision, "upstream": "trtllm"})
    renumber(lines)


NO_GROUP = {"group": None, "group_rank": None, "group_size": None}
NO_HISPARSE = {"hisparse": False, "source": None}
NO_CONFIG = "and no config before it has it"
NO_TABLE, NO_DECISION = "does not come to", "as no decision says"

# Which evidence, the edit of the lines of its ranks, and what is said then.
EDITS: dict[str, tuple[str, Edit, str]] = {
    "a miss without a backend": (RECREATED, _every("context_miss", used="none"), NO_DECISION),
    "a miss of which vLLM alone had none": (
        RECREATED, _every("context_miss", vllm_alone=None), NO_DECISION),
    "a miss answered trtllm, decided none": (
        NONE, _every("context_miss", used="trtllm", target="trtllm"), NO_DECISION),
    "the same under guard 0.1.0": (OLD, _every("context_miss", used="none"), NO_DECISION),
    "a miss before its decision": (RECREATED, _asked_before_it_was_decided, NO_DECISION),
    "settings of none, decided trtllm": (RECREATED, _setting(backend="none"), NO_TABLE),
    "settings of trtllm, decided none": (NONE, _setting(backend="trtllm"), NO_TABLE),
    "the same under 0.1.0": (OLD, _setting(backend="none"), NO_TABLE),
    "a pin that is not the target": (NODES, _every("resolved", pinned="trtllm"), NO_TABLE),
    "a pin that nothing pinned": (ENV, _every("resolved", pinned="none"), NO_TABLE),
    "no config had HiSparse": (RECREATED, _every("config_seen", **NO_HISPARSE), NO_CONFIG),
    "no config": (NODES, _gone("config_seen"), NO_CONFIG),
    "no config under 0.1.0": (OLD, _gone("config_seen"), NO_CONFIG),
    "no decision": (RECREATED, _gone("resolved"), NO_DECISION),
    "no decision and no miss": (
        ENV, _both(_gone("resolved"), _gone("context_miss")), "no decision is here"),
    "no miss": (RECREATED, _gone("context_miss"), "no line says where"),
    "no miss under 0.1.0": (OLD, _gone("context_miss"), "no line says where"),
    "no group": (
        RECREATED, _both(_every("resolved", **NO_GROUP), _every("workspace", **NO_GROUP)),
        "group is not named"),
    "no group of the workspaces": (ENV, _every("workspace", **NO_GROUP), "group is not named"),
    "a miss counted seven times": (RECREATED, _counted_seven, "count does not follow"),
    "a miss that ends at seven": (
        RECREATED, lambda lines: of(lines, "context_miss")[0].update(count=7, at_exit=True),
        "count does not follow"),
    "no creation": (ENV, _gone("workspace", state="made"), "has no line"),
    "destroyed, and mnnvl was expected": (
        RECREATED, lambda lines: of(lines, "workspace", state="destroyed")[0].update(
            expected="mnnvl"), NO_DECISION),
    "a getter without HiSparse": (
        RECREATED, lambda lines: of(lines, "workspace", state="verified")[0].update(
            hisparse=False), "HiSparse was not seen"),
    "as expected, and not verified": (
        ENV, lambda lines: of(lines, "workspace", state="verified")[0].update(state="made"),
        "does not fit its backend"),
    "two values of the variable": (
        RECREATED, _one_decision_by_another_variable, f"several values of {ENV_BACKEND}"),
}  # fmt: skip


@pytest.mark.parametrize("ranks", [[1], [0, 1]], ids=["rank 1", "both ranks"])
@pytest.mark.parametrize("name", EDITS)
def test_edit(tmp_path: Path, name: str, ranks: list[int]) -> None:
    data, edit, says = EDITS[name]
    evidence = original(data)
    for rank in ranks:
        edit(evidence[rank])
    report = judge([write(evidence, tmp_path)])
    assert report.exit_code in (1, 4)
    assert says in said(report)


def test_a_variable_that_one_rank_was_not_given(tmp_path: Path) -> None:
    evidence = original(ENV)
    evidence[1][0]["environment"][ENV_BACKEND] = None
    report = judge([write(evidence, tmp_path)])
    assert report.verdict == "unproven"
    assert f"{ENV_BACKEND} differs: rank 0: trtllm; rank 1: not set" in said(report)
    assert "on all ranks alike" in (report.results[0].judgement.advice or "")


def test_the_line_of_who_asked_may_not_be_written_yet(tmp_path: Path) -> None:
    evidence = original(NONE)
    for lines in evidence:
        del lines[lines.index(of(lines, "context_miss")[0]) :]
    assert judge([write(evidence, tmp_path)]).verdict == "safe"


def test_a_line_at_exit_may_tell_of_the_time_before_hisparse(tmp_path: Path) -> None:
    """An earlier decision that came twice is counted at exit, when HiSparse is long seen."""
    evidence = original(ENV)
    for lines in evidence:
        early = of(lines, "resolved")[0] | {"hisparse": False, "rule": "no-hisparse"}
        lines.insert(2, early)
        lines.append({**early, "ts": lines[-1]["ts"], "count": 2, "at_exit": True})
        early["ts"] = lines[1]["ts"]
        renumber(lines)
    report = judge([write(evidence, tmp_path)])
    assert report.verdict == "safe", said(report)
