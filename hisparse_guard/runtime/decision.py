"""The decision: which backend FlashInfer's all-reduce workspace is to have. Pure."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

TRTLLM = "trtllm"
MNNVL = "mnnvl"
NONE = "none"

Rule = Literal[
    "no-hisparse", "no-backend", "env", "unknown-shape", "hisparse", "context-miss", "multinode"
]


class Word(NamedTuple):
    """What vLLM's resolver said, whatever shape it said it in."""

    backend: str | None
    trtllm_can_serve: bool


class Decision(NamedTuple):
    """What the resolver is to answer, and why.

    Attributes:
        rule: the row of the table that applied.
        answer: for vLLM's caller, in vLLM's own shape.
        backend: the backend that will be asked for under this answer; ``"none"`` for no
            FlashInfer all-reduce, None where that is not known.
        wanted: what the guard asks for; differs from `backend` in mode ``observe`` only.
        pin: what is pinned for the group from now on (``"trtllm"``, ``"none"`` or None).
        conflict: a fresh decision differs from the pin.
    """

    rule: Rule
    answer: Any
    backend: str | None
    wanted: str | None
    pin: str | None
    conflict: bool = False


def understand(answer: Any) -> Word | None:
    """vLLM's answer taken apart; None for a shape nobody knows.

    Known (vLLM 0.19 to 0.33): ``backend`` and ``(backend, allow_trtllm_fallback)``, each
    with None for "no backend". Under ``auto`` the second member is vLLM's own word on
    whether trtllm can stand in; a bare ``"mnnvl"`` is given for groups over nodes only.
    """
    if answer is None:
        return Word(None, False)
    if type(answer) is tuple and len(answer) == 2 and type(answer[1]) is bool:
        backend, fallback = answer
    else:
        backend, fallback = answer, False
    if backend is None and type(answer) is tuple:
        return Word(None, False)
    if type(backend) is not str or backend not in (TRTLLM, MNNVL):
        return None
    return Word(backend, fallback or backend == TRTLLM)


def _shaped(backend: str | None, like: Any) -> Any:
    return (backend, False) if type(like) is tuple else backend


def decide(
    answer: Any,
    *,
    hisparse: bool,
    env_backend: str,
    current: bool,
    mode: str,
    target: str,
    multinode: str,
    pin: str | None,
) -> Decision:
    """The one table of the guard.

    Args:
        answer: what vLLM's resolver answered just now.
        hisparse: whether any config of this process ever had HiSparse on.
        env_backend: ``VLLM_FLASHINFER_ALLREDUCE_BACKEND``; ``auto`` when unset.
        current: whether a vLLM config is current.
        mode: ``enforce``, ``observe``, ``strict`` or ``off``.
        target: ``trtllm`` or ``none``, the backend wanted under HiSparse.
        multinode: ``none`` or ``keep``, for groups that trtllm cannot serve.
        pin: what was pinned for the group before.
    """
    word = understand(answer)
    said = None if word is None else (word.backend or NONE)
    if mode == "off" or not hisparse:
        return Decision("no-hisparse", answer, said, said, pin)
    # Before the shape: an operator's own choice may be a backend that we do not know.
    if env_backend != "auto":
        return Decision("env", answer, said, said, pin)
    if word is None:
        return Decision("unknown-shape", answer, None, None, pin)
    if word.backend is None:
        return Decision("no-backend", answer, NONE, NONE, pin)

    rule: Rule
    if not word.trtllm_can_serve:
        # The pin does not count here: vLLM would refuse trtllm with a ValueError.
        rule = "multinode"
        wanted = MNNVL if multinode == "keep" else NONE
        conflict = pin is not None and pin != wanted
        pinned = pin
    elif current:
        rule = "hisparse"
        wanted = target
        conflict = pin is not None and pin != wanted
        pinned = wanted
    else:
        rule = "context-miss"
        wanted = pin or target
        conflict = False
        pinned = wanted
    if mode == "observe":
        return Decision(rule, answer, said, wanted, None, False)
    if wanted == word.backend:
        return Decision(rule, answer, wanted, wanted, pinned, conflict)
    shaped = _shaped(None if wanted == NONE else wanted, answer)
    return Decision(rule, shaped, wanted, wanted, pinned, conflict)
