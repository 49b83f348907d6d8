"""An event to its log line. Pure.

What happened, what it means for the server, what to do. ``armed by`` and ``workspace verified:
backend=`` are looked for by scripts: they stay as they are.
"""

from logging import DEBUG, ERROR, INFO, WARNING

from hisparse_guard.runtime.state import ENV_BACKEND as _ENV
from hisparse_guard.runtime.telemetry import events

_RACES = "mnnvl races with the fused all-reduce of HiSparse, and the CUDA context dies under load"

# What helps without the guard, too.
REMEDY = f"set {_ENV}=trtllm and restart (vLLM refuses it for a group over several nodes)"
REFUSAL = (
    f"hisparse-guard (strict): an mnnvl workspace was asked for under HiSparse: {_RACES}. Set "
    f"{_ENV}=trtllm, or unset it and HISPARSE_GUARD_MULTINODE, or use HISPARSE_GUARD_MODE=enforce"
)

Line = tuple[int, str]


def armed(event: events.Armed, rank: int | None, world_size: int | None) -> Line:
    settings = event.settings
    return INFO, (
        f"armed by {event.how}: guard {event.guard_version}, vLLM {event.vllm_version}, "
        f"FlashInfer {event.flashinfer_version}, build class {event.build_class}, "
        f"kernel class {event.kernel_class}, mode {settings['mode']}, "
        f"backend {settings['backend']}, rank {_of(rank, world_size)}"
    )


def resolved(event: events.Resolved) -> Line | None:
    """The line about a decision under HiSparse; None for the ordinary one, of which `armed` and
    `workspace verified` tell."""
    observed = " Mode observe: nothing is changed." if event.mode == "observe" else ""
    if event.conflict:
        return ERROR, (
            f"vLLM now answers {event.vllm_answer!r}, not what was pinned: {_backend(event.used)} "
            f"is used. Ranks that differ hang: {REMEDY}"
        )
    if event.rule == "unknown-shape":
        return ERROR, (
            f"not guarded: vLLM's resolver answers {event.vllm_answer}, a shape that this guard "
            f"does not know, and that is used; report this line, and {REMEDY}"
        )
    if event.rule == "env" and event.env_backend == "mnnvl":
        return WARNING, (
            f"not guarded: {_ENV}=mnnvl is set and overrides the guard: {_RACES}; unset it, restart"
        )
    if event.rule == "multinode":
        setting = "HISPARSE_GUARD_MULTINODE=" + ("keep" if event.target == "mnnvl" else "none")
        chosen = "what vLLM resolved at init" if event.pinned is not None else setting
        return WARNING, (
            "vLLM says that trtllm cannot serve this process group (it spans nodes; on 0.30 and "
            f"0.31 the whole job does): {_backend(event.target)}, because of {chosen}.{observed} "
            f"HISPARSE_GUARD_MULTINODE=none is safe and slower; keep leaves mnnvl: {_RACES}"
        )
    if event.rule in ("hisparse", "context-miss") and event.target == "none":
        return INFO, (
            "no FlashInfer all-reduce under HiSparse (HISPARSE_GUARD_BACKEND=none, or as vLLM "
            f"resolved at init): vLLM uses its other all-reduce.{observed}"
        )
    return None


def context_miss(event: events.ContextMiss, hisparse: bool) -> Line:
    left = "was not left before in this process"
    if event.left_at is not None:
        left = f"was left {event.left_s} s ago at {event.left_at}"
    if event.origin == "trace":
        text = f"trace: {event.where} asked for the vLLM config outside its context, which {left}"
        return INFO if hisparse else DEBUG, text
    level, chosen = INFO, f"the guard uses {_backend(event.used)}"
    if event.used != event.target:
        level = WARNING
        chosen = f"it is used (mode observe; the guard would use {_backend(event.target)})"
    return level, (
        f"context miss at {event.where}: the backend was asked for outside the config context, "
        f"which {left}. vLLM alone uses {_backend(event.vllm_alone)}; {chosen}"
    )


def workspace(event: events.Workspace) -> Line | None:
    whose = f"rank {_of(event.group_rank, event.group_size)}"
    if event.state == "verified":
        return INFO, f"workspace verified: backend={event.backend} ({event.kind}, {whose})"
    if event.state == "failed":
        return WARNING, (
            f"no workspace: vLLM could not make one with backend={event.backend or event.expected} "
            f"({whose}) and uses its other all-reduce, safe and slower; vLLM's own line says why"
        )
    if event.state == "destroyed":
        return DEBUG, f"workspace destroyed ({whose})"
    if event.backend == event.expected != "mnnvl":
        text = f"workspace made again: backend={event.backend} ({whose}, #{event.creation})"
        return (INFO, text) if (event.creation or 1) > 1 else None
    if event.mode == "observe" or event.backend == event.expected:
        return WARNING, (
            f"workspace at risk: backend={event.backend} under HiSparse, as configured ({whose}): "
            f"{_RACES}; use mode enforce, {_ENV}=auto and HISPARSE_GUARD_MULTINODE=none to be safe"
        )
    return ERROR, (
        f"workspace is not as expected: backend={event.backend}, not {event.expected} ({whose}): "
        f"{_RACES}. It was made before HiSparse was seen, or on an unknown path, or another tool "
        f"took the guard's patch off; report this line, and {REMEDY}"
    )


def error(event: events.Error) -> Line:
    return ERROR, f"{event.message}: {event.detail}" if event.detail else event.message


def _of(rank: int | None, size: int | None) -> str:
    return "unknown" if rank is None else f"{rank} of {size}"


def _backend(backend: str | None) -> str:
    return "no FlashInfer all-reduce" if backend == "none" else str(backend)
