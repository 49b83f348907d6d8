"""The decision: which backend FlashInfer's all-reduce workspace is to have. Pure.

Three backends are told apart in all that follows: ``upstream`` (what vLLM alone would use),
``target`` (what the guard asks for) and ``used`` (what is asked for in the end; differs from the
target in mode ``observe`` only). Each is ``"trtllm"``, ``"mnnvl"``, ``"none"`` for no FlashInfer
all-reduce, or None where it is not known.
"""

from typing import Any, Literal, NamedTuple

from hisparse_guard.runtime.settings import Settings

TRTLLM = "trtllm"
MNNVL = "mnnvl"
NONE = "none"

Rule = Literal[
    "no-hisparse", "no-backend", "env", "unknown-shape", "hisparse", "context-miss", "multinode"
]


class Decision(NamedTuple):
    """What the resolver is to answer, and why; the fields are named as in the evidence.

    Attributes:
        rule: the row of the table that applied.
        vllm_answer, answer: vLLM's answer, and the one for its caller, in vLLM's own shape.
        upstream, target, used: see the module.
        pinned: what holds for the group from now on: ``"trtllm"``, ``"none"`` or None.
        conflict: a fresh decision differs from what was pinned.
    """

    rule: Rule
    vllm_answer: Any
    answer: Any
    upstream: str | None
    target: str | None
    used: str | None
    pinned: str | None
    hisparse: bool
    config_current: bool
    env_backend: str
    mode: str
    conflict: bool

    def guard_chose_none(self) -> bool:
        """Whether the guard, and not vLLM, decided for no FlashInfer all-reduce."""
        return self.used == NONE != self.upstream


def parse_answer(answer: Any) -> tuple[str, bool] | None:
    """The backend that vLLM's resolver answered, and whether trtllm can serve; None for an unknown
    shape.

    Known (vLLM 0.19 to 0.34): ``backend`` and ``(backend, allow_trtllm_fallback)``, each with None
    for "no backend". Under ``auto`` the second member is vLLM's own word on whether trtllm can
    stand in; a bare ``"mnnvl"`` is given for groups over several nodes only.
    """
    backend, fallback = answer, False
    if type(answer) is tuple and len(answer) == 2 and type(answer[1]) is bool:
        backend, fallback = answer
    if type(backend) is str and backend in (TRTLLM, MNNVL):
        return backend, fallback or backend == TRTLLM
    return (NONE, False) if backend is None else None


def decide(
    answer: Any, hisparse: bool, current: bool, chosen: str, settings: Settings, pin: str | None
) -> Decision:
    """The one table of the guard.

    Args:
        answer: what vLLM's resolver answered just now.
        hisparse: whether any config of this process ever had HiSparse on.
        current: whether a vLLM config is current.
        chosen: ``VLLM_FLASHINFER_ALLREDUCE_BACKEND``; ``auto`` when unset.
        settings: the mode, the backend wanted under HiSparse, and what is wanted where trtllm
            cannot serve.
        pin: what holds for the group from an earlier decision.
    """
    upstream, trtllm_can_serve = parse_answer(answer) or (None, False)

    def decided(rule: Rule, target: str | None, pinned: str | None = pin) -> Decision:
        used, shaped = target, answer
        if settings.mode == "observe":
            used, pinned = upstream, None
        elif target != upstream:
            backend = None if target == NONE else target
            shaped = (backend, False) if type(answer) is tuple else backend
        conflict = pin not in (None, target) and rule in ("hisparse", "multinode", "no-backend")
        inputs = (hisparse, current, chosen, settings.mode)
        return Decision(rule, answer, shaped, upstream, target, used, pinned, *inputs, conflict)

    if settings.mode == "off" or not hisparse:
        return decided("no-hisparse", upstream)
    # Before the shape: an operator's own choice may be a backend that is not known here.
    if chosen != "auto":
        return decided("env", upstream)
    if upstream is None:
        return decided("unknown-shape", upstream)
    if upstream == NONE:
        # What init resolved holds: a later answer outside the context is none too (0.34.0).
        return decided("no-backend", NONE, NONE if current else pin)
    if not trtllm_can_serve:
        # A pin to trtllm does not count here: vLLM would refuse it with a ValueError.
        keeps = settings.multinode == "keep" and pin != NONE
        return decided("multinode", MNNVL if keeps else NONE)
    if current:
        return decided("hisparse", settings.backend, settings.backend)
    target = pin or settings.backend
    return decided("context-miss", target, target)
