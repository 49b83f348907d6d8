"""The guard decides, records and says what it did before its runtime was rewritten."""

from __future__ import annotations

import json

import pytest

from tests.conformance import golden
from tests.conformance.jobs import GUARD_JOBS, Results, on


@on(*golden.RECORDED)
@pytest.mark.parametrize("label", GUARD_JOBS)
def test_decides_as_before(results: Results, label: str) -> None:
    outcome = json.loads(json.dumps(golden.compared(results, label)))
    before = golden.golden(results.name, label)
    assert golden.without_counts(outcome) == golden.without_counts(before)
