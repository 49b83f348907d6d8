"""What no guard writes in the lines of one process, and lines of it that contradict each other.

Each thing found is a doubt, which caps the verdict at `unproven`.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable
from typing import Any

from hisparse_guard.cli.report.reader import Record
from hisparse_guard.runtime.decision import NONE, TRTLLM, Decision, Rule, decide, parse_answer
from hisparse_guard.runtime.settings import CHOICES, Settings
from hisparse_guard.runtime.state import ENV_BACKEND
from hisparse_guard.runtime.telemetry import events

# What a guard of this schema writes into fields that a proof rests on.
KNOWN: dict[str, frozenset[str | None]] = {
    "how": frozenset({"sitecustomize", "entry point", "fork"}),
    "source": frozenset({"attention_config", "connector", None}),
    "rule": frozenset(typing.get_args(Rule)),
    "mode": frozenset(CHOICES["MODE"]),
    "backend": frozenset(CHOICES["BACKEND"]),
    "multinode": frozenset(CHOICES["MULTINODE"]),
    "pin": frozenset({TRTLLM, NONE, None}),
    "origin": frozenset({"resolver", "trace"}),
}


def contradictions(records: Iterable[Record], misses: Iterable[events.ContextMiss]) -> list[str]:
    """Why the lines of one process cannot be taken as they are, each reason once.

    Args:
        records: in the order of their sequence numbers.
        misses: the context misses of the same process.
    """
    lines = _Lines()
    for record in records:
        lines.take(record)
    lines.take_misses(list(misses))
    return list(dict.fromkeys(lines.doubts))


class _Lines:
    """What the lines so far say, and what is wrong with them."""

    def __init__(self) -> None:
        self.doubts: list[str] = []
        self._settings: dict[str, Any] | None = None
        self._environment: dict[str, str | None] = {}
        self._mode: str | None = None
        self._hisparse = False
        self._address: str | None = None
        self._used: set[str] = set()
        # By content: the last count that was written.
        self._counts: dict[str, int] = {}
        # The numbers of the last creation of a workspace, and of that before the last destruction.
        self._creation = 0
        self._destroyed: int | None = None
        self._numbered: bool | None = None
        self._ended = False

    def take(self, record: Record) -> None:
        envelope, event = record
        if not self._counts and not isinstance(event, events.Armed):
            self.doubts.append("it does not begin with an armed line")
        if self._ended:
            self.doubts.append("it has lines after its end")
        self._count(envelope, event)
        if isinstance(event, events.Armed):
            self._armed(event)
        elif isinstance(event, events.ConfigSeen):
            self._config(event)
        elif isinstance(event, events.Resolved):
            self._resolved(event)
        elif isinstance(event, events.Workspace):
            self._workspace(envelope, event)
        elif isinstance(event, events.End):
            self._ended = True
            if event.dropped:
                self.doubts.append(
                    f"the guard left out {event.dropped} records of misses and errors: it writes "
                    "only so many"
                )

    def take_misses(self, misses: list[events.ContextMiss]) -> None:
        for origin in sorted({miss.origin for miss in misses}):
            self._known(origin=origin)
        traced = [miss for miss in misses if miss.origin == "trace"]
        if any(miss.vllm_alone or miss.used or miss.target for miss in traced):
            self.doubts.append("a call site that was only traced has a backend")
        answered = [miss for miss in misses if miss.origin != "trace"]
        said = {miss.used or NONE for miss in answered}
        said |= {miss.target or NONE for miss in answered if miss.target != miss.used}
        # No target: an older guard's.
        said -= {NONE} if all(miss.used for miss in answered) else set()
        for used in sorted(said - ({TRTLLM, NONE} & self._used)):
            self.doubts.append(
                f"a config-context miss was answered with {used}, as no decision says"
                if used in (TRTLLM, NONE)
                else f"a config-context miss was answered with {used}"
            )

    def _known(self, **values: str | None) -> None:
        for name, value in values.items():
            if value not in KNOWN[name]:
                self.doubts.append(f"a line whose {name} this version does not know")

    def _count(self, envelope: events.Envelope, event: events.Event) -> None:
        """Each content is written first with a count of 1, then at powers of ten and at exit."""
        content, count = repr(event), envelope.count
        before = self._counts.get(content, 0)
        again = envelope.at_exit and count == before > 1
        if (count == 1) != (before == 0) or (count <= before and not again):
            self.doubts.append("a line's count does not follow that of the line before it")
        elif envelope.at_exit and count == 1 and not isinstance(event, events.End):
            self.doubts.append("a line at exit has a content that was not there before")
        elif not envelope.at_exit and str(count).rstrip("0") != "1":
            self.doubts.append("a line's count is no power of ten, and it is not one at exit")
        self._counts[content] = count

    def _in_mode(self, mode: Any) -> None:
        """The settings are read once, so a process has one mode."""
        mode = str(mode)
        self._known(mode=mode)
        if self._mode not in (None, mode):
            self.doubts.append("its lines name several modes")
        self._mode = mode

    def _saw(self, hisparse: bool) -> None:
        """HiSparse is sticky: what a process has seen is not unseen later."""
        if self._hisparse and not hisparse:
            self.doubts.append("a line says that HiSparse was not seen, after it was")
        self._hisparse = self._hisparse or hisparse

    def _config(self, event: events.ConfigSeen) -> None:
        self._hisparse = self._hisparse or event.hisparse
        self._known(source=event.source)
        if event.hisparse == (event.source is None):
            self.doubts.append("a config's HiSparse and what shows it contradict each other")
        if any(size is not None and size < 1 for size in _sizes(event)):
            self.doubts.append("a config with a parallel size below 1")

    def _armed(self, event: events.Armed) -> None:
        if self._settings is not None:
            self.doubts.append("it was armed twice")
        self._settings, self._environment = event.settings, event.environment
        self._known(how=event.how)
        self._in_mode(event.settings.get("mode"))
        for name in ("backend", "multinode"):
            self._known(**{name: str(event.settings.get(name))})

    def _resolved(self, event: events.Resolved) -> None:
        self._saw(event.hisparse)
        self._in_mode(event.mode)
        if self._address is not None and event.rendezvous not in (None, self._address):
            self.doubts.append("its decisions name several addresses at which its ranks met")
        self._address = event.rendezvous or self._address
        if (self._environment.get(ENV_BACKEND) or event.env_backend) != event.env_backend:
            self.doubts.append(f"its lines name several values of {ENV_BACKEND}")
        if event.conflict:
            self.doubts.append("a fresh decision differs from what was pinned before")
        self._known(rule=event.rule, pin=event.pinned)
        parsed = parse_answer(event.answer)
        if parsed is None:
            self.doubts.append("a resolver answer of a shape that this version does not know")
            return
        self._used.add(parsed[0])
        if event.used not in (None, parsed[0]):
            self.doubts.append(f"a decision says {event.used} and its answer {parsed[0]}")
        elif not any(_agrees(event, made) for made in self._possible(event)):
            self.doubts.append(
                f"a decision (rule {event.rule}) that the guard does not come to from what its "
                "line says it was made from"
            )

    def _possible(self, event: events.Resolved) -> Iterable[Decision]:
        """What the guard decides from the facts of a line, for each pin that it may have had."""
        given = self._settings or {}
        settings = Settings(event.mode, str(given.get("backend")), str(given.get("multinode")))
        inputs = (event.vllm_answer, event.hisparse, event.config_current, event.env_backend)
        # Nothing is pinned before HiSparse is seen, and that is never unseen.
        pins = (None, TRTLLM, NONE) if event.hisparse else (None,)
        return [decide(*inputs, settings, pin) for pin in pins]

    def _workspace(self, envelope: events.Envelope, event: events.Workspace) -> None:
        self._saw(event.hisparse)
        if event.mode is not None:
            self._in_mode(event.mode)
        if event.state in ("made", "verified"):
            if event.error or event.serves:
                self.doubts.append(f"a workspace was {event.state}, and a reason why not is given")
            if event.state == "verified" and event.kind is None:
                self.doubts.append("a workspace was verified, and which getter gave it out is not")
            if event.backend is None:
                self.doubts.append(f"a workspace was {event.state} and its backend is not known")
        # Guard 0.1.0 numbers none of them.
        numbered = event.creation is not None
        if self._numbered not in (None, numbered):
            self.doubts.append("some of its workspaces are numbered and others are not")
        self._numbered = numbered
        # A line at exit brings an earlier one's count up to date.
        if event.creation is not None and not envelope.at_exit:
            self._numbered_workspace(event, event.creation, envelope.count == 1)

    def _numbered_workspace(self, event: events.Workspace, number: int, first: bool) -> None:
        """Each creation has its number and its line, and what was destroyed is not given out."""
        created = first and event.kind is None and event.state in ("made", "failed")
        if number != self._creation + created:
            self.doubts.append("a creation of a workspace has no line, or not the next number")
        elif number == self._destroyed and event.state in ("made", "verified"):
            self.doubts.append("a workspace was given out after it was destroyed")
        self._creation = number
        if event.state == "destroyed":
            self._destroyed = number


def _agrees(event: events.Resolved, made: Decision) -> bool:
    """Whether a line says what the guard decides; guard 0.1.0 said less of it."""
    if (event.rule, event.answer) != (made.rule, made.answer):
        return False
    said = (event.upstream, event.target, event.used)
    if said == (None, None, None):
        # It also kept an earlier pin where vLLM answered that there is no backend.
        return event.pinned == made.pinned or event.rule == "no-backend"
    return (*said, event.pinned) == (made.upstream, made.target, made.used, made.pinned)


def _sizes(event: events.ConfigSeen) -> tuple[int | None, int | None]:
    return event.tensor_parallel_size, event.data_parallel_size
