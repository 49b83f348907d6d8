"""Every entry is well formed, and names its log with the right certainty."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse_guard.cli.app import run_app
from hisparse_guard.cli.triage import triage
from hisparse_guard.cli.triage.catalogue import load
from tests.triage.cases import CASES
from tests.triage.logs import DATA


def names(log: Path, **options: object) -> list[tuple[str, str]]:
    result = triage([str(log)], **options)  # type: ignore[arg-type]
    return [
        (finding.fault.id, finding.certainty)
        for _, judged in result.lives
        for finding in judged.findings
        if finding.follows_from is None
    ]


@pytest.mark.parametrize(
    ("fault", "certainty", "log"), CASES, ids=[f"{n}-{case[0]}" for n, case in enumerate(CASES)]
)
def test_log_of_a_known_fault(tmp_path: Path, fault: str, certainty: str, log: str) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(log)
    assert names(path) == [(fault, certainty)]
    result = triage([str(path)])
    assert result.exit_code == 1
    finding = result.lives[0][1].findings[0]
    assert finding.evidence, "a fault without a line that shows it"
    text = log.splitlines()
    for line in finding.evidence:
        assert line.message.strip() in text[line.number - 1]


def test_every_entry_has_a_case() -> None:
    assert {case[0] for case in CASES} == {fault.id for fault in load().faults}


def test_next_steps_that_name_ramp_can_be_run_as_they_are_written() -> None:
    ramps = [
        step
        for fault in load().faults
        for step in fault.next_steps
        if "hisparse-guard ramp" in step
    ]
    assert ramps
    assert all("--base-url URL" in step and "--model NAME" in step for step in ramps)


def test_sizes_and_counts_of_a_small_log(capsys: pytest.CaptureFixture[str]) -> None:
    path = DATA / "fixed-ok.log"
    assert run_app(["triage", str(path)]) == 0
    shown = capsys.readouterr().out
    assert f"{path}: {path.stat().st_size} bytes, 1 line, 1 life" in shown
    assert "life 1: line 1\n" in shown
    assert "1 line `backend=trtllm`" in shown


def test_sources_and_order() -> None:
    faults = load().faults
    assert all(fault.sources and fault.next_steps for fault in faults)
    assert len({fault.order for fault in faults}) == len(faults), "which comes first is a decision"


@pytest.mark.parametrize("symptom", ["garbled", "slow"])
def test_what_only_the_operator_sees(tmp_path: Path, symptom: str) -> None:
    from tests.triage.logs import HISPARSE_METRICS, served, start, workspace

    path = tmp_path / "vllm.log"
    path.write_text("\n".join([start(), workspace("trtllm"), served(), HISPARSE_METRICS]))
    assert names(path) == []
    expected = {"garbled": "hisparse-garbled-output", "slow": "trtllm-slow-on-bridged-nvlink"}
    assert [name for name, _ in names(path, symptoms=[symptom])] == [expected[symptom]]


@pytest.mark.parametrize("symptom", ["hang", "garbled", "slow"])
def test_what_the_operator_sees_and_no_line_explains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], symptom: str
) -> None:
    from tests.triage.logs import PLAIN, request, served, start

    path = tmp_path / "vllm.log"
    path.write_text("\n".join([start(connector=PLAIN), served(), request()]))
    assert run_app(["triage", str(path)]) == 0
    capsys.readouterr()
    assert run_app(["triage", str(path), "--symptom", symptom]) == 4
    shown = capsys.readouterr().out
    assert f"you reported --symptom {symptom}; nothing in this log explains it" in shown
    assert "nothing wrong" not in shown


@pytest.mark.parametrize("name", sorted(load().signals))
def test_every_match_of_a_signal_holds_one_of_its_words(name: str) -> None:
    signal = load().signals[name]

    @settings(max_examples=60, deadline=None)
    @given(st.from_regex(signal.pattern))
    def check(text: str) -> None:
        assert any(word in text for word in signal.words)

    check()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_deep_in_a_log_and_far_apart(tmp_path: Path, case: tuple[str, str, str]) -> None:
    # At the top of a log every line is looked at, and so is every neighbour of an error.
    fault, certainty, log = case
    other = "2026-11-03 22:14:04 gateway[3] route=chat latency_ms=391 note=nothing of interest\n"
    spread = other.join(line + "\n" for line in log.splitlines())
    path = tmp_path / "vllm.log"
    path.write_text(other * 1000 + spread + other * 1000)
    assert names(path)[0] == (fault, certainty)
