"""Whether it was the same server from first to last."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hisparse_guard.cli.ramp.server import ASK_S, Server, Signs

# The models' `created` is in whole seconds, and some releases make it anew for each answer.
APART_S = 1.2
SEVERAL = "several servers answer at one address: name each with --engine-url"
# What a change of each sign says.
SIGNS = {
    "version": "its version changed",
    "created": "the model was loaded anew",
    "root": "another model has the name",
    "max_model_len": "it takes requests of another length",
    "started": "it was restarted",
}
# What each sign is called.
_NOUNS = {"created": "model's time of creation", "root": "model's files", "started": "start time"}


@dataclass
class Identity:
    """What the server told of itself at the start.

    Attributes:
        first: signs that hold still, by address.
        clocks: the latest `created` of servers that make it anew for each answer.
        not_shown: what could not be told, in words.
    """

    first: dict[str, Signs] = field(default_factory=dict)
    clocks: dict[str, int] = field(default_factory=dict)
    not_shown: list[str] = field(default_factory=list)

    @classmethod
    async def learn(cls, server: Server) -> Identity:
        """Looks twice: a sign that changes by itself tells nothing."""
        one = await server.signs()
        await asyncio.sleep(APART_S)
        two = await server.signs()
        found = cls()
        for url, signs in one.items():
            again = two[url]
            still = {
                name: getattr(signs, name) if getattr(signs, name) == getattr(again, name) else None
                for name in SIGNS
            }
            found.first[url] = replace(signs, **still)
            clock = _is_clock(signs.created, again.created)
            if clock and again.created is not None:
                found.clocks[url] = again.created
            moved = {name for name in SIGNS if getattr(signs, name) != getattr(again, name)}
            if moved - ({"created"} if clock else set()):
                found.not_shown.append(SEVERAL)
            if found.first[url].version is None:
                found.not_shown.append("the server's version")
            # A `created` that holds still may be a constant, or of the model's files.
            if found.first[url].started is None:
                found.not_shown.append("that the server was not restarted (it tells no start time)")
        found.not_shown = list(dict.fromkeys(found.not_shown))
        return found

    def changed(self, now: dict[str, Signs], *, busy: bool = False) -> str | None:
        """What is another than at the start, in words; None where nothing is.

        Args:
            busy: the server is under load, and may have been too slow to tell a sign.
        """
        for url, first in self.first.items():
            created = now[url].created
            if url in self.clocks and created is not None:
                if created < self.clocks[url]:
                    return "another server answers: the model's time of creation went back"
                self.clocks[url] = created
            for name, text in SIGNS.items():
                before, after = getattr(first, name), getattr(now[url], name)
                if before is None or (after is None and (busy or now[url].silent)):
                    continue
                if after is None:
                    noun = _NOUNS.get(name, name)
                    what = "another server answers, or this one is no longer well"
                    return f"{what}: it no longer tells its {noun}"
                if before != after:
                    return f"another server answers: {text} ({before} to {after})"
        return None

    def not_told(self, now: Mapping[str, Signs]) -> list[str]:
        """What a server that is too slow did not tell at the end, in words."""
        return [
            f"that it is the same server at the end ({told.silent})"
            for url, told in now.items()
            if told.silent and any(getattr(self.first[url], name) is not None for name in SIGNS)
        ]

    def load_not_seen(
        self, now: Mapping[str, Signs], server: Server, tokens: int
    ) -> tuple[list[str], list[str]]:
        """Whether the load was on the servers that were looked at, by what they count themselves:
        what speaks against it, and what they do not tell, in words.

        Args:
            tokens: of the load, as they came.
        """
        rises: list[float] = []
        not_shown = []
        for url in server.engine_urls:
            first, last = self.first[url].tokens, now[url].tokens
            # Where the start time does not hold still, several servers count.
            if first is None or last is None or self.first[url].started is None:
                rises.append(math.inf)
            else:
                rises.append(last - first)
            if url != server.base_url and not 0 < rises[-1] < math.inf:
                why = "counts none of its tokens" if rises[-1] <= 0 else "does not count tokens"
                not_shown.append(f"that the load was on {url}, a --engine-url ({why})")
        if sum(rises) >= tokens:
            return [], not_shown
        told = f"/metrics counts {max(sum(rises), 0):g} of its {tokens} tokens"
        what = "that the load reached the servers of --base-url and --engine-url"
        return [f"{what} ({told})"], not_shown


def _is_clock(one: int | None, two: int | None) -> bool:
    """Whether `created` is merely the time of the answer."""
    return one is not None and two is not None and 0 < two - one <= 2 * ASK_S + APART_S
