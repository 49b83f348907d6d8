"""The guard on vLLM's own code: releases, derived builds, two gloo ranks, fresh interpreters.

Each tree is run with the guard and without. The control shows the fault; without it a green
test of the guard would prove nothing.
"""

from __future__ import annotations

import pytest

from tests.conformance import harness
from tests.conformance.jobs import FAULTY, FIXED, LAZY, UNAFFECTED, Results, on
from tests.support.environments import OTHER_RELEASES, UNGUARDED_RELEASES

# The fault, and the cure ---------------------------------------------------------------------


@on(*FAULTY)
@pytest.mark.parametrize("way", LAZY)
def test_lazy_workspace_is_trtllm_on_every_rank(results: Results, way: str) -> None:
    alone = results.made(results.plain(way))
    assert alone == results.alone(way), "the control no longer shows the fault"
    assert results.made(results.guarded(way)) == {"trtllm"}
    assert results.backends(results.guarded(way)) == {"trtllm"}


@on(*FAULTY)
@pytest.mark.parametrize("way", ["eager", "draft", "groups", "rank_fault"])
def test_other_ways_to_a_workspace(results: Results, way: str) -> None:
    assert results.made(results.guarded(way)) == {"trtllm"}


@on(*UNGUARDED_RELEASES)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_start_a_fresh_interpreter(results: Results, method: str) -> None:
    assert results.made(results.guarded(method)) == {"trtllm"}


@on(*UNGUARDED_RELEASES)
def test_releases_choose_mnnvl_inside_the_context_too(results: Results) -> None:
    """Pinning what init resolved is not enough there: the rule must be the guard's."""
    assert results.made(results.plain("eager")) == {"mnnvl"}


@on("leaky")
def test_a_leaky_build_is_right_inside_the_context_only(results: Results) -> None:
    assert results.made(results.plain("eager")) == {"trtllm"}
    assert results.made(results.plain("lazy")) == {"mnnvl"}


@on(*FIXED)
def test_a_fixed_build_forgets_the_path_without_standalone(results: Results) -> None:
    assert results.made(results.plain("lazy")) == {"trtllm"}
    assert results.made(results.guarded("lazy")) == {"trtllm"}
    for way in ("no_standalone", "fused_op"):
        assert results.made(results.plain(way)) == {"mnnvl"}
        assert results.made(results.guarded(way)) == {"trtllm"}


@on("fork-0.24")
def test_a_fork_whose_resolver_answers_a_bare_string(results: Results) -> None:
    assert results.made(results.plain("lazy")) == {"trtllm"}
    assert results.made(results.guarded("lazy")) == {"trtllm"}
    # A bare "mnnvl" is vLLM's word for a group over nodes: nothing can stand in.
    assert results.made(results.plain("nodes")) == {"mnnvl"}
    assert results.made(results.guarded("nodes")) == set()
    assert results.made(results.guarded("none-lazy")) == set()


@on(*FAULTY)
def test_already_imported_modules_and_taken_names_are_patched(results: Results) -> None:
    assert results.made(results.plain("registered-late")) == {"trtllm"}


@on("odd-shape")
def test_an_unknown_shape_goes_through_with_one_error_line_a_rank(results: Results) -> None:
    plain, guarded = results.plain("lazy"), results.guarded("lazy")
    assert results.made(guarded) == results.made(plain) == {"mnnvl"}
    errors = [line for line in results.log("lazy") if "ERROR" in line and "shape" in line]
    assert len(errors) == 2
    assert all("does not know" in line for line in errors)


# What vLLM does with the answer ----------------------------------------------------------------


@on(*FAULTY)
def test_a_failed_workspace_is_none_and_never_mnnvl(results: Results) -> None:
    ranks = results.guarded("failed")
    assert results.backends(ranks) == {None}
    assert results.made(ranks) == {"trtllm"}
    assert all(rank["usable"] is False and rank["disabled"] for rank in ranks)
    assert any("no workspace" in line for line in results.log("failed"))


