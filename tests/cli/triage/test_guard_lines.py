"""What the guard itself says of a workspace, by its own words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.triage.logs import (
    COPY_FRAMES,
    HISPARSE_METRICS,
    LAUNCH_FAILURE,
    armed,
    guard_workspace,
    request,
    start,
    started_up,
    stats,
    traceback,
)
from tests.cli.triage.test_certainty import named, read

CRASH = traceback(2, COPY_FRAMES, LAUNCH_FAILURE)
AT_RISK = guard_workspace("made", "mnnvl", mode="observe")
NOT_AS_EXPECTED = guard_workspace("made", "mnnvl")
VERIFIED = guard_workspace("verified", "trtllm")


@pytest.mark.parametrize("said", [AT_RISK, NOT_AS_EXPECTED], ids=["at risk", "not as expected"])
def test_mnnvl_by_the_guards_word(said: str, tmp_path: Path) -> None:
    log = (start(), *map(armed, range(4)), said, started_up(), HISPARSE_METRICS)
    # Before the crash it waits, and a server that runs on it is not healthy.
    assert named(tmp_path, *log) == [("hisparse-mnnvl-waiting", "proven")]
    assert named(tmp_path, *log, CRASH) == [("hisparse-mnnvl", "proven")]


def test_trtllm_by_the_guards_word(tmp_path: Path) -> None:
    log = (start(), *map(armed, range(4)), VERIFIED, started_up(), HISPARSE_METRICS)
    assert "hisparse-mnnvl" not in dict(named(tmp_path, *log, CRASH))
    assert read(tmp_path, *log, request(), stats()).exit_code == 0


@pytest.mark.parametrize(
    "words",
    [
        "  what():  CUDA error: unspecified launch failure",
        "CUDA error csrc/sampler.cu:88 'unspecified launch failure'",
    ],
    ids=["torch", "vllm"],
)
def test_a_launch_failure_that_no_python_saw(words: str, tmp_path: Path) -> None:
    thrown = "terminate called after throwing an instance of 'c10::AcceleratorError'"
    log = (start(), NOT_AS_EXPECTED, started_up(), HISPARSE_METRICS, thrown, words)
    assert "hisparse-mnnvl" in dict(named(tmp_path, *log))
