"""The decision table: every combination of its inputs, row by row, by what the table says."""

from __future__ import annotations

import itertools
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import pytest

from hisparse_guard.runtime.decision import Decision
from hisparse_guard.runtime.decision import decide as decide_by_settings
from hisparse_guard.runtime.settings import Settings

Named = namedtuple("Named", "backend fallback")

# answer -> (can trtllm serve, by vLLM's own word; the backend it names)
KNOWN = {
    "trtllm": (True, "trtllm"),
    ("trtllm", False): (True, "trtllm"),
    ("trtllm", True): (True, "trtllm"),
    ("mnnvl", True): (True, "mnnvl"),
    ("mnnvl", False): (False, "mnnvl"),
    "mnnvl": (False, "mnnvl"),
}
NO_BACKEND = (None, (None, False), (None, True))
ODD: tuple[Any, ...] = (
    "",
    "auto",
    "nccl",
    b"mnnvl",
    0,
    True,
    ("mnnvl",),
    ("mnnvl", 1),
    ("mnnvl", None),
    ("mnnvl", True, 3),
    (),
    ["mnnvl", True],
    {"backend": "mnnvl"},
    Named("mnnvl", True),
    SimpleNamespace(backend="mnnvl"),
    ("nccl", True),
    (1, True),
    object(),
)
INPUTS = {
    "hisparse": (False, True),
    "env_backend": ("auto", "trtllm", "mnnvl", "somebody's"),
    "current": (False, True),
    "mode": ("enforce", "observe", "strict", "off"),
    "target": ("trtllm", "none"),
    "multinode": ("none", "keep"),
    "pin": (None, "trtllm", "none"),
}


def combinations() -> list[dict[str, Any]]:
    return [
        dict(zip(INPUTS, values, strict=True)) for values in itertools.product(*INPUTS.values())
    ]


def decide(answer: Any, **given: Any) -> Decision:
    settings = Settings(given["mode"], given["target"], given["multinode"])
    return decide_by_settings(
        answer,
        hisparse=given["hisparse"],
        current=given["current"],
        chosen=given["env_backend"],
        settings=settings,
        pin=given["pin"],
    )


ANSWERS = (*KNOWN, *NO_BACKEND, *ODD)


# Not by repr: that of a bare object differs between the test processes.
@pytest.mark.parametrize("answer", ANSWERS, ids=range(len(ANSWERS)))
def test_every_combination(answer: Any) -> None:
    for given in combinations():
        decision = decide(answer, **given)
        told = f"{answer!r} {given} -> {decision}"
        acts = given["hisparse"] and given["mode"] != "off"
        free = acts and given["env_backend"] == "auto"

        if not acts:
            assert decision.answer is answer and decision.rule == "no-hisparse", told
        elif given["env_backend"] != "auto":
            assert decision.answer is answer and decision.rule == "env", told
        elif any(answer is odd for odd in ODD):
            assert decision.answer is answer and decision.rule == "unknown-shape", told
        elif any(answer is none for none in NO_BACKEND):
            assert decision.answer is answer and decision.rule == "no-backend", told
        if free and any(answer is none for none in NO_BACKEND):
            # What init resolved holds for the group from then on.
            held = "none" if given["current"] else given["pin"]
            assert decision.pinned == (None if given["mode"] == "observe" else held), told
            assert decision.conflict == (given["pin"] == "trtllm"), told
            continue
        if not (free and any(answer is known for known in KNOWN)):
            held = None if given["mode"] == "observe" else given["pin"]
            assert decision.pinned == held and not decision.conflict, told
            continue

        serves, backend = KNOWN[answer]
        if not serves:
            keeps = given["multinode"] == "keep" and given["pin"] != "none"
            wanted = "mnnvl" if keeps else "none"
            rule = "multinode"
        elif given["current"]:
            wanted, rule = given["target"], "hisparse"
        else:
            wanted, rule = given["pin"] or given["target"], "context-miss"
        assert (decision.rule, decision.target) == (rule, wanted), told
        if given["mode"] == "observe":
            assert decision.answer is answer and decision.pinned is None, told
            assert decision.used == backend, told
            continue

        assert decision.used == wanted, told
        # vLLM's own shape is kept, and the fallback to trtllm says nothing new.
        asked = decision.answer[0] if isinstance(answer, tuple) else decision.answer
        assert asked == (None if wanted == "none" else wanted), told
        assert isinstance(decision.answer, tuple) == isinstance(answer, tuple), told
        if wanted == backend:
            assert decision.answer is answer, told
        # A group that trtllm cannot serve never pins; the others pin what they got.
        assert decision.pinned == (wanted if serves else given["pin"]), told
        changed = given["pin"] is not None and given["pin"] != wanted
        assert decision.conflict == (changed and (given["current"] or not serves)), told


def test_mnnvl_is_never_answered_under_hisparse_unless_somebody_said_so() -> None:
    for answer in KNOWN:
        for given in combinations():
            if not given["hisparse"] or given["mode"] not in ("enforce", "strict"):
                continue
            answered = decide(answer, **given).answer
            if "mnnvl" in (answered, *(answered if isinstance(answered, tuple) else ())):
                assert given["env_backend"] != "auto" or given["multinode"] == "keep"


def test_trtllm_is_never_answered_where_vllm_says_that_it_cannot_serve() -> None:
    for answer in ("mnnvl", ("mnnvl", False), *NO_BACKEND):
        for given in combinations():
            answered = decide(answer, **given).answer
            assert "trtllm" not in (answered, *(answered if isinstance(answered, tuple) else ()))


def test_ranks_that_differ_in_context_only_answer_alike() -> None:
    """One rank may have left the config context when another has not."""
    for answer in ANSWERS:
        for given in combinations():
            if given["pin"] not in (None, given["target"]):
                continue
            other = {**given, "current": not given["current"]}
            assert decide(answer, **given).answer == decide(answer, **other).answer
