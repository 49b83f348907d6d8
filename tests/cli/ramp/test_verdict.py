from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_guard.cli.ramp.levels import LevelResult, Request, percentile
from hisparse_guard.cli.ramp.verdict import Judged, Result
from tests.cli.ramp.results import FINE


def level(done: int, failed: int = 0, kind: str = "http 500", state: str = "complete"):
    requests = [Request(n, sent=float(n), ended=n + 1.0, done=True) for n in range(done)]
    for n in range(done, done + failed):
        request = Request(n, sent=float(n), ended=n + 1.0)
        request.fail(kind, f"{kind} it was")
        requests.append(request)
    return LevelResult(0, 4, requests, state=state)


def result(*levels: LevelResult, **fields: object) -> Result:
    found = Result("http://127.0.0.1:1", "m", {}, {}, levels=list(levels), after=dict(FINE))
    found.known = {"after": None}
    for name, value in fields.items():
        setattr(found, name, value)
    return found


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 100))
def test_percentile_is_linear_between_ranks(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(
        float(np.percentile(values, percent)), abs=1e-6
    )


def test_percentile_of_nothing() -> None:
    assert percentile([], 99) is None


@pytest.mark.parametrize(
    ("found", "verdict", "code"),
    [
        (result(level(8), level(8)), "passed", 0),
        (result(level(8), level(9, 23)), "failed", 1),
        (result(level(8), after={**FINE, "probe": "it fails"}), "failed", 1),
        (result(level(8), after={**FINE, "listed": False}), "failed", 1),
        (result(level(8), after={**FINE, "health": "503"}), "failed", 1),
        # The engine may die between two requests: none need have failed by itself.
        (result(level(3, 5, "not sent", "stopped"), engine_dead="503"), "failed", 1),
        (result(level(8), not_run=[(16, 32)], after=None, interrupted=True), "interrupted", 130),
        (
            result(level(3, 5, "cut off", "interrupted"), after=None, interrupted=True),
            "interrupted",
            130,
        ),
        (
            result(level(3, 1, "http 500", "interrupted"), after=None, interrupted=True),
            "failed",
            130,
        ),
        (result(level(8), not_run=[(16, 32)]), "inconclusive", 1),
        (result(level(8), after=None), "inconclusive", 1),
        (result(level(8), known={}), "inconclusive", 1),
        (result(level(8), known={"after": "4 of 4 known answers differ"}), "failed", 1),
        (result(level(8), changed="another server answers"), "failed", 1),
        (result(level(8), judged={"triage": Judged("worker-died", True)}), "failed", 1),
        (result(level(8), judged={"triage": Judged("healthy", False)}), "passed", 0),
        (result(), "inconclusive", 1),
    ],
)
def test_verdict(found: Result, verdict: str, code: int) -> None:
    assert (found.verdict, found.exit_code) == (verdict, code)
    assert found.sentence().startswith(verdict)
    document = found.to_json()
    assert document["verdict"] == verdict
    for one in document["levels"]:
        assert one["done"] + one["failed"] == one["planned"]
        assert sum(one["failures"].values()) == one["failed"]
    # A pass is never partial.
    assert not (verdict == "passed" and document["partial"])


def test_partial_says_so() -> None:
    found = result(level(3, 5, "cut off", "interrupted"), after=None, interrupted=True)
    assert found.partial
    assert "partial" in found.sentence()


def test_the_first_failure_is_the_earliest_that_failed_by_itself() -> None:
    one = level(1, 3)
    early, late = one.requests[1], one.requests[3]
    early.fail("cut off", "cut off: engine dead")
    early.ended = 0.5
    late.ended = 1.5
    late.error = "HTTP 500: EngineCore encountered an issue"
    first = result(level(8), one).first_failure()
    assert first is not None
    assert (first["request"], first["error"]) == (3, late.error)
    assert first["after_done"] == 2


def test_speed_counts_done_requests_only() -> None:
    one = level(2, 2)
    for request in one.requests:
        request.output_tokens = 100
    assert one.duration_s == 4.0
    assert one.tokens_per_s() == 50.0