@on(*FAULTY)
def test_recreated_after_destroy(results: Results) -> None:
    for rank in results.guarded("recreate"):
        assert rank["again"] == "trtllm" and rank["new"] and rank["destroyed"]
    assert any("made again: backend=trtllm" in line for line in results.log("recreate"))


@on(*FAULTY, *FIXED)
def test_hot_path_is_the_original_function_everywhere(results: Results) -> None:
    for rank in results.guarded("hot_path"):
        assert set(rank["before"].values()) == {"guarded"}
        assert set(rank["after"].values()) == {"original function"}
        assert len(rank["same"]) >= 2 and all(rank["same"])
        assert rank["resolver"] == rank["create"] == "guarded"


@on(*UNGUARDED_RELEASES)
def test_the_resolver_is_called_as_often_as_without_the_guard(results: Results) -> None:
    for way in ("lazy", "eager", "no_standalone", "quant_first", "recreate"):
        counts = {rank["resolver_calls"] for rank in results.guarded(way)}
        assert counts == {rank["resolver_calls"] for rank in results.plain(way)}
        assert len(counts) == 1 and counts != {0}


# Modes and settings ----------------------------------------------------------------------------


@on(*FAULTY)
def test_observe_changes_nothing_and_says_what_it_would_do(results: Results) -> None:
    ranks = results.guarded("observe")
    assert results.made(ranks) == results.alone("quant_last")
    assert all(set(rank["after"].values()) == {"original function"} for rank in ranks)
    assert any("the guard would use trtllm" in line for line in results.log("observe"))
    assert any("at risk: backend=mnnvl" in line for line in results.log("observe"))


@on(*UNGUARDED_RELEASES)
def test_strict_cures_and_refuses_what_it_cannot_cure(results: Results) -> None:
    assert results.made(results.guarded("strict")) == {"trtllm"}
    for rank in results.guarded("strict-env-mnnvl"):
        assert rank["error"].startswith("RuntimeError('hisparse-guard (strict)")
    for rank in results.guarded("strict-late"):
        assert rank["error"].startswith("RuntimeError('hisparse-guard (strict)")


@on(*UNGUARDED_RELEASES)
def test_off_is_vllm_alone(results: Results) -> None:
    assert results.made(results.guarded("off")) == {"mnnvl"}
    assert results.log("off") == []


@on(*FAULTY, *FIXED)
def test_no_flashinfer_all_reduce(results: Results) -> None:
    for label in ("none", "none-lazy", "none-no-standalone", "none-fused"):
        ranks = results.guarded(label)
        assert results.made(ranks) == set(), label
    for rank in results.guarded("none"):
        assert rank["backends"] == [None] * 5 and rank["quant"] is None
    for rank in results.guarded("none-fused"):
        assert rank["ok"] is False
    assert any("no FlashInfer all-reduce" in line for line in results.log("none"))


@on(*UNGUARDED_RELEASES)
def test_no_flashinfer_all_reduce_asks_vllm_once(results: Results) -> None:
    """vLLM alone would repeat its collectives on every call."""
    for label in ("none", "nodes-none-repeated"):
        assert {rank["resolver_calls"] for rank in results.guarded(label)} == {1}


@on(*UNGUARDED_RELEASES)
def test_the_operators_own_backend_wins(results: Results) -> None:
    assert results.made(results.guarded("env-trtllm")) == {"trtllm"}
    assert results.made(results.guarded("none-env-trtllm")) == {"trtllm"}
    assert results.made(results.guarded("env-mnnvl")) == {"mnnvl"}
    warned = [
        line for line in results.log("env-mnnvl") if "WARNING" in line and "overrides" in line
    ]
    assert len(warned) == 2


@on(*UNGUARDED_RELEASES)
def test_groups_over_nodes(results: Results) -> None:
    assert results.made(results.plain("nodes")) == {"mnnvl"}
    assert results.made(results.guarded("nodes")) == set()
    assert results.made(results.guarded("nodes-keep")) == {"mnnvl"}
    for label in ("nodes", "nodes-keep"):
        lines = [line for line in results.log(label) if "HISPARSE_GUARD_MULTINODE" in line]
        assert len([line for line in lines if "cannot serve" in line]) == 2


