"""Verdicts on what the guard itself wrote, in real vLLM 0.33.0 with two ranks.

The creation of a workspace is the scenario's stand-in, which is not collective: on GPUs ranks that
differ hang there too.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hisparse_guard.cli.report.history import misses_of
from hisparse_guard.cli.report.report import Report, Result, judge
from tests.conformance import harness
from tests.support.bundles import hisparse_guard

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("report-evidence")]

RUNS: dict[str, dict[str, Any]] = {
    "guarded": {"name": "lazy"},
    "spawned": {"name": "quant_last", "start_method": "spawn"},
    "observe": {"name": "lazy", "env": {"HISPARSE_GUARD_MODE": "observe"}},
    "no all-reduce": {"name": "repeated", "env": {"HISPARSE_GUARD_BACKEND": "none"}},
    # Without FlashInferAllReduce both backends take the same collectives, so this cannot hang.
    "half-guarded": {
        "name": "no_standalone",
        "options": {"rank_env": {"1": {"HISPARSE_GUARD_MODE": "off"}}},
    },
    "one observes": {
        "name": "no_standalone",
        "options": {"rank_env": {"1": {"HISPARSE_GUARD_MODE": "observe"}}},
    },
    # With it rank 1 waits in a collective that rank 0 never enters, until gloo gives up.
    "one observes, stuck": {
        "name": "lazy",
        "options": {"rank_env": {"1": {"HISPARSE_GUARD_MODE": "observe"}}, "timeout": 20},
    },
    "over nodes": {"name": "lazy", "options": {"nodes": 2}},
    "over nodes, kept": {
        "name": "lazy",
        "options": {"nodes": 2},
        "env": {"HISPARSE_GUARD_MULTINODE": "keep"},
    },
    "failed": {"name": "failed"},
    "recreated": {"name": "recreate"},
    # Tracing counts where it is set when vllm.config is executed: not in a fork of one that has.
    "traced": {
        "name": "trace",
        "start_method": "spawn",
        "env": {"HISPARSE_GUARD_TRACE_CONTEXT": "1"},
    },
    "without HiSparse": {"name": "lazy", "options": {"hisparse": False}},
    "strict": {
        "name": "lazy",
        "env": {
            "HISPARSE_GUARD_MODE": "strict",
            "VLLM_FLASHINFER_ALLREDUCE_BACKEND": "mnnvl",
        },
    },
}


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of evidence for each run."""
    root = tmp_path_factory.mktemp("evidence")
    jobs = []
    for name, run in RUNS.items():
        env = {"HISPARSE_GUARD_EVIDENCE_DIR": str(root / name), **run.get("env", {})}
        jobs.append({"start_method": "fork", **run, "env": env})
    harness.run_jobs("0.33.0", jobs, guard=harness.guard_path())
    return root


@pytest.mark.parametrize(
    ("run", "verdict", "code"),
    [
        ("guarded", "safe", 0),
        ("spawned", "safe", 0),
        ("observe", "unsafe", 1),
        ("no all-reduce", "safe", 0),
        ("half-guarded", "partly guarded", 1),
        ("one observes", "unsafe", 1),
        ("one observes, stuck", "disagreement", 1),
        ("over nodes", "safe", 0),
        ("over nodes, kept", "unsafe", 1),
        ("failed", "failed", 4),
        ("recreated", "safe", 0),
        ("traced", "safe", 0),
        ("without HiSparse", "not HiSparse", 0),
    ],
)
def test_verdicts(evidence: Path, run: str, verdict: str, code: int) -> None:
    done = hisparse_guard("report", "--json", evidence / run)
    found = json.loads(done.stdout)
    assert (found["verdict"], done.returncode, len(found["servers"])) == (verdict, code, 1)
    assert found["evidence"]["problems"] == [] and found["evidence"]["torn"] == []
    assert found["evidence"]["unknown_events"] == {}


def server(report: Report) -> Result:
    (one,) = report.results
    return one


