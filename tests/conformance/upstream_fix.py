"""vLLM 0.34.0, which has the upstream fix: what it makes alone, way by way, and with the guard."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from tests.conformance import harness
from tests.conformance.jobs import MNNVL, job, setting

RELEASE = "0.34.0"

NO_STANDALONE = {"VLLM_ALLREDUCE_USE_FLASHINFER": "0"}
# What `cuda_checkpoint_executor` requires for more than one rank.
CHECKPOINT = {
    **NO_STANDALONE,
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC": "0",
    "VLLM_USE_NCCL_SYMM_MEM": "0",
}


class Way(NamedTuple):
    """One way to a workspace.

    Attributes:
        text: what happens, in a table's words.
        alone: the backends that vLLM alone makes, in order; none where there is no workspace.
        guarded: the same with the guard.
    """

    text: str
    job: dict[str, Any]
    alone: tuple[str, ...] = ("mnnvl",)
    guarded: tuple[str, ...] = ("trtllm",)


def first(op: str) -> dict[str, Any]:
    return job("op_first", op=op)


def again(by: str) -> dict[str, Any]:
    return job("recreated", by=by)


BOTH = ("trtllm", "mnnvl")
TWICE = ("trtllm", "trtllm")
WAYS = {
    "default": Way("the first small all-reduce, then the fused op", job("model"), ("trtllm",)),
    "standalone-off": Way(
        "`VLLM_ALLREDUCE_USE_FLASHINFER=0`, the fused op", job("model", NO_STANDALONE)
    ),
    "batch-invariant": Way(
        "`VLLM_BATCH_INVARIANT=1`, the fused op", job("model", {"VLLM_BATCH_INVARIANT": "1"})
    ),
    "checkpoint": Way("the CUDA-checkpoint executor's environment", job("model", CHECKPOINT)),
    "fused-first": Way("`fused_allreduce_rms_norm` asks first", first("fused")),
    "gemma-first": Way("`fused_allreduce_gemma_rms_norm` asks first", first("gemma")),
    "kimi-first": Way("kimi_k3's `allreduce_norm_latent_out` asks first", first("kimi_k3")),
    "qwen-first": Way("qwen3_5's `_get_workspace` (quant) asks first", first("qwen3_5")),
    "quant-first": Way("`get_fi_ar_quant_workspace` asked first", job("quant_getter_first")),
    "muse": Way(
        "muse_spark's `stock_all_reduce`, which asks the standalone one before",
        job("muse"),
        ("trtllm",),
    ),
    "compiled": Way(
        "the compiler's pass, in the config context, then its op", job("compiled"), ("trtllm",)
    ),
    "again-pass": Way("destroyed, made again by the pass", again("pass"), BOTH, TWICE),
    "again-fused": Way("destroyed, made again by the fused op", again("fused"), BOTH, TWICE),
    "again-standalone": Way(
        "destroyed, made again by `FlashInferAllReduce.all_reduce`",
        again("all_reduce"),
        BOTH,
        TWICE,
    ),
    "nodes": Way(
        "a group over two nodes, Blackwell: init answers none, then the fused op",
        job("model", nodes=2),
        guarded=(),
    ),
    "nodes-hopper": Way(
        "a group over two nodes, no Blackwell", job("model", nodes=2, blackwell=False), (), ()
    ),
    "operator": Way(
        "`VLLM_FLASHINFER_ALLREDUCE_BACKEND=mnnvl`", job("model", MNNVL), guarded=("mnnvl",)
    ),
}
GUARD_ONLY = {
    "observe": job("op_first", setting(MODE="observe")),
    "none": job("model", setting(BACKEND="none")),
    "nodes-keep": job("model", setting(MULTINODE="keep"), nodes=2),
}


@functools.cache
def outcomes(guarded: bool, tree: str = RELEASE) -> dict[str, Any]:
    """What the ranks of each job found, and its log, by label."""
    jobs = {label: way.job for label, way in WAYS.items()} | (GUARD_ONLY if guarded else {})
    guard = harness.guard_path() if guarded else None
    return dict(zip(jobs, harness.run_jobs(tree, list(jobs.values()), guard=guard), strict=True))


def made(result: Any) -> tuple[str, ...]:
    """The backends made, in order, the same on both ranks."""
    for rank in result["ranks"]:
        assert "error" not in rank, rank.get("traceback")
    one, two = [tuple(rank["made"]) for rank in result["ranks"]]
    assert one == two
    return one


def table() -> str:
    """The table of `docs/upstream-0.34.md`."""
    lines = ["| what asks for the workspace | vLLM 0.34.0 makes |", "|---|---|"]
    for way in WAYS.values():
        lines.append(f"| {way.text} | {', then '.join(f'`{b}`' for b in way.alone) or 'none'} |")
    return "\n".join(lines) + "\n"
