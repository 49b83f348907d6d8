"""The lazy workspace on real vLLM, with nothing but the zip on PYTHONPATH and no wrapt at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import harness
from tests.conformance.jobs import results_of

NAME = "0.33.0"


@pytest.mark.slow
@pytest.mark.xdist_group(NAME)
def test_the_zip_alone(bundles: dict[str, Path]) -> None:
    jobs = [
        {"name": "lazy", "start_method": method, "ranks": 2, "options": {"hisparse": True}}
        for method in ("fork", "spawn")
    ]
    control = results_of(NAME).plain("lazy")
    assert [rank["backend"] for rank in control] == ["mnnvl", "mnnvl"], control
    for found in harness.run_jobs(NAME, jobs, guard=[bundles["zip"]]):
        assert [rank["backend"] for rank in found["ranks"]] == ["trtllm", "trtllm"], found
        assert found["log"].count("hisparse-guard: workspace verified: backend=trtllm") == 2
        assert found["log"].count("hisparse-guard: armed ") == 2
