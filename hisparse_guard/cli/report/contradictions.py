"""What no guard writes in the lines of one process, and lines of it that contradict each other.

The lines are gone through as the guard went: its settings, what it had seen and what it had pinned
by then, and its own table (`runtime.decision.decide`) tell what it can have written next.

Each thing found is a doubt, which caps the verdict at `unproven`.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Sequence
from typing import Any

from hisparse_guard.cli.report.decoding import PRESENT, Miss, backend_of
from hisparse_guard.cli.report.reader import MissLine, ProcessRecords, Record
from hisparse_guard.runtime.decision import MNNVL, NONE, TRTLLM, Decision, Rule, decide
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


def contradictions(found: ProcessRecords, misses: Sequence[Miss]) -> list[str]:
    """Why the lines of one process cannot be taken as they are, each reason once.

    Args:
        misses: all, to which its own lines point.
    """
    lines = _Lines()
    all_lines: list[Record | MissLine] = [*found.records, *found.miss_lines]
    for line in sorted(all_lines, key=_seq):
        if isinstance(line, MissLine):
            lines.take(misses[line.number].event, line.number, line.times, line.at_exit)
        else:
            envelope, event = line
            lines.take(event, repr(event), envelope.count, envelope.at_exit)
    lines.finish()
    return list(dict.fromkeys(lines.doubts))


def _seq(line: Record | MissLine) -> int:
    return line.seq if isinstance(line, MissLine) else line.envelope.seq


class _Lines:
    """What the lines so far say, and what is wrong with them."""

    def __init__(self) -> None:
        self.doubts: list[str] = []
        self._armed: events.Armed | None = None
        self._mode: str | None = None
        self._hisparse = False
        self._address: str | None = None
        # Of the decisions: what they pinned, asked for, and by which variable; and those without a
        # config, as the misses name them.
        self._pins: set[str | None] = {None}
        self._targets: set[str | None] = set()
        self._chosen: set[str] = set()
        self._without_config: set[tuple[str, ...]] = set()
        self._asked = False
        self._last: events.Event | None = None
        # By content: the last count that was written.
        self._counts: dict[str | int, int] = {}
        # The numbers of the last creation of a workspace, and of that before the last destruction.
        self._creation = 0
        self._destroyed: int | None = None

    def take(self, event: events.Event, content: str | int, count: int, at_exit: bool) -> None:
        """One line; `content` is what its count is of."""
        if self._last is None and not isinstance(event, events.Armed):
            self.doubts.append("it does not begin with an armed line")
        if isinstance(self._last, events.End):
            self.doubts.append("it has lines after its end")
        self._last = event
        self._count(event, content, count, at_exit)
        if isinstance(event, events.End):
            self._end(event)
        elif at_exit:
            # It brings a count up to date: what it says was looked at when it was written first.
            return
        elif isinstance(event, events.Armed):
            self._begins(event)
        elif isinstance(event, events.ConfigSeen):
            self._config(event)
        elif isinstance(event, events.Resolved):
            self._resolved(event)
        elif isinstance(event, events.ContextMiss):
            self._miss(event)
        elif isinstance(event, events.Workspace):
            self._workspace(event, count == 1)

    def finish(self) -> None:
        # The line of who asked is the next one: it may not be written yet.
        if self._without_config and not self._asked and not isinstance(self._last, events.Resolved):
            self.doubts.append("a decision was asked for without a config, and no line says where")

    @property
    def _first_guard(self) -> bool:
        """Whether guard 0.1 wrote this, which numbers no workspace and says less of a decision."""
        return self._armed is not None and self._armed.guard_version.startswith("0.1.")

    def _known(self, **values: str | None) -> None:
        for name, value in values.items():
            if value not in KNOWN[name]:
                self.doubts.append(f"a line whose {name} this version does not know")

    def _count(self, event: events.Event, content: str | int, count: int, at_exit: bool) -> None:
        """Each content is written first with a count of 1, then at powers of ten and at exit."""
        before = self._counts.get(content, 0)
        again = at_exit and count == before > 1
        if (count == 1) != (before == 0) or (count <= before and not again):
            self.doubts.append("a line's count does not follow that of the line before it")
        elif at_exit and count == 1 and not isinstance(event, events.End):
            self.doubts.append("a line at exit has a content that was not there before")
        elif not at_exit and str(count).rstrip("0") != "1":
            self.doubts.append("a line's count is no power of ten, and it is not one at exit")
        self._counts[content] = count

    def _end(self, event: events.End) -> None:
        if event.dropped:
            self.doubts.append(
                f"the guard left out {event.dropped} records of misses and errors: it writes "
                "only so many"
            )

    def _in_mode(self, mode: Any) -> None:
        """The settings are read once, so a process has one mode."""
        mode = str(mode)
        self._known(mode=mode)
        if self._mode not in (None, mode):
            self.doubts.append("its lines name several modes")
        self._mode = mode

    def _saw(self, hisparse: bool) -> None:
        """Configs show HiSparse, and have their lines first; what was seen is not unseen later."""
        if hisparse != self._hisparse:
            what = "seen, and no config before it has it" if hisparse else "not seen, after it was"
            self.doubts.append(f"a line says that HiSparse was {what}")

    def _config(self, event: events.ConfigSeen) -> None:
        self._hisparse = self._hisparse or event.hisparse
        self._known(source=event.source)
        if event.hisparse == (event.source is None):
            self.doubts.append("a config's HiSparse and what shows it contradict each other")
        if any(size is not None and size < 1 for size in _sizes(event)):
            self.doubts.append("a config with a parallel size below 1")

    def _begins(self, event: events.Armed) -> None:
        if self._armed is not None:
            self.doubts.append("it was armed twice")
        self._armed = event
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
        environment = self._armed.environment if self._armed is not None else {}
        self._chosen.add(event.env_backend)
        if len(self._chosen | {environment.get(ENV_BACKEND) or event.env_backend}) > 1:
            self.doubts.append(f"its lines name several values of {ENV_BACKEND}")
        if event.conflict:
            self.doubts.append("a fresh decision differs from what was pinned before")
        self._known(rule=event.rule, pin=event.pinned)
        upstream, used = backend_of(event.vllm_answer), backend_of(event.answer)
        if used is None:
            self.doubts.append("a resolver answer of a shape that this version does not know")
        elif event.used not in (None, used):
            self.doubts.append(f"a decision says {event.used} and its answer {used}")
        elif not any(_agrees(event, made, self._first_guard) for made in self._possible(event)):
            self.doubts.append(
                f"a decision (rule {event.rule}) that the guard does not come to from what its "
                "line says it was made from"
            )
        self._pins.add(event.pinned)
        self._targets.add(event.target or used)
        if event.hisparse and not event.config_current:
            self._without_config.add(_answer(upstream, used, event.target))

    def _possible(self, event: events.Resolved) -> Iterable[Decision]:
        """What the guard decides from the facts of a line, for each pin that it may have had."""
        given = self._armed.settings if self._armed is not None else {}
        settings = Settings(event.mode, str(given.get("backend")), str(given.get("multinode")))
        inputs = (event.vllm_answer, event.hisparse, event.config_current, event.env_backend)
        # Nothing is pinned before HiSparse is seen, and that is never unseen.
        pins: set[str | None] = self._pins if event.hisparse else {None}
        return [decide(*inputs, settings, pin) for pin in pins]

    def _miss(self, event: events.ContextMiss) -> None:
        """One that the resolver records is a decision too, whose line comes before."""
        self._known(origin=event.origin)
        if event.origin == "trace":
            if event.vllm_alone or event.used or event.target:
                self.doubts.append("a call site that was only traced has a backend")
            return
        self._asked = True
        if _answer(event.vllm_alone, event.used, event.target) not in self._without_config:
            self.doubts.append(
                f"a config-context miss was answered with {event.used or NONE} (vLLM alone: "
                f"{event.vllm_alone or NONE}), as no decision says"
            )

    def _workspace(self, event: events.Workspace, first: bool) -> None:
        self._saw(event.hisparse)
        self._expects(event)
        if event.mode is not None:
            self._in_mode(event.mode)
        if event.state != "failed" and (event.error or event.serves):
            self.doubts.append(f"a workspace was {event.state}, and a reason why not is given")
        if event.state in PRESENT:
            if event.state == "verified" and event.kind is None:
                self.doubts.append("a workspace was verified, and which getter gave it out is not")
            as_expected = event.backend == event.expected != MNNVL
            if event.kind is not None and as_expected != (event.state == "verified"):
                self.doubts.append("a getter's workspace: its state does not fit its backend")
            if event.backend is None:
                self.doubts.append(f"a workspace was {event.state} and its backend is not known")
        # Every release gives the group to the getters and to what makes a workspace.
        if event.state != "destroyed" and None in (event.group_rank, event.group_size):
            self.doubts.append("a workspace whose process group is not named")
        if (event.creation is None) != self._first_guard:
            self.doubts.append("its version of the guard numbers workspaces in another way")
        if event.creation is not None:
            self._numbered_workspace(event, event.creation, first)

    def _expects(self, event: events.Workspace) -> None:
        """What the guard expects is what it decided, or would decide for a group without one."""
        others = {TRTLLM if chosen == "auto" else chosen for chosen in self._chosen}
        expected = (*self._targets, *(others if event.hisparse else (None,)))
        if self._targets and event.expected not in expected:
            self.doubts.append(
                f"a workspace of backend {event.expected} was expected, as no decision says"
            )
        if event.kind is not None and not event.hisparse:
            self.doubts.append("a getter's workspace was recorded without HiSparse being seen")
        # Before the guard was there (an entry point is late), the resolver may have been asked.
        late = self._armed is None or self._armed.how == "entry point" or event.creation == 0
        if event.kind == "primary" and not self._targets and not late:
            self.doubts.append("a getter gave out a workspace, and no decision is here")

    def _numbered_workspace(self, event: events.Workspace, number: int, first: bool) -> None:
        """Each creation has its number and its line, and what was destroyed is not given out."""
        created = first and event.kind is None and event.state in ("made", "failed")
        if number != self._creation + created:
            self.doubts.append("a creation of a workspace has no line, or not the next number")
        elif number == self._destroyed and event.state in PRESENT:
            self.doubts.append("a workspace was given out after it was destroyed")
        self._creation = number
        if event.state == "destroyed":
            self._destroyed = number


def _answer(upstream: str | None, used: str | None, target: str | None) -> tuple[str, ...]:
    """How decisions and misses are compared; guard 0.1.0 wrote no target."""
    return (upstream or NONE, used or NONE, target or used or NONE)


def _agrees(event: events.Resolved, made: Decision, first_guard: bool) -> bool:
    """Whether a line says what the guard decides; guard 0.1.0 said less of it."""
    names = set(Decision._fields)
    if first_guard and (event.upstream, event.target, event.used) == (None, None, None):
        names -= {"upstream", "target", "used", "conflict"}
        # It also kept an earlier pin where vLLM answered that there is no backend.
        names -= {"pinned"} if event.rule == "no-backend" else set()
    return all(getattr(event, name) == getattr(made, name) for name in names)


def _sizes(event: events.ConfigSeen) -> tuple[int | None, int | None]:
    return event.tensor_parallel_size, event.data_parallel_size
