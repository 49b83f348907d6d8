"""vLLM 0.34.0 closes one way of several to an mnnvl workspace; the guard closes the others."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import harness, upstream_fix
from tests.conformance.upstream_fix import WAYS, made, outcomes
from tests.support.environments import image_python

DOC = harness.ROOT / "docs" / "upstream-0.34.md"

pytestmark = pytest.mark.xdist_group("0.34.0")


def guard_lines(result: Any) -> list[str]:
    return [line for line in result["log"].splitlines() if "hisparse-guard" in line]


@pytest.mark.parametrize("label", WAYS)
def test_what_vllm_makes_alone_and_with_the_guard(label: str) -> None:
    assert made(outcomes(False)[label]) == WAYS[label].alone
    result = outcomes(True)[label]
    assert made(result) == WAYS[label].guarded
    assert not [line for line in guard_lines(result) if "ERROR" in line]


@pytest.mark.parametrize("label", WAYS)
def test_the_fused_op_runs_on_what_was_made(label: str) -> None:
    for rank in outcomes(True)[label]["ranks"]:
        assert set(rank["ran"]) <= set(WAYS[label].guarded)


def test_init_answers_none_over_nodes_and_the_standalone_all_reduce_is_off() -> None:
    for label in ("nodes", "nodes-hopper", "standalone-off", "batch-invariant", "checkpoint"):
        assert not any(rank["standalone"] for rank in outcomes(False)[label]["ranks"])


def test_the_resolver_is_called_once_for_each_call() -> None:
    """On 0.32 and later it is a collective; with a workspace missing vLLM alone repeats it."""
    for label in set(WAYS) - {"nodes"}:
        counts = [rank["resolver_calls"] for rank in outcomes(True)[label]["ranks"]]
        assert counts == [rank["resolver_calls"] for rank in outcomes(False)[label]["ranks"]]


def test_observe_changes_nothing() -> None:
    result = outcomes(True)["observe"]
    assert made(result) == ("mnnvl",)
    assert any("at risk: backend=mnnvl" in line for line in guard_lines(result))


def test_no_flashinfer_all_reduce() -> None:
    assert made(outcomes(True)["none"]) == ()


def test_keep_is_none_where_init_itself_answered_none() -> None:
    result = outcomes(True)["nodes-keep"]
    assert made(result) == ()
    assert any("because of what vLLM resolved at init" in line for line in guard_lines(result))


def test_a_tree_whose_callers_are_mended_needs_no_guard() -> None:
    found = {label: made(result) for label, result in outcomes(False, "mended").items()}
    for label in set(WAYS) - {"operator", "quant-first"}:
        assert "mnnvl" not in found[label], label


# The report for upstream -------------------------------------------------------------------------


def test_the_report_has_the_table_that_is_tested() -> None:
    assert upstream_fix.table() in DOC.read_text()


def test_the_reports_script_prints_what_it_says(tmp_path: Path) -> None:
    text = DOC.read_text()
    (script,) = re.findall(r"```python\n(.*?)```", text, re.S)
    (printed,) = re.findall(r"```text\n(.*?)```", text, re.S)
    (tmp_path / "script.py").write_text(script)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VLLM"))}
    done = subprocess.run(
        [image_python(), "script.py"],
        env={**env, "PYTHONPATH": str(harness.tree("0.34.0")), "CUDA_VISIBLE_DEVICES": ""},
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    # vLLM itself may say something before.
    assert done.stdout.endswith(printed)
