"""What is asked of the server: the levels, and the lengths and number of their requests."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    def request_ids(self) -> str:
        """What the ids of this ramp's requests begin with."""
        return f"ramp-{self.seed % 0xFFFFFF:06x}-"

    def to_json(self) -> dict[str, Any]:
        return {
            "levels": [[one.concurrency, one.requests] for one in self.levels],
            "isl": self.isl,
            "osl": self.osl,
            "multi_turn": self.multi_turn,
            "turns": self.turns,
            "turn_isl": self.turn_isl,
            "seed": self.seed,
            "timeout_s": self.timeout_s,
        }

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
    if not found or min(found) < 1 or max(found) > 1_000_000:
        raise ValueError(f"{name}: numbers above zero with commas between, not {text!r}")
    return found


def paired(concurrency: Sequence[int], requests: Sequence[int]) -> tuple[Level, ...]:
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


def load(
    *,
    levels: str | None,
    requests: str | None,
    isl: int | None,
    osl: int | None,
    multi_turn: bool,
    conversations: int | None,
    turns: int | None,
    turn_isl: int | None,
    seed: int | None,
    timeout_s: float,
) -> Load:
    """The load that the options describe.

    Raises:
        ValueError: they do not fit together; the text says how.
    """
    seed = secrets.randbits(53) if seed is None else seed
    if multi_turn:
        if requests:
            raise ValueError("--requests: under --multi-turn they follow from the conversations")
        turns, count = turns or TURNS, conversations or CONVERSATIONS
        asked = numbers(levels, "--levels") if levels else (CONVERSATION_CONCURRENCY,)
        if max(asked) > count:
            raise ValueError(f"--levels: {max(asked)} at a time of {count} conversations")
        each = tuple(Level(one, count * turns, count) for one in asked)
        sizes = (isl or FIRST_TURN_ISL, osl or TURN_OSL, seed, timeout_s)
        return Load(each, *sizes, turns, turn_isl or TURN_ISL)
    for name, given in (
        ("--conversations", conversations),
        ("--turns", turns),
        ("--turn-isl", turn_isl),
    ):
        if given is not None:
            raise ValueError(f"{name} goes with --multi-turn")
    asked = numbers(levels, "--levels") if levels else LEVELS
    default = REQUESTS if not levels else tuple(max(8, 2 * one) for one in asked)
    counts = numbers(requests, "--requests") if requests else default
    return Load(paired(asked, counts), isl or ISL, osl or OSL, seed, timeout_s)


def token_range(text: str | None) -> list[int]:
    """Ids from ``LOW-HIGH``; none for None.

    Raises:
        ValueError: it is something else.
    """
    if text is None:
        return []
    low, _, high = text.partition("-")
    if not (low.isdigit() and high.isdigit() and 15 <= int(high) - int(low) < 1 << 24):
        raise ValueError(f"--token-ids: LOW-HIGH with at least 16 ids, not {text!r}")
    return list(range(int(low), int(high) + 1))