@on(*UNGUARDED_RELEASES)
def test_bad_settings_are_named_and_count_as_the_default(results: Results) -> None:
    assert results.made(results.guarded("bad-settings")) == {"trtllm"}
    lines = results.log("bad-settings")
    for start in ("HISPARSE_GUARD_MODE='", "HISPARSE_GUARD_BACKEND='"):
        said = [line for line in lines if f"hisparse-guard: {start}" in line and "ERROR" in line]
        assert len(said) == 2 and all("use one of" in line for line in said)


@on(*UNGUARDED_RELEASES)
def test_settings_may_arrive_after_the_interpreter_has_started(results: Results) -> None:
    assert results.made(results.guarded("late-settings")) == set()


# Words -----------------------------------------------------------------------------------------


@on(*FAULTY)
def test_lines_of_a_cured_worker(results: Results) -> None:
    lines = results.log("lazy")
    for rank in (0, 1):
        assert len([x for x in lines if "armed by" in x and f"rank {rank} of 2" in x]) == 1
        whose = f"workspace verified: backend=trtllm (primary, rank {rank} of 2)"
        assert len([x for x in lines if whose in x]) == 1
    misses = [x for x in lines if "context miss at" in x]
    assert len(misses) == 2
    assert all(
        "vLLM alone uses mnnvl; the guard uses trtllm" in x and "in lazy" in x for x in misses
    )
    assert all("INFO" in line or "WARNING" in line for line in lines), "bare lines"


@on(*UNGUARDED_RELEASES)
def test_a_workspace_from_before_hisparse_is_reported_and_the_next_is_right(
    results: Results,
) -> None:
    for rank in results.guarded("late_hisparse"):
        assert (rank["first"], rank["aside"]) == ("mnnvl", "original function")
        assert (rank["back"], rank["second"]) == ("guarded", "mnnvl")
        assert rank["again"] == "trtllm"
    errors = [
        x
        for x in results.log("late_hisparse")
        if "ERROR" in x and "workspace is not as expected" in x
    ]
    assert len(errors) == 2


@on(*FAULTY)
def test_functions_that_name_what_is_wrapped_can_be_pickled(results: Results) -> None:
    for rank in results.guarded("pickled"):
        assert rank["wrapped"] == "guarded"
        kinds = ("pickle", "cloudpickle", "copy", "names", "holds")
        assert all(rank[kind] is True for kind in kinds), rank


# No HiSparse -----------------------------------------------------------------------------------


@on(*UNAFFECTED, *UNGUARDED_RELEASES)
def test_without_hisparse_nothing_changes_and_nothing_is_said(results: Results) -> None:
    assert results.made(results.guarded("no-hisparse")) == results.made(
        results.plain("no-hisparse")
    )
    assert results.log("no-hisparse") == []
    for rank in results.guarded("hot_path-no-hisparse"):
        assert set(rank["after"].values()) == {"original function"}


# The classifier --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "label"),
    [
        *[(name, "no-hisparse") for name in OTHER_RELEASES],
        *[(name, "unguarded") for name in UNGUARDED_RELEASES],
        ("leaky", "leaky"),
        *[(name, "fixed") for name in FIXED],
        *[(name, "unguarded") for name in ("fork-0.24", "fork-0.25", "fork-device", "odd-shape")],
    ],
)
def test_build_class_is_read_from_the_code(name: str, label: str) -> None:
    assert harness.classified(name).label == label


@on(*FAULTY, *FIXED, "odd-shape")
def test_the_running_guard_says_the_same_class(results: Results) -> None:
    armed = [line for line in results.log("lazy") if "armed by" in line]
    assert len(armed) == 2
    label = harness.classified(results.name).label
    assert all(f"build class {label}," in line for line in armed)
