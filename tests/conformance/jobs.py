"""What the conformance tests ask of each tree, run once a tree and shared by the test modules."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import harness
from tests.support.environments import OTHER_RELEASES, UNGUARDED_RELEASES

# Trees in which vLLM alone makes an mnnvl workspace for HiSparse, lazily.
FAULTY = (*UNGUARDED_RELEASES, "leaky", "fork-0.25", "fork-device", "keyword-group")
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
    **dict.fromkeys(UNGUARDED_RELEASES, tuple(GUARD_JOBS)),
    **dict.fromkeys(UNAFFECTED, ("no-hisparse", "hot_path-no-hisparse")),
    "odd-shape": ("lazy",),
}


class Results:
    """What the jobs found on one tree, with the guard and without, once it is asked."""

    def __init__(self, name: str, guard: list[Path] | None = None) -> None:
        self.name = name
        # Removed with this object, when the test process ends.
        self._folder = tempfile.TemporaryDirectory(prefix="hisparse-guard-evidence-")
        self._guard = guard or harness.guard_path()
        self._asked = ASKED.get(name, REDUCED)

    @functools.cached_property
    def _guarded(self) -> dict[str, Any]:
        return self._collect({x: self._with_evidence(x) for x in self._asked}, self._guard)

    @functools.cached_property
    def _plain(self) -> dict[str, Any]:
        jobs = {label: PLAIN_JOBS[label] for label in self._asked if label in PLAIN_JOBS}
        if self.name in FAULTY:
            register = [str(p) for p in harness.guard_path()]
            jobs["registered-late"] = job("lazy", register=register)
        return self._collect(jobs, None)

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

    def _with_evidence(self, label: str) -> Any:
        folder = {"HISPARSE_GUARD_EVIDENCE_DIR": str(Path(self._folder.name, label))}
        return {**GUARD_JOBS[label], "env": {**folder, **GUARD_JOBS[label]["env"]}}

    def evidence(self, label: str, rank: dict[str, Any]) -> list[dict[str, Any]]:
        """The evidence lines of one rank of a guarded job."""
        files = Path(self._folder.name, label).glob(f"*-{rank['pid']}.jsonl")
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

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


def results_of(name: str) -> Results:
    if name not in _results:
        _results[name] = Results(name)
    return _results[name]


def on(*trees: str) -> Any:
    """Parametrises a test by `results` of each tree."""
    # One group a tree: its two interpreters are started by one test process.
    return pytest.mark.parametrize(
        "results",
        [pytest.param(t, id=t, marks=pytest.mark.xdist_group(t)) for t in trees],
        indirect=True,
    )
