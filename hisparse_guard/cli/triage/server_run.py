"""What a log says about one run of a server: from a start to the next start.

Records are handed over one by one; what is kept is bounded: of each signal a count, the ranks
and the first few places.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import re2

from hisparse_guard.cli.triage import kernel_lines, standstill
from hisparse_guard.cli.triage.catalogue import Catalogue
from hisparse_guard.cli.triage.facts import Facts
from hisparse_guard.cli.triage.fatal_words import speaks_for_another
from hisparse_guard.cli.triage.model import Place, Record
from hisparse_guard.cli.triage.standstill import Standstill, Stats
from hisparse_guard.cli.triage.trouble import Trouble, trouble_of, why_harmless

KEPT = 6
_MOST_TROUBLE = 40

_ACCESS = re2.compile(
    r'[\w.:\[\]%-]{1,80} - "([A-Z]{3,10}) (/\S*) HTTP/[\d.]{1,4}" '
    r"([1-5]\d\d)(?: [A-Za-z -]{2,40})?$"
)
# The same in the common log format, by a proxy in front of the server.
_PROXY = re2.compile(
    r'\S{1,80} \S{1,80} \S{1,200} \[[^\]\n]{1,40}\] "[A-Z]{3,10} [^"\n]*" (5\d\d)(?: |$)'
)
# Requests that are answered by the engine; /health is answered 200 by a server that stands still.
_ANSWERS = re2.compile(
    r"/(?:v1/(?:chat/completions|completions|responses|messages|embeddings|rerank|score|audio/)"
    r"|v2/(?:rerank|chat)|pooling|classify|score|rerank|generate|invocations|inference/v1/generate"
    r"|cohere/)[/\w]*(?:\?|$)"
)
_CORRUPTED = re2.compile(r"Corrupted: [1-9]\d{0,9} reqs")
_GUARD_RANK = re2.compile(r"\brank[= ](\d{1,6})\b")
# What vLLM's logger writes before any client can speak, and then every few seconds.
_LOGGED = re2.compile(
    r"vLLM (?:API )?server version |non-default args: |Initializing an? (?:V1 )?LLM engine "
    r"|Engine \d{1,4}: Avg prompt throughput"
)


@dataclass
class Seen:
    """How often a signal came, from which ranks, and the first places that say it."""

    count: int = 0
    places: list[Place] = field(default_factory=list)
    ranks: dict[str, Place] = field(default_factory=dict)
    dps: set[int] = field(default_factory=set)
    last: Place | None = None
    own: bool = False

    def add(self, place: Place, dp: int | None, own: bool = True) -> None:
        """Adds a place that says it; `own`: shown to be about this server."""
        self.count += 1
        self.last = place
        self.own = self.own or own
        if dp is not None:
            self.dps.add(dp)
        if place.rank is not None and len(self.ranks) < 4096:
            self.ranks.setdefault(place.rank, place)
        if len(self.places) < KEPT:
            self.places.append(place)


@dataclass(eq=False)
class Run:
    """One run of a server.

    Attributes:
        origin: pod or container, where the log names it.
        number: 1-based, of this origin in this log.
        begun_by: what showed that a new server started, or None for the log's beginning.
        restarted: True where another run of the same server follows in this log.
        recognised: True where a line of a vLLM server is in it.
        has_heads: whether vLLM's lines have a head (a source file, or a time and a level), by
            the first that tells; None where none does. Without heads a client whose text holds
            a line end can write a line of any kind.
        elsewhere: lines of the kernel about another program.
        foreign: a line of whoever started or ran the server, the first behind `last_own`.
        last_own: the order of the server's last line.
    """

    catalogue: Catalogue
    origin: str | None
    number: int
    first: Place
    begun_by: str | None = None
    restarted: bool = False
    last: Place | None = None
    recognised: bool = False
    has_heads: bool | None = None
    markers: dict[str, tuple[str | None, int | None]] = field(default_factory=dict)
    seen: dict[str, Seen] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)
    pids: dict[str, int] = field(default_factory=dict)
    own_pids: set[int] = field(default_factory=set)
    elsewhere: list[Place] = field(default_factory=list)
    foreign: Place | None = None
    last_own: int = 0
    ranks: dict[str, Place] = field(default_factory=dict)
    guard_ranks: dict[str, Place] = field(default_factory=dict)
    troubles: list[Trouble] = field(default_factory=list)
    trouble_count: int = 0
    harmless: dict[str, int] = field(default_factory=dict)
    came_up: Place | None = None
    shutdown: Place | None = None
    told_at: dict[int, str] = field(default_factory=dict)
    shutdown_done: Place | None = None
    answered: Place | None = None
    last_answer: Place | None = None
    failed_requests: int = 0
    engines: dict[str, Standstill] = field(default_factory=dict)
    slow_lines: int = 0
    corrupted: Place | None = None
    wait_in_startup: Place | None = None
    times: dict[int, str] = field(default_factory=dict)

    @property
    def up(self) -> bool:
        """True once the server came up or answered."""
        return self.came_up is not None or self.answered is not None or bool(self.engines)

    @property
    def behind(self) -> Place | None:
        """The first line behind the server's last one that is not known, or None."""
        foreign = self.foreign
        return foreign if foreign is not None and foreign.order > self.last_own else None

    def take(self, record: Record) -> None:
        """Adds one record."""
        place = record.place()
        self.last = place
        if record.kind not in ("bare", "system"):
            self.last_own = max(self.last_own, record.order)
        elif speaks_for_another(record) and self.behind is None:
            self.foreign = place
        if record.time:
            # By length: times of the runtime and of vLLM are not to be compared.
            self.times[min(len(record.time), 40)] = record.time
        if record.label and record.kind != "main":
            self.recognised = True
        if record.label and record.pid is not None and len(self.pids) < 4096:
            self.pids.setdefault(record.label, record.pid)
            self.own_pids.add(record.pid)
        if record.source is not None:
            self.recognised = True
        if self.has_heads is None:
            self._format(record)
        if record.rank is not None and record.kind == "worker" and len(self.ranks) < 4096:
            self.ranks.setdefault(record.rank, place)
        if record.access:
            self._access(record, place)
        elif record.kind == "bare" and (failed := _PROXY.match(record.message)):
            self._failed(failed.group(1), place)
        elif not record.cut and self._statistics(record, place):
            return
        else:
            self._say(record, place)

    def first_trouble(self) -> Trouble | None:
        """What went wrong first, by the order of the log.

        vLLM dumps the input of a step that failed before it logs the error itself.
        """
        errors = [one for one in self.troubles if one.signals != ("input_dumped",)]
        return min(errors or self.troubles, key=lambda one: one.place.order, default=None)

    def _format(self, record: Record) -> None:
        if record.source is not None and record.kind != "native":
            self.has_heads = True
        elif _LOGGED.match(record.message):
            self.has_heads = record.level is not None and record.time is not None
            self.recognised = True

    @property
    def over_nodes(self) -> bool:
        """True where a line or the configuration says that it has several nodes."""
        return "multi_node" in self.seen or self.facts.value("nnodes") is not None

    def _access(self, record: Record, place: Place) -> None:
        found = _ACCESS.match(record.message)
        if not found:
            return
        self.recognised = True
        method, path, status = found.groups()
        if status[0] == "5":
            self._failed(status, place)
        elif status[0] == "2" and method == "POST" and _ANSWERS.match(path):
            self._answer(place)

    def _failed(self, status: str, place: Place) -> None:
        self.failed_requests += 1
        self._trouble(Trouble(place, f"a request was answered with {status}", None, ()))

    def _answer(self, place: Place) -> None:
        self.answered = self.answered or place
        self.last_answer = place

    def _statistics(self, record: Record, place: Place) -> bool:
        if (
            record.kind not in ("api", "main", "engine")
            or "Avg prompt throughput" not in record.message
        ):
            return False
        stats = standstill.parse(place, record.message)
        if stats is None:
            return False
        self.recognised = True
        name = record.message.partition(": Avg")[0] if "Avg" in record.message[1:60] else ""
        key = f"{record.label or ''} {name}".strip()
        if len(self.engines) < 512 or key in self.engines:
            self.engines.setdefault(key, Standstill()).statistics(stats)
        if stats.generation > 0:
            self._answer(place)
        if stats.running and stats.prompt < 1 and 0 < stats.generation / stats.running < 6:
            self.slow_lines += 1
        if "Corrupted: " in record.message and _CORRUPTED.search(record.message[:1200]):
            self.corrupted = self.corrupted or place
        return True

    def _say(self, record: Record, place: Place) -> None:
        believed = not record.cut and not record.severe
        if believed and self.facts.take(record.message, place) and record.kind != "bare":
            self.recognised = True
        whose = self._whose(record)
        if whose == kernel_lines.OTHER:
            self.elsewhere = [*self.elsewhere[:KEPT], place]
            return
        if (why := why_harmless(record, self.catalogue)) is not None:
            self.harmless[why] = self.harmless.get(why, 0) + 1
            return
        said = [] if record.cut else self._signals(record, place, whose != kernel_lines.MAYBE)
        if "startup_complete" in said and self.came_up is None:
            self.came_up = place
        if "shm_wait" in said:
            self._wait(place)
        if "guard_armed" in said:
            self._armed(record, place)
        ended = [name for name in said if self._ends_by_itself(name, place)]
        fatal = tuple(name for name in said if name in self.catalogue.fatal and name not in ended)
        if ended and not fatal:
            return
        if (trouble := trouble_of(record, said, fatal)) is not None:
            self._trouble(trouble)
        elif "shutdown" in said and self.shutdown is None and not self.troubles:
            self.shutdown = place
            self.told_at = dict(self.times)
        elif self.shutdown is not None and (
            "shutdown_complete" in said or ("engine_ended" in said and "servers_told" in self.seen)
        ):
            self.shutdown_done = place

    def _whose(self, record: Record) -> str:
        """Whose process a line is about; the kernel's may be about any on the node."""
        if record.kind not in ("system", "bare"):
            return kernel_lines.OWN
        victim = kernel_lines.victim(record.message)
        if victim is None:
            return kernel_lines.OWN
        whose = kernel_lines.whose(victim, self.own_pids)
        hardware = self.catalogue.matchers["message"].match(record.message, record)
        # A GPU that fails, fails for all that use it.
        return kernel_lines.MAYBE if "hardware_xid" in hardware else whose

    def _signals(self, record: Record, place: Place, own: bool) -> list[str]:
        matchers = self.catalogue.matchers
        said = matchers["message"].match(record.message, record)
        places = dict.fromkeys(said, place)
        for at, found in (("exception", record.exceptions), ("frame", record.frames)):
            for number, order, text in found:
                for name in matchers[at].match(text, record):
                    places.setdefault(name, record.place(number, order, text))
        if not record.exceptions and "died" not in record.message and record.severe:
            # The line of an exception alone, behind the head of a log line.
            for name in matchers["exception"].match(record.message, record):
                places.setdefault(name, place)
        for name, where in places.items():
            if self._ends_by_itself(name, where):
                continue
            seen = self.seen.get(name)
            if seen is None:
                seen = self.seen[name] = Seen()
            seen.add(where, record.dp, own)
        if places and (places.keys() & self.catalogue.fatal or record.kind != "bare"):
            self.recognised = True
        return list(places)

    def _ends_by_itself(self, name: str, place: Place) -> bool:
        """True for the end of a process after the server was told to stop."""
        told = self.shutdown
        return (
            told is not None
            and place.order > told.order
            and self.catalogue.signals[name].at_shutdown
        )

    def _trouble(self, trouble: Trouble) -> None:
        self.trouble_count += 1
        if self.shutdown and trouble.place.order < self.shutdown.order:
            # It went down because of this, and was not told to.
            self.shutdown = None
        if len(self.troubles) < _MOST_TROUBLE:
            self.troubles.append(trouble)

    def _wait(self, place: Place) -> None:
        if not self.up:
            self.wait_in_startup = self.wait_in_startup or place
            return
        stuck = [one for one in self.engines.values() if one.current]
        for one in stuck or [self.engines.setdefault("", Standstill())]:
            one.waits(place)

    def _armed(self, record: Record, place: Place) -> None:
        rank = record.rank if record.kind == "worker" else None
        named = _GUARD_RANK.search(record.message)
        if rank is None and named:
            rank = f"rank {named.group(1)}"
        if rank is not None and len(self.guard_ranks) < 4096:
            self.guard_ranks.setdefault(rank, place)

    def last_stats(self) -> Stats | None:
        """The last statistics of any engine."""
        found = [one.last for one in self.engines.values() if one.last]
        return max(found, key=lambda stats: stats.place.order, default=None)

    def unguarded_ranks(self) -> list[str]:
        """Ranks of which no armed line is there while other ranks have one."""
        if not self.guard_ranks:
            return []
        # Where processes carry no rank in their name the guard's own line has it.
        armed = {*self.guard_ranks, *(f"TP{rank[5:]}" for rank in self.guard_ranks if " " in rank)}
        missing = [rank for rank in self.ranks if rank not in armed]
        if missing or self.over_nodes:
            # A log of one node has nothing of the ranks of the others.
            return missing
        size = self.facts.number("tensor_parallel_size") or 0
        if all(rank.startswith("TP") for rank in self.guard_ranks):
            return [f"TP{n}" for n in range(min(size, 1024)) if f"TP{n}" not in armed]
        return []