def test_what_is_known_of_each_worker(evidence: Path) -> None:
    workers = server(judge([evidence / "guarded"])).server.workers
    assert [(x.rank, x.world_size) for x in workers] == [(0, 2), (1, 2)]
    for process in workers:
        assert process.armed is not None and process.armed.build_class == "unguarded"
        assert (process.pinned, process.upstream) == ("trtllm", ["mnnvl"])
        ((group, standing),) = process.groups.items()
        assert (group.size, group.rank) == (2, process.rank)
        assert (standing.backend, standing.used) == ("trtllm", ["trtllm"])
        assert process.rendezvous is not None and process.armed.how == "fork"
        assert (process.lost, process.errors, process.doubts) == (0, [], [])
    assert len({process.rendezvous for process in workers}) == 1


def test_a_half_guarded_server_names_the_rank(evidence: Path) -> None:
    half = server(judge([evidence / "half-guarded"]))
    assert half.judgement.missing == [1]
    assert "no evidence from rank 1" in half.judgement.reasons[0]


def test_ranks_that_differ_are_told(evidence: Path) -> None:
    text = "\n".join(server(judge([evidence / "one observes"])).judgement.reasons)
    assert "rank 1: mnnvl workspace under HiSparse" in text
    assert "backends differ: rank 0: trtllm; rank 1: mnnvl" in text
    (reason, *_) = server(judge([evidence / "one observes, stuck"])).judgement.reasons
    assert reason == "decisions differ: rank 0: trtllm; rank 1: mnnvl"


def test_no_all_reduce_is_told_as_such(evidence: Path) -> None:
    for run in ("no all-reduce", "over nodes"):
        (reason,) = server(judge([evidence / run])).judgement.reasons
        assert reason == "ranks 0-1: FlashInfer all-reduce is off", run


def test_a_failed_workspace_is_told(evidence: Path) -> None:
    (reason,) = server(judge([evidence / "failed"])).judgement.reasons
    assert reason.startswith("ranks 0-1: ") and "serves instead" in reason


def test_strict_is_not_safe(evidence: Path) -> None:
    """The engine did not start; that must not read as a proof."""
    report = judge([evidence / "strict"])
    assert (report.verdict, report.exit_code) == ("unproven", 4)
    assert "strict" in "".join(server(report).judgement.reasons)


def test_misses_have_stacks(evidence: Path) -> None:
    report = judge([evidence / "guarded"])
    (miss,) = misses_of(server(report).server, report.evidence.misses)
    assert miss.event.where.function == "first_all_reduce"
    functions = [frame.function for frame in miss.event.stack]
    assert "first_all_reduce" in functions and "lazy" in functions
    assert (miss.event.vllm_alone, miss.event.used) == ("mnnvl", "trtllm")
    assert miss.event.left_at is not None and len(miss.processes) == 2


def test_tracing_finds_vllms_own_call_sites(evidence: Path) -> None:
    report = judge([evidence / "traced"])
    found = {}
    for miss in misses_of(server(report).server, report.evidence.misses):
        if miss.event.origin == "trace":
            path, line, function = miss.event.where
            code = Path(path).read_text().splitlines()[(line or 0) - 1]
            assert "get_current_vllm_config_or_none()" in code
            found[path.partition("/0.33.0/")[2], function] = (miss.count, len(miss.processes))
            assert any(frame.function == "trace" for frame in miss.event.stack)
    indexer = "vllm/model_executor/layers/sparse_attn_indexer.py"
    assert found == {
        (indexer, "_reserve_row_shard_exchange_transient"): (6, 2),
        ("vllm/v1/kv_cache_spec_registry.py", "_ensure_registered"): (2, 2),
        ("vllm/distributed/utils.py", "get_distributed_timeout_or_none"): (2, 2),
    }


def test_all_runs_at_once_are_as_many_servers(evidence: Path) -> None:
    report = judge([evidence])
    assert len(report.results) == len(RUNS)
    assert (report.verdict, report.exit_code) == ("unsafe", 1)


def test_files_are_named_as_documented(evidence: Path) -> None:
    for path in evidence.rglob("*.jsonl"):
        first = json.loads(path.read_text().splitlines()[0])
        assert path.name == f"hisparse-guard-{first['host']}-{first['pid']}.jsonl"
        assert path.stat().st_uid == os.geteuid()
