"""Other tools, failing telemetry and other platforms around the ways to a workspace."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.conformance import harness
from tests.conformance.jobs import MNNVL, job, setting
from tests.conformance.upstream_fix import made
from tests.support.flashinfer import release

TREES = ("0.30.0", "0.33.0", "0.34.0")
JOBS = {
    "held": job("held"),
    "held-no-hisparse": job("held", hisparse=False),
    "failed_again": job("failed_again"),
    "telemetry_raises": job("telemetry_raises"),
    "telemetry_raises-strict": job("telemetry_raises", {**setting(MODE="strict"), **MNNVL}),
    "patched_over": job("patched_over"),
    "put_back": job("put_back"),
    "rocm": job("other_platform", platform="rocm"),
    "xpu": job("other_platform", platform="xpu"),
}


@functools.cache
def outcomes(tree: str) -> dict[str, Any]:
    found = harness.run_jobs(tree, list(JOBS.values()), guard=harness.guard_path())
    # The second way in, where the guard is off.
    register = [str(path) for path in harness.guard_path()]
    off = job("hot_path", setting(MODE="off"), register=register)
    found += harness.run_jobs(tree, [off], guard=None)
    return dict(zip([*JOBS, "off-entry-point"], found, strict=True))


def lines(result: Any) -> list[str]:
    return [line for line in result["log"].splitlines() if "hisparse-guard" in line]


def on(*trees: str) -> Any:
    marked = [pytest.param(tree, marks=pytest.mark.xdist_group(tree)) for tree in trees]
    return pytest.mark.parametrize("tree", marked)


@on(*TREES)
def test_made_again_however_the_getter_is_held(tree: str) -> None:
    result = outcomes(tree)["held"]
    assert made(result) == ("trtllm",) * 4
    for rank in result["ranks"]:
        assert rank["found"] == ["trtllm"] * 4
    for number in (2, 3, 4):
        assert (
            sum("made again: backend=trtllm" in x and f"#{number})" in x for x in lines(result))
            == 2
        )
    assert len([x for x in lines(result) if "workspace verified: backend=trtllm" in x]) >= 2


@on(*TREES)
@pytest.mark.parametrize("label", ["held", "held-no-hisparse"])
def test_a_held_getter_runs_nothing_of_the_guard_but_its_switch(tree: str, label: str) -> None:
    for rank in outcomes(tree)[label]["ranks"]:
        assert set(rank["frames"]) <= {"<lambda>"}, rank["frames"]


@on("0.33.0", "0.34.0")
def test_a_failed_creation_that_vllm_keeps_costs_no_more(tree: str) -> None:
    for rank in outcomes(tree)["failed_again"]["ranks"]:
        assert rank["backend"] is None
        assert set(rank["frames"]) <= {"<lambda>"}, rank["frames"]


@on(*TREES)
def test_off_with_the_entry_point_leaves_nothing(tree: str) -> None:
    result = outcomes(tree)["off-entry-point"]
    assert lines(result) == []
    for rank in result["ranks"]:
        assert {*rank["before"].values(), rank["resolver"], rank["create"]} == {"original function"}


@on(*TREES)
def test_a_decision_does_not_depend_on_telemetry(tree: str) -> None:
    result = outcomes(tree)["telemetry_raises"]
    assert made(result) == ("trtllm",)
    assert {rank["getter"] for rank in result["ranks"]} == {"original function"}
    for rank in outcomes(tree)["telemetry_raises-strict"]["ranks"]:
        assert rank["error"].startswith("RuntimeError('hisparse-guard (strict)")


@on(*TREES)
def test_patched_over_by_another_tool_and_put_back(tree: str) -> None:
    assert made(outcomes(tree)["patched_over"]) == ("trtllm",)


@on(*TREES)
def test_a_patch_that_another_tool_took_off_is_an_error_line(tree: str) -> None:
    result = outcomes(tree)["put_back"]
    errors = [line for line in lines(result) if "ERROR" in line and "resolve_fi_ar" in line]
    assert made(result) == ("trtllm",) or len(errors) == 2, lines(result)


@on(*TREES)
@pytest.mark.parametrize("platform", ["rocm", "xpu"])
def test_other_platforms_than_cuda(tree: str, platform: str) -> None:
    result = outcomes(tree)[platform]
    assert made(result) == ()
    assert all(rank["disabled"] for rank in result["ranks"])
    assert not [x for x in lines(result) if "ERROR" in x or "WARNING" in x]


@pytest.mark.xdist_group("0.34.0")
def test_the_flashinfer_whose_kernel_waits() -> None:
    """0.34.0 pins 0.7.3, which is not published; 0.7.2.post1 is in all the other tests."""
    jobs = [job("model", {"VLLM_ALLREDUCE_USE_FLASHINFER": "0"}), job("op_first", op="fused")]
    path = [release("0.7.4", importable=True)]
    alone = harness.run_jobs("0.34.0", jobs, guard=path)
    guarded = harness.run_jobs("0.34.0", jobs, guard=[*harness.guard_path(), *path])
    assert [made(result) for result in alone] == [("mnnvl",)] * 2
    assert [made(result) for result in guarded] == [("trtllm",)] * 2
    assert all("FlashInfer 0.7.4" in x for r in guarded for x in lines(r) if "armed by" in x)
