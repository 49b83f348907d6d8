"""An event to its log line. Pure.

What happened, what it means for the server, what to do. ``armed by`` and ``workspace verified:
backend=`` are looked for by scripts: they stay as they are.
"""

from logging import DEBUG, ERROR, INFO, WARNING

from hisparse_guard.runtime.telemetry.events import (
    Armed,
    ContextMiss,
    Error,
    Resolved,
    Workspace,
)

_ENV = "VLLM_FLASHINFER_ALLREDUCE_BACKEND"
_RACES = "mnnvl races with HiSparse's fused all-reduce, and the CUDA context dies under load"

REFUSAL = (
    "hisparse-guard (strict): an mnnvl all-reduce workspace was asked for under HiSparse, where it "
    f"races and the CUDA context dies under load. Set {_ENV}=trtllm, or unset it together with "
    "HISPARSE_GUARD_MULTINODE, or use HISPARSE_GUARD_MODE=enforce"
)

Line = tuple[int, str]


def armed(event: Armed, rank: int | None, world_size: int | None) -> Line:
    settings = event.settings
    return INFO, (
        f"armed by {event.how}: guard {event.guard_version}, vLLM {event.vllm_version}, "
        f"FlashInfer {event.flashinfer_version}, build class {event.build_class or 'unknown'}, "
        f"kernel class {event.kernel_class or 'unknown'}, mode {settings['mode']}, "
        f"backend {settings['backend']}, rank {_of(rank, world_size)}"
    )


def resolved(event: Resolved) -> Line | None:
    """The line about a decision under HiSparse; None for the ordinary one, of which `armed` and
    `workspace verified` tell."""
    observed = " Mode observe: nothing is changed." if event.mode == "observe" else ""
    if event.conflict:
        return ERROR, (
            f"vLLM now answers {event.vllm_answer!r}, which differs from what was pinned before: "
            f"{_backend(event.used)} is used from now on. A group whose ranks differ hangs: set "
            f"{_ENV}=trtllm and restart"
        )
    if event.rule == "unknown-shape":
        return ERROR, (
            f"not guarded: vLLM's resolver answers in a shape that this guard does not know "
            f"({event.vllm_answer}), and the answer is used as it is; set {_ENV}=trtllm, restart, "
            "and report this line"
        )
    if event.rule == "env" and event.env_backend == "mnnvl":
        return WARNING, (
            f"not guarded: {_ENV}=mnnvl is set under HiSparse and is obeyed: {_RACES}; unset it or "
            "set it to trtllm, and restart"
        )
    if event.rule == "multinode":
        choice = "HISPARSE_GUARD_MULTINODE=" + ("keep" if event.target == "mnnvl" else "none")
        return WARNING, (
            "vLLM says that trtllm cannot serve this process group (it spans nodes; on 0.30 and "
            f"0.31 the world does): {_backend(event.target)}, by "
            f"{choice if event.pinned is None else 'what vLLM resolved at init'}.{observed} "
            f"HISPARSE_GUARD_MULTINODE: none is safe and slower; keep leaves mnnvl: {_RACES}"
        )
    if event.rule in ("hisparse", "context-miss") and event.target == "none":
        return INFO, (
            "no FlashInfer all-reduce under HiSparse (HISPARSE_GUARD_BACKEND=none, or as vLLM "
            f"resolved at init): vLLM uses its other all-reduce.{observed}"
        )
    return None


def context_miss(event: ContextMiss, hisparse: bool) -> Line:
    left = "was never entered in this process"
    if event.left_at is not None:
        left = f"was left {event.left_s} s ago at {event.left_at}"
    if event.origin == "trace":
        level = INFO if hisparse else DEBUG
        return (
            level,
            f"trace: {event.where} asked for the vLLM config outside its context, which {left}",
        )
    observed = event.used != event.target
    chosen = f"the guard uses {_backend(event.used)}"
    if observed:
        chosen = f"it is used (mode observe; the guard would use {_backend(event.target)})"
    return WARNING if observed else INFO, (
        f"context miss at {event.where}: the backend was asked for outside the config context, "
        f"which {left}. vLLM alone uses {_backend(event.vllm_alone)}; {chosen}"
    )


def workspace(event: Workspace) -> Line | None:
    whose = f"rank {_of(event.group_rank, event.group_size)}"
    if event.state == "verified":
        return INFO, f"workspace verified: backend={event.backend} ({event.kind}, {whose})"
    if event.state == "failed":
        return WARNING, (
            f"no workspace: vLLM could not make one with backend={event.expected} ({whose}) and "
            "goes on with its other all-reduce, which is safe and slower; vLLM's own line before "
            "this one says why"
        )
    if event.state == "destroyed":
        return DEBUG, f"workspace destroyed ({whose})"
    if event.backend == event.expected != "mnnvl":
        again = event.creation is not None and event.creation > 1
        if not again:
            return None
        return INFO, f"workspace made again: backend={event.backend} ({whose}, #{event.creation})"
    if event.mode == "observe" or event.backend == event.expected:
        why = "as configured" if event.backend == event.expected else "mode observe"
        return WARNING, (
            f"workspace at risk: backend={event.backend} under HiSparse ({whose}; {why}): "
            f"{_RACES}; set HISPARSE_GUARD_MODE=enforce and leave {_ENV} and "
            "HISPARSE_GUARD_MULTINODE unset to be safe"
        )
    return ERROR, (
        f"workspace NOT as pinned: backend={event.backend}, expected {event.expected} ({whose}): "
        f"{_RACES}. It was made before HiSparse was seen, or on a path that the guard does "
        f"not know, or another tool took the guard's patch off; set {_ENV}=trtllm, restart, and "
        "report this line"
    )


def error(event: Error) -> Line:
    return ERROR, f"{event.message}: {event.detail}" if event.detail else event.message


def _of(rank: int | None, size: int | None) -> str:
    return "unknown" if rank is None else f"{rank} of {size}"


def _backend(backend: str | None) -> str:
    return "no FlashInfer all-reduce" if backend == "none" else str(backend)
