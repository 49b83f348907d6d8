"""One worker process: its records, put together to what the verdict and the pages need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hisparse_guard.cli.report.contradictions import contradictions
from hisparse_guard.cli.report.decoding import PRESENT, Miss, backend_of, parse_time
from hisparse_guard.cli.report.reader import ProcessRecords
from hisparse_guard.runtime import decision
from hisparse_guard.runtime.telemetry import events

TRTLLM = decision.TRTLLM
NONE = decision.NONE


def moment(stamp: str | None) -> float | None:
    """An evidence time as seconds since the epoch, or None."""
    try:
        return parse_time(stamp) if stamp else None
    except ValueError:
        return None


class Group(NamedTuple):
    """A process group as one of its ranks names it; None for what is not known."""

    name: str | None
    size: int | None
    rank: int | None

    def may_be(self, other: Group) -> bool:
        return all(a is None or b is None or a == b for a, b in zip(self, other, strict=True))

    def joined(self, other: Group) -> Group:
        known = {field: value for field, value in other._asdict().items() if value is not None}
        return self._replace(**known)


class Moment(NamedTuple):
    """One entry of the timeline."""

    ts: str
    event: str
    what: str


@dataclass(slots=True)
class Standing:
    """What serves one process group in one process.

    Attributes:
        used: the backends of all decisions, in order, each once; None for one that is not known.
        state: of the workspace: ``made``, ``verified``, ``failed``, ``destroyed``, or None.
        backend, expected: of the workspace that was made last.
        unexpected: a workspace came that was not the one expected, now or before.
        primary_failed: the getter for the primary one got none; another kind's does not mend that.
        failure: why a workspace failed, the last one that did, or None.
        fallback: what serves instead of that one, or None.
    """

    used: list[str | None] = field(default_factory=list)
    state: str | None = None
    backend: str | None = None
    expected: str | None = None
    unexpected: bool = False
    primary_failed: bool = False
    failure: str | None = None
    fallback: str | None = None

    @property
    def present(self) -> bool:
        """Whether there is a workspace."""
        return self.state in PRESENT


@dataclass(slots=True)
class Process:
    """The evidence of one process.

    Attributes:
        hisparse: True: seen; False: every config that was seen had it off; None: not known.
        doubts: why its evidence may not be all, or not right; each caps the verdict.
        hisparse_instances: those of its configs that had HiSparse on.
        clock_set_back: a line is older than one before it; its times tell no runs apart.
        largest_config: the most ranks that one of its configs is for: tensor times data parallel.
        asked: the resolver asked for the config where there was none.
        ended: it wrote its `end` line.
    """

    host: str
    pid: int
    start: str
    files: list[str]
    lines: int
    lost: int
    first_ts: str
    last_ts: str
    rank: int | None = None
    world_size: int | None = None
    misses: dict[int, int] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)

    armed: events.Armed | None = None
    mode: str | None = None
    hisparse: bool | None = None
    model: str | None = None
    instances: list[str] = field(default_factory=list)
    hisparse_instances: set[str] = field(default_factory=set)
    tensor_parallel_sizes: set[int | None] = field(default_factory=set)
    data_parallel_sizes: set[int | None] = field(default_factory=set)
    largest_config: int = 1

    rendezvous: str | None = None
    rule: str | None = None
    pinned: str | None = None
    # The first sign that the ranks of its world have met.
    first_met: str | None = None
    # Backends that vLLM alone would have used, in order, each once.
    upstream: list[str] = field(default_factory=list)
    groups: dict[Group, Standing] = field(default_factory=dict)
    # Backends of every workspace that came into being, in order, each once.
    backends: list[str] = field(default_factory=list)
    quant_failed: bool = False
    errors: list[str] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    asked: bool = False
    ended: bool = False
    clock_set_back: bool = False

    @property
    def is_worker(self) -> bool:
        """Whether it has a rank, a process group or a workspace."""
        return self.rank is not None or bool(self.groups) or bool(self.backends)

    @property
    def forked(self) -> bool:
        return self.armed is not None and self.armed.how == "fork"

    @property
    def miss_count(self) -> int:
        return sum(self.misses.values())

    @property
    def ppid(self) -> int | None:
        return self.armed.ppid if self.armed else None

    @property
    def environment(self) -> dict[str, str]:
        found = self.armed.environment if self.armed else {}
        return {name: value for name, value in found.items() if value is not None}

    def standing(self, group: Group) -> Standing:
        """The standing of a group; two lines may name it more and less fully."""
        if group in self.groups:
            return self.groups[group]
        alike = [known for known in self.groups if known.may_be(group)]
        if len(alike) != 1:
            return self.groups.setdefault(group, Standing())
        standing = self.groups.pop(alike[0])
        self.groups[alike[0].joined(group)] = standing
        return standing


def process_of(found: ProcessRecords, misses: list[Miss]) -> Process:
    """A process from its records, in the order in which it wrote them."""
    process = Process(
        host=found.host,
        pid=found.pid,
        start=found.start,
        files=found.files,
        lines=found.lines,
        lost=found.lost,
        first_ts=found.first_ts,
        last_ts=found.last_ts,
        rank=min(found.ranks, default=None),
        world_size=max(found.world_sizes, default=None),
        misses=found.misses,
        doubts=list(found.problems),
    )
    for envelope, event in found.records:
        _TAKE[type(event)](process, envelope, event)
    # Whatever comes after an end was not written by a process that had ended.
    last = found.records[-1] if found.records else None
    process.ended = (
        last is not None and type(last.event) is events.End and last.envelope.seq == found.last_seq
    )
    if process.hisparse is None and process.tensor_parallel_sizes and _is_whole(process):
        process.hisparse = False
    seen = [misses[number].event for number in found.misses]
    process.asked = any(miss.origin != "trace" for miss in seen)
    process.doubts += contradictions(found, misses)
    times = [found.start, *(envelope.ts for envelope, _ in found.records)]
    process.clock_set_back = times != sorted(times) or found.first_ts < found.start
    if process.clock_set_back:
        process.doubts.append("its clock was set back, so its times do not tell which run it is of")
    # The guard counts all that is distinct, and drops misses and errors only.
    if not process.ended and len(found.misses) + len(found.records) >= events.MOST_DISTINCT:
        process.doubts.append(
            f"{events.MOST_DISTINCT} distinct records: the guard may have left out others"
        )
    return process


def _is_whole(process: Process) -> bool:
    """Whether the configs that are here were all that it had seen by its first decision, or end.

    Without tracing, nothing is written before a decision or a config with HiSparse: where there
    are only configs without it, the line of that one is not here.
    """
    traced = process.armed is not None and process.armed.settings.get("trace_context") is True
    return process.rule is not None or (process.ended and traced)


def _take_mode(process: Process, mode: Any) -> None:
    # `off` takes every patch off: what is made later has no line.
    process.mode = "off" if "off" in (mode, process.mode) else str(mode)


def _note(process: Process, envelope: events.Envelope, what: str) -> None:
    process.moments.append(Moment(envelope.ts, envelope.event, what))


def _armed(process: Process, envelope: events.Envelope, event: events.Armed) -> None:
    process.armed = event
    _take_mode(process, event.settings.get("mode"))
    _note(
        process,
        envelope,
        f"armed by {event.how}: guard {event.guard_version}, vLLM {event.vllm_version or '?'} "
        f"({event.build_class or 'build not classified'}), "
        f"FlashInfer {event.flashinfer_version or '?'} "
        f"(kernel {event.kernel_class or 'not classified'}), mode {process.mode or '?'}",
    )


def _config_seen(process: Process, envelope: events.Envelope, event: events.ConfigSeen) -> None:
    # A draft model's config may come later, and without HiSparse: it does not rename the server.
    if event.model and (process.model is None or (event.hisparse and not process.hisparse)):
        process.model = event.model
    if event.instance_id and event.instance_id not in process.instances:
        process.instances.append(event.instance_id)
    if event.instance_id and event.hisparse:
        process.hisparse_instances.add(event.instance_id)
    process.tensor_parallel_sizes.add(event.tensor_parallel_size)
    process.data_parallel_sizes.add(event.data_parallel_size)
    ranks = (event.tensor_parallel_size or 1) * (event.data_parallel_size or 1)
    process.largest_config = max(process.largest_config, ranks)
    process.hisparse = process.hisparse or event.hisparse or None
    what = "with HiSparse" if event.hisparse else "without HiSparse"
    if event.source:
        what += f" (from {event.source})"
    _note(process, envelope, f"config {what}: {event.model or 'model unknown'}")


def _resolved(process: Process, envelope: events.Envelope, event: events.Resolved) -> None:
    process.hisparse = process.hisparse or event.hisparse or None
    process.first_met = process.first_met or envelope.ts
    process.rule = event.rule
    _take_mode(process, event.mode)
    process.pinned = event.pinned or process.pinned
    process.rendezvous = event.rendezvous or process.rendezvous
    used = backend_of(event.answer)
    if event.used not in (None, used):
        used = None
    standing = process.standing(Group(event.group, event.group_size, event.group_rank))
    if used not in standing.used:
        standing.used.append(used)
    upstream = event.upstream or backend_of(event.vllm_answer) or "unknown"
    if upstream not in process.upstream:
        process.upstream.append(upstream)
    current = "config current" if event.config_current else "config not current"
    times = f", {envelope.count} times" if envelope.count > 1 else ""
    _note(
        process,
        envelope,
        f"backend {used or 'unknown'}, vLLM alone {upstream} ({current}; rule {event.rule}{times})",
    )


def _workspace(process: Process, envelope: events.Envelope, event: events.Workspace) -> None:
    process.hisparse = process.hisparse or event.hisparse or None
    name = f"{event.kind} workspace" if event.kind else "workspace"
    what = f"{name} {event.state}: backend {event.backend or event.expected or 'unknown'}"
    if event.error:
        what += f": {event.error}"
    if event.serves:
        what += f"; {event.serves} serves instead"
    _note(process, envelope, what)
    if event.mode is not None:
        _take_mode(process, event.mode)
    # A line that says it was destroyed says that it was there.
    if event.backend is not None and event.state != "failed":
        process.backends += [event.backend] if event.backend not in process.backends else []
    if event.state == "destroyed":
        for standing in process.groups.values():
            # Where a creation had failed there was nothing to destroy: it stays failed.
            if standing.present:
                standing.state = "destroyed"
        return
    process.first_met = process.first_met or envelope.ts
    standing = process.standing(Group(event.group, event.group_size, event.group_rank))
    if event.state == "failed":
        _workspace_failed(process, standing, event)
        return
    standing.unexpected = standing.unexpected or event.backend != event.expected
    # A line at exit brings the count up to date: it does not say that this came after a failure.
    if envelope.at_exit and standing.state is not None:
        return
    if event.kind == "primary" or not standing.primary_failed:
        standing.primary_failed = False
        standing.state, standing.backend = event.state, event.backend
        standing.expected = event.expected
        process.quant_failed = process.quant_failed and event.kind != "quant"


def _workspace_failed(process: Process, standing: Standing, event: events.Workspace) -> None:
    standing.failure = event.error or standing.failure
    standing.fallback = event.serves or standing.fallback
    # A quant workspace that fails leaves the primary one in place.
    if event.kind == "quant" and standing.present:
        process.quant_failed = True
    else:
        standing.state = "failed"
        standing.primary_failed = standing.primary_failed or event.kind == "primary"


def _error(process: Process, envelope: events.Envelope, event: events.Error) -> None:
    message = event.message + (f" ({event.detail})" if event.detail else "")
    if message not in process.errors:
        process.errors.append(message)
    _note(process, envelope, message)


def _end(process: Process, envelope: events.Envelope, event: events.End) -> None:
    _note(process, envelope, "ended")


_TAKE: dict[type[Any], Any] = {
    events.Armed: _armed,
    events.ConfigSeen: _config_seen,
    events.Resolved: _resolved,
    events.Workspace: _workspace,
    events.Error: _error,
    events.End: _end,
}
