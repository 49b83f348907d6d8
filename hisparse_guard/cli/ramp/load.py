"""What is asked of the server: the levels, and the lengths and number of their requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# The ramp that brought the fault out, and the one that proves a fix (vLLM #56699).
LEVELS = (1, 2, 4, 8, 16)
REQUESTS = (8, 8, 8, 16, 32)
ISL = 32_000
OSL = 2_000

# The other published load: 64 growing conversations, 32 at a time, 832 turns in all. The first
# turn and the growth are derived from its summary: 84147 input tokens on average and 92 % of them
# from the cache.
CONVERSATIONS = 64
CONVERSATION_CONCURRENCY = 32
TURNS = 13
FIRST_TURN_ISL = 80_000
TURN_ISL = 340
TURN_OSL = 220


@dataclass(frozen=True)
class Level:
    """One level: `requests` requests (turns, under `conversations`), `concurrency` at a time."""

    concurrency: int
    requests: int
    conversations: int = 0


@dataclass(frozen=True)
class Load:
    """The whole ramp.

    Attributes:
        isl: tokens of each prompt; of a conversation's first turn.
        osl: tokens of each answer, exact (``ignore_eos``).
        turn_isl: tokens of a conversation's later questions.
        turns: questions in a conversation; 1 without conversations.
        seed: everything random follows from it.
        timeout_s: how long one request may take, in seconds.
    """

    levels: tuple[Level, ...]
    isl: int
    osl: int
    seed: int
    timeout_s: float
    turns: int = 1
    turn_isl: int = 0

    @property
    def multi_turn(self) -> bool:
        return self.turns > 1

    @property
    def longest(self) -> int:
        """Tokens of the longest request with its answer."""
        return self.isl + (self.turns - 1) * (self.turn_isl + self.osl) + self.osl


def numbers(text: str, name: str) -> tuple[int, ...]:
    """Positive integers from ``1,2,4``.

    Raises:
        ValueError: it is something else; the text says so.
    """
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise ValueError(f"{name}: numbers above zero with commas between, not {text!r}")
    return found


def levels(concurrency: Sequence[int], requests: Sequence[int]) -> tuple[Level, ...]:
    """Pairs levels with requests; one number of requests serves all levels.

    Raises:
        ValueError: the lists do not fit together.
    """
    if len(requests) == 1:
        requests = list(requests) * len(concurrency)
    if len(requests) != len(concurrency):
        raise ValueError(
            f"--requests: {len(requests)} numbers for {len(concurrency)} levels;"
            " give one for each level, or one for all"
        )
    return tuple(Level(c, r) for c, r in zip(concurrency, requests, strict=True))
