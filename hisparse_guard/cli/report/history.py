"""What happened in a server, over all its processes: context misses and the timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hisparse_guard.cli.report.decoding import Miss
from hisparse_guard.cli.report.model import Process, moment
from hisparse_guard.cli.report.ranks import ranks
from hisparse_guard.cli.report.servers import Server
from hisparse_guard.runtime.telemetry.events import ContextMiss

_MOST_TIMELINE = 500


@dataclass(slots=True)
class MissCount:
    """A call site that got no config, over all processes of a server; `number` is its index."""

    number: int
    event: ContextMiss
    count: int
    processes: list[Process]

    @property
    def who(self) -> str:
        return ranks(self.processes)

    @property
    def answered(self) -> str:
        """Who was answered what, and what vLLM alone would have used."""
        event = self.event
        if event.origin == "trace":
            return "traced"
        alone, used = event.vllm_alone or "none", event.used or "none"
        by = "the guard answered" if used != alone else "it was answered"
        return f"vLLM alone: {alone}; {by} {used}"


@dataclass(slots=True)
class Happening:
    """An entry of a server's timeline: what one or many of its processes said."""

    ts: str
    event: str
    what: str
    processes: list[Process]

    @property
    def who(self) -> str:
        return ranks(self.processes)


def misses_of(server: Server, misses: Sequence[Miss]) -> list[MissCount]:
    """Context misses over all processes, the resolver's first, then the most frequent."""
    found: dict[int, MissCount] = {}
    for process in server.processes:
        for number, count in process.misses.items():
            miss = found.get(number)
            if miss is None:
                found[number] = MissCount(number, misses[number].event, count, [process])
            else:
                miss.count += count
                miss.processes.append(process)
    return sorted(
        found.values(),
        key=lambda miss: (miss.event.origin == "trace", -miss.count, str(miss.event.where)),
    )


def timeline(server: Server) -> list[Happening]:
    """What happened, in order; the same words from several processes are one entry."""
    found: dict[tuple[str, str], Happening] = {}
    for process in server.processes:
        for entry in process.moments:
            happening = found.get((entry.event, entry.what))
            if happening is None:
                found[entry.event, entry.what] = Happening(
                    entry.ts, entry.event, entry.what, [process]
                )
                continue
            if happening.processes[-1] is not process:
                happening.processes.append(process)
            happening.ts = min(happening.ts, entry.ts)
    # The order of writing decides between equal times, and it was kept.
    return sorted(found.values(), key=lambda one: moment(one.ts) or 0)[:_MOST_TIMELINE]
