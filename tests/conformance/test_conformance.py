"""The guard on vLLM's own code: releases, derived builds, two gloo ranks, fresh interpreters.

Each tree is run with the guard and without. The control shows the fault; without it a green
test of the guard would prove nothing.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance import harness
from tests.support.environments import HISPARSE_RELEASES, OTHER_RELEASES

# Trees in which vLLM alone makes an mnnvl workspace for HiSparse, lazily.
FAULTY = (*HISPARSE_RELEASES, "leaky", "fork-0.25", "fork-device", "keyword-group")
FIXED = ("fixed-backend", "fixed-choice")
UNAFFECTED = OTHER_RELEASES

LAZY = ("lazy", "no_standalone", "quant_last", "quant_first", "fused_op", "recreate", "thread")
MNNVL = {"VLLM_FLASHINFER_ALLREDUCE_BACKEND": "mnnvl"}
TRTLLM = {"VLLM_FLASHINFER_ALLREDUCE_BACKEND": "trtllm"}


def job(name: str, env: dict[str, str] | None = None, method: str = "fork", **options: Any) -> Any:
    return {"name": name, "env": env or {}, "start_method": method, "options": options}


def setting(**settings: str) -> dict[str, str]:
    return {f"HISPARSE_GUARD_{name}": value for name, value in settings.items()}


PLAIN_JOBS = {
    **{name: job(name) for name in (*LAZY, "eager", "draft", "failed", "groups")},
    "nodes": job("lazy", nodes=2),
    "no-hisparse": job("lazy", hisparse=False),
    "env-trtllm": job("lazy", TRTLLM),
    "env-mnnvl": job("lazy", MNNVL),
}
GUARD_JOBS = {
    **PLAIN_JOBS,
    "spawn": job("lazy", method="spawn"),
    "forkserver": job("lazy", method="forkserver"),
    "hot_path": job("hot_path"),
    "hot_path-no-hisparse": job("hot_path", hisparse=False),
    "rank_fault": job("rank_fault"),
    "late_hisparse": job("late_hisparse"),
    "pickled": job("pickled"),
    "repeated": job("repeated"),
    "observe": job("hot_path", setting(MODE="observe")),
    "strict": job("lazy", setting(MODE="strict")),
    "strict-env-mnnvl": job("lazy", {**setting(MODE="strict"), **MNNVL}),
    "strict-late": job("late_hisparse", setting(MODE="strict")),
    "off": job("lazy", setting(MODE="off")),
    "none": job("repeated", setting(BACKEND="none")),
    "none-lazy": job("lazy", setting(BACKEND="none")),
    "none-no-standalone": job("no_standalone", setting(BACKEND="none")),
    "none-fused": job("fused_op", setting(BACKEND="none")),
    "none-env-trtllm": job("lazy", {**setting(BACKEND="none"), **TRTLLM}),
    "nodes-keep": job("lazy", setting(MULTINODE="keep"), nodes=2),
    "nodes-none-repeated": job("repeated", nodes=2),
    "bad-settings": job("lazy", setting(MODE="enforced", BACKEND="mnnvl", SPEED="9")),
    "late-settings": job("settings_late", late=setting(BACKEND="none")),
    "uneven-log": job("lazy", rank_env={"0": {"VLLM_LOGGING_LEVEL": "CRITICAL"}}),
}


# What a tree is asked: the releases that have the fault all of it, the others what is theirs.
REDUCED = (*LAZY, "eager", "draft", "groups", "failed", "hot_path", "rank_fault", "observe", "none")
REDUCED += ("none-lazy", "none-no-standalone", "none-fused", "nodes", "pickled")
ASKED = {
    **dict.fromkeys(HISPARSE_RELEASES, tuple(GUARD_JOBS)),
    **dict.fromkeys(UNAFFECTED, ("no-hisparse", "hot_path-no-hisparse")),
    "odd-shape": ("lazy",),
}


class Results:
    """What the jobs found on one tree, with the guard and without."""

    def __init__(self, name: str) -> None:
        self.name = name
        asked = ASKED.get(name, REDUCED)
        jobs = {label: GUARD_JOBS[label] for label in asked}
        self._guarded = self._collect(jobs, harness.guard_path())
        jobs = {label: PLAIN_JOBS[label] for label in asked if label in PLAIN_JOBS}
        if name in FAULTY:
            register = [str(p) for p in harness.guard_path()]
            jobs["registered-late"] = job("lazy", register=register)
        self._plain = self._collect(jobs, None)

    def _collect(self, jobs: dict[str, Any], guard: Any) -> dict[str, Any]:
        found = harness.run_jobs(self.name, list(jobs.values()), guard=guard)
        return dict(zip(jobs, found, strict=True))

    def guarded(self, label: str) -> list[dict[str, Any]]:
        return self._ranks(self._guarded[label])

    def plain(self, label: str) -> list[dict[str, Any]]:
        return self._ranks(self._plain[label])

    def log(self, label: str) -> list[str]:
        lines: list[str] = self._guarded[label]["log"].splitlines()
        return [line for line in lines if "hisparse-guard" in line]

    @staticmethod
    def _ranks(result: Any) -> list[dict[str, Any]]:
        ranks: list[dict[str, Any]] = result["ranks"]
        assert len(ranks) == 2, f"a rank gave no answer:\n{result['log'][-3000:]}"
        return ranks

    def backends(self, ranks: list[dict[str, Any]]) -> set[str | None]:
        for rank in ranks:
            assert "error" not in rank, rank.get("traceback")
        return {rank["backend"] for rank in ranks}

    def made(self, ranks: list[dict[str, Any]]) -> set[str]:
        for rank in ranks:
            assert "error" not in rank, rank.get("traceback")
        return {backend for rank in ranks for backend in rank["made"]}

    def alone(self, way: str) -> set[str]:
        """What vLLM alone makes: up to 0.25 the quant getter asks for trtllm whatever is."""
        quant = way.startswith("quant") and self.name == "fork-0.25"
        return {"mnnvl", "trtllm"} if quant else {"mnnvl"}


_results: dict[str, Results] = {}


@pytest.fixture
def results(request: pytest.FixtureRequest) -> Results:
    name = request.param
    if name not in _results:
        _results[name] = Results(name)
    return _results[name]


def on(*trees: str) -> Any:
    # One group a tree: its two interpreters are started by one test process.
    return pytest.mark.parametrize(
        "results",
        [pytest.param(t, id=t, marks=pytest.mark.xdist_group(t)) for t in trees],
        indirect=True,
    )


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


@on(*HISPARSE_RELEASES)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_start_a_fresh_interpreter(results: Results, method: str) -> None:
    assert results.made(results.guarded(method)) == {"trtllm"}


@on(*HISPARSE_RELEASES)
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
    assert all("does not know (tuple)" in line for line in errors)


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
        assert set(rank["before"].values()) == {"GuardedFunction"}
        assert set(rank["after"].values()) == {"function"}
        assert len(rank["same"]) >= 2 and all(rank["same"])
        assert rank["resolver"] == rank["create"] == "UntracedFunction"


@on(*HISPARSE_RELEASES)
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
    assert all(set(rank["after"].values()) == {"function"} for rank in ranks)
    assert any("the guard would use trtllm" in line for line in results.log("observe"))
    assert any("at risk: backend=mnnvl" in line for line in results.log("observe"))


@on(*HISPARSE_RELEASES)
def test_strict_cures_and_refuses_what_it_cannot_cure(results: Results) -> None:
    assert results.made(results.guarded("strict")) == {"trtllm"}
    for rank in results.guarded("strict-env-mnnvl"):
        assert rank["error"].startswith("RuntimeError('hisparse-guard (strict)")
    for rank in results.guarded("strict-late"):
        assert "handed out" in rank["error"]


@on(*HISPARSE_RELEASES)
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


@on(*HISPARSE_RELEASES)
def test_no_flashinfer_all_reduce_asks_vllm_once(results: Results) -> None:
    """vLLM alone would repeat its collectives on every call."""
    for label in ("none", "nodes-none-repeated"):
        assert {rank["resolver_calls"] for rank in results.guarded(label)} == {1}


@on(*HISPARSE_RELEASES)
def test_the_operators_own_backend_wins(results: Results) -> None:
    assert results.made(results.guarded("env-trtllm")) == {"trtllm"}
    assert results.made(results.guarded("none-env-trtllm")) == {"trtllm"}
    assert results.made(results.guarded("env-mnnvl")) == {"mnnvl"}
    warned = [line for line in results.log("env-mnnvl") if "WARNING" in line and "obeyed" in line]
    assert len(warned) == 2


@on(*HISPARSE_RELEASES)
def test_groups_over_nodes(results: Results) -> None:
    assert results.made(results.plain("nodes")) == {"mnnvl"}
    assert results.made(results.guarded("nodes")) == set()
    assert results.made(results.guarded("nodes-keep")) == {"mnnvl"}
    for label in ("nodes", "nodes-keep"):
        lines = [line for line in results.log(label) if "HISPARSE_GUARD_MULTINODE" in line]
        assert len([line for line in lines if "cannot serve" in line]) == 2


@on(*HISPARSE_RELEASES)
def test_bad_settings_are_named_and_count_as_the_default(results: Results) -> None:
    assert results.made(results.guarded("bad-settings")) == {"trtllm"}
    lines = results.log("bad-settings")
    for start in ("HISPARSE_GUARD_MODE='", "HISPARSE_GUARD_BACKEND='", "HISPARSE_GUARD_SPEED is"):
        said = [line for line in lines if f"hisparse-guard: {start}" in line and "ERROR" in line]
        assert len(said) == 2 and all("use one of" in line for line in said)


@on(*HISPARSE_RELEASES)
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
    assert all("vLLM alone: mnnvl; used: trtllm" in x and "in lazy" in x for x in misses)
    assert all("INFO" in line or "WARNING" in line for line in lines), "bare lines"


@on(*HISPARSE_RELEASES)
def test_a_workspace_from_before_hisparse_is_reported_and_the_next_is_right(
    results: Results,
) -> None:
    for rank in results.guarded("late_hisparse"):
        assert (rank["first"], rank["aside"]) == ("mnnvl", "function")
        assert (rank["back"], rank["second"]) == ("GuardedFunction", "mnnvl")
        assert rank["again"] == "trtllm"
    errors = [x for x in results.log("late_hisparse") if "ERROR" in x and "NOT as pinned" in x]
    assert len(errors) == 2


@on(*FAULTY)
def test_functions_that_name_what_is_wrapped_can_be_pickled(results: Results) -> None:
    for rank in results.guarded("pickled"):
        assert rank["wrapped"] == "UntracedFunction"
        kinds = ("pickle", "cloudpickle", "copy", "names", "holds")
        assert all(rank[kind] is True for kind in kinds), rank


# No HiSparse -----------------------------------------------------------------------------------


@on(*UNAFFECTED, *HISPARSE_RELEASES)
def test_without_hisparse_nothing_changes_and_nothing_is_said(results: Results) -> None:
    assert results.made(results.guarded("no-hisparse")) == results.made(
        results.plain("no-hisparse")
    )
    assert results.log("no-hisparse") == []
    for rank in results.guarded("hot_path-no-hisparse"):
        assert set(rank["after"].values()) == {"function"}


# The classifier --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "label"),
    [
        *[(name, "no-hisparse") for name in OTHER_RELEASES],
        *[(name, "unguarded") for name in HISPARSE_RELEASES],
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
