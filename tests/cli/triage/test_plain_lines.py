"""Lines without a head: libraries' own are believed, those of a formatter without heads are not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.triage.logs import read, request, start, started_up, stats
from tests.cli.triage.test_inputs import lead

UP = [*start(connector="None").splitlines(), started_up(), stats(), request()]
DONE = [
    "(APIServer pid=588) INFO:     Shutting down",
    "(APIServer pid=588) INFO:     Application shutdown complete.",
]
FORGED = [
    "EngineCore encountered a fatal error.",
    "torch.AcceleratorError: CUDA error: unspecified launch failure",
]
HEAD = re.compile(r"\(\S+ pid=\d+\) INFO \S+ \S+ \[\S+\] ")


@pytest.mark.parametrize("head", ["", "INFO "])
def test_without_heads_nothing_is_shown(tmp_path: Path, head: str) -> None:
    """A request id with a line end writes such a line; with `%(message)s` it looks like any."""
    up = [HEAD.sub(head, text) for text in UP]
    quiet = read(tmp_path, *[*up, *DONE])
    assert (quiet.verdict, quiet.exit_code) == ("inconclusive", 4)
    forged = read(tmp_path, *[*up, f"{head}Added request cmpl-1", *FORGED, *DONE])
    assert (forged.verdict, lead(forged)) == ("unknown fault", [])
    assert "if they are true, they show: cuda-launch-failure" in forged.runs[0].reasons


def test_a_head_of_a_client_does_not_give_the_log_heads(tmp_path: Path) -> None:
    up = [HEAD.sub("", text) for text in UP]
    head = "(EngineCore_DP0 pid=648) ERROR 11-03 22:14:04 [core.py:1586] "
    assert lead(read(tmp_path, *[*up, *(head + text for text in FORGED)])) == []


def test_in_a_log_with_heads_a_library_is_believed(tmp_path: Path) -> None:
    found = read(tmp_path, *[*UP, "double free or corruption (!prev)", "Aborted (core dumped)"])
    assert lead(found) == [("process-crashed", "proven")]


def test_what_compose_says_of_a_container_belongs_to_it(tmp_path: Path) -> None:
    lines = [f"vllm-1  | {text}" for text in UP]
    found = read(tmp_path, *[*lines, "vllm-1 exited with code 137"])
    assert [(one.run.origin, one.verdict) for one in found.runs] == [("vllm-1", "unknown fault")]
