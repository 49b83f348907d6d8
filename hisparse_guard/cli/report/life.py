"""What the evidence of one process life says, reduced line by line.

A life is one (host, pid, start): pids are used again, and a container's first process has the
same pid after every restart. Nothing here trusts the input: a field of the wrong type counts as
absent, text is cut and made printable, and what is kept is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, NamedTuple

SCHEMA = 1
EVENTS = frozenset({"armed", "config_seen", "resolved", "context_miss", "workspace", "error"})

LONGEST_TEXT = 2000
MOST_MOMENTS = 200
MOST_STACK = 200


def text(value: object) -> str | None:
    """A string from evidence as it may be shown: printable, at most `LONGEST_TEXT` long."""
    if not isinstance(value, str) or not value:
        return None
    if len(value) > LONGEST_TEXT:
        value = value[:LONGEST_TEXT] + "…"
    if value.isprintable():
        return value
    # Control sequences would reach a terminal, and lone surrogates cannot be encoded at all.
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode()
        for c in value
    )


def whole(value: object) -> int | None:
    """A whole number from evidence, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def seconds(value: object) -> float | None:
    """A finite number of seconds from evidence, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) < 1e15 else None  # also drops NaN and infinities


def moment(stamp: str | None) -> float | None:
    """An RFC 3339 time as seconds since the epoch, or None."""
    if not stamp:
        return None
    try:
        parsed = datetime.fromisoformat(stamp.replace("Z", "+00:00").replace("z", "+00:00"))
    except ValueError:
        return None
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=timezone.utc)
    return parsed.timestamp()


def backend_of(answer: object) -> str | None:
    """The backend in a resolver's answer, which is a string, null, or a list that begins with it.

    Both shapes exist: vLLM up to 0.24 answers with a bare string, later ones with a pair.
    """
    if isinstance(answer, list):
        answer = answer[0] if answer else None
    return text(answer)


class Place(NamedTuple):
    """A line of code, as evidence names it."""

    file: str
    line: int | None
    function: str | None

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{where} in {self.function}" if self.function else where

    def to_json(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line, "function": self.function}


def place(value: object) -> Place | None:
    if not isinstance(value, Mapping):
        return None
    return Place(
        text(value.get("file")) or "?", whole(value.get("line")), text(value.get("function"))
    )


@dataclass(slots=True)
class Site:
    """A call site that asked for the current config and got none."""

    origin: str
    where: Place
    stack: tuple[Place, ...]
    left_at: Place | None
    left_s: float | None
    vllm_alone: str | None
    used: str | None
    first: str | None = None

    @property
    def key(self) -> tuple[object, ...]:
        return (self.origin, self.where, self.stack, self.vllm_alone, self.used)

    def to_json(self) -> dict[str, Any]:
        return {
            "origin": self.origin,
            "where": self.where.to_json(),
            "stack": [frame.to_json() for frame in self.stack],
            "left_at": self.left_at.to_json() if self.left_at else None,
            "left_s": self.left_s,
            "vllm_alone": self.vllm_alone,
            "used": self.used,
            "first": self.first,
        }

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Site:
        stack = line.get("stack")
        frames = [place(f) for f in stack[-MOST_STACK:]] if isinstance(stack, list) else []
        return cls(
            origin=text(line.get("origin")) or "resolver",
            where=place(line.get("where")) or Place("?", None, None),
            stack=tuple(f for f in frames if f is not None),
            left_at=place(line.get("left_at")),
            left_s=seconds(line.get("left_s")),
            vllm_alone=text(line.get("vllm_alone")),
            used=text(line.get("used")),
            first=text(line.get("ts")),
        )


class Moment(NamedTuple):
    """One entry of the timeline."""

    ts: str | None
    event: str
    what: str


@dataclass(slots=True)
class Life:
    """The evidence of one process, reduced to what verdict and pages need."""

    host: str
    pid: int | None
    start: str | None
    file: str
    lines: int = 0
    last_seq: int = 0
    first_ts: str | None = None
    last_ts: str | None = None
    rank: int | None = None
    world_size: int | None = None

    guard_version: str | None = None
    vllm_version: str | None = None
    flashinfer_version: str | None = None
    python: str | None = None
    build_class: str | None = None
    how: str | None = None
    ppid: int | None = None
    argv0: str | None = None
    mode: str | None = None
    target: str | None = None
    environment: dict[str, str] = field(default_factory=dict)

    hisparse: bool = False
    hisparse_source: str | None = None
    model: str | None = None
    instances: list[str] = field(default_factory=list)
    tensor_parallel_size: int | None = None

    resolved: bool = False
    first_resolved: str | None = None
    rendezvous: str | None = None
    group_rank: int | None = None
    group_size: int | None = None
    rule: str | None = None
    pinned: str | None = None
    answer: str | None = None
    # Every backend that was answered, and that vLLM alone chose, in order, each once.
    answers: list[str] = field(default_factory=list)
    alone: list[str] = field(default_factory=list)

    # Backends of every workspace that came into being, in order, each once.
    workspaces: list[str] = field(default_factory=list)
    workspace: str | None = None
    verified: list[str] = field(default_factory=list)
    workspace_failed: bool = False
    failure: str | None = None
    serves: str | None = None
    mismatch: str | None = None

    # Site number in the reading's table -> how often; `misses_uncounted` are of sites beyond it.
    sites: dict[int, int] = field(default_factory=dict)
    misses_uncounted: int = 0
    errors: list[str] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    moments_dropped: int = 0
    # The file ends within a line, or in NUL bytes: this process wrote more than is here.
    torn: bool = False

    @property
    def key(self) -> tuple[str, int | None, str | None]:
        return (self.host, self.pid, self.start)

    @property
    def lost(self) -> int:
        """Lines this life numbered but that are not there."""
        return max(0, self.last_seq - self.lines)

    @property
    def cut_short(self) -> bool:
        """Whether it may have seen HiSparse, or decided, in lines that are not there."""
        several = (self.world_size or self.tensor_parallel_size) != 1
        return several and (self.torn or self.lost > 0) and not (self.hisparse or self.resolved)

    @property
    def misses(self) -> int:
        return sum(self.sites.values()) + self.misses_uncounted

    def envelope(self, ts: str | None, seq: int | None) -> None:
        """Counts one line; `context_miss` lines reach it without being parsed whole."""
        self.lines += 1
        if seq is not None and seq > self.last_seq:
            self.last_seq = seq
        if self.first_ts is None:
            self.first_ts = ts
        self.last_ts = ts or self.last_ts

    def note(self, ts: str | None, event: str, what: str) -> None:
        if len(self.moments) < MOST_MOMENTS:
            self.moments.append(Moment(ts, event, what))
        else:
            self.moments_dropped += 1

    def feed(self, line: Mapping[str, Any]) -> None:
        """Takes in one line of this life, of any event but `context_miss`.

        Args:
            line: a parsed evidence line.
        """
        ts = text(line.get("ts"))
        self.envelope(ts, whole(line.get("seq")))
        self.rank = _latest(whole(line.get("rank")), self.rank)
        self.world_size = _latest(whole(line.get("world_size")), self.world_size)
        event = line.get("event")
        if event == "armed":
            self._armed(ts, line)
        elif event == "config_seen":
            self._config_seen(ts, line)
        elif event == "resolved":
            self._resolved(ts, line)
        elif event == "workspace":
            self._workspace(ts, line)
        elif event == "error":
            message = text(line.get("message")) or "an error without a message"
            detail = text(line.get("detail"))
            if detail:
                message += f" ({detail})"
            if message not in self.errors and len(self.errors) < MOST_MOMENTS:
                self.errors.append(message)
            self.note(ts, "error", message)

    def _armed(self, ts: str | None, line: Mapping[str, Any]) -> None:
        self.guard_version = text(line.get("guard_version"))
        self.vllm_version = text(line.get("vllm_version"))
        self.flashinfer_version = text(line.get("flashinfer_version"))
        self.python = text(line.get("python"))
        self.build_class = text(line.get("build_class")) or self.build_class
        self.how = text(line.get("how"))
        self.ppid = whole(line.get("ppid"))
        self.argv0 = text(line.get("argv0"))
        settings = line.get("settings")
        if isinstance(settings, Mapping):
            self.mode = _latest(text(settings.get("mode")), self.mode)
            self.target = text(settings.get("backend"))
        environment = line.get("environment")
        if isinstance(environment, Mapping):
            self.environment = {
                text(k) or "?": text(v) or "" for k, v in environment.items() if v is not None
            }
        self.note(
            ts,
            "armed",
            f"armed by {self.how or 'an unknown way'}: guard {self.guard_version or '?'}, "
            f"vLLM {self.vllm_version or '?'} ({self.build_class or 'build not classified'}), "
            f"FlashInfer {self.flashinfer_version or '?'}, mode {self.mode or '?'}",
        )

    def _config_seen(self, ts: str | None, line: Mapping[str, Any]) -> None:
        hisparse = line.get("hisparse") is True
        model = text(line.get("model"))
        # A draft model's config may come later, and without HiSparse: it does not rename the
        # server.
        if model and (self.model is None or (hisparse and not self.hisparse)):
            self.model = model
        instance = text(line.get("instance_id"))
        if instance and instance not in self.instances and len(self.instances) < 20:
            self.instances.append(instance)
        size = whole(line.get("tensor_parallel_size"))
        if size is not None:
            self.tensor_parallel_size = max(size, self.tensor_parallel_size or 0)
        if hisparse:
            self.hisparse = True
            self.hisparse_source = self.hisparse_source or text(line.get("source"))
        what = "with HiSparse" if hisparse else "without HiSparse"
        if source := text(line.get("source")):
            what += f" (from {source})"
        self.note(ts, "config_seen", f"config {what}: {model or 'model unknown'}")

    def _resolved(self, ts: str | None, line: Mapping[str, Any]) -> None:
        self.hisparse = self.hisparse or line.get("hisparse") is True
        self.first_resolved = self.first_resolved or ts
        self.resolved = True
        self.mode = _latest(text(line.get("mode")), self.mode)
        self.rule = _latest(text(line.get("rule")), self.rule)
        self.pinned = _latest(text(line.get("pinned")), self.pinned)
        self.rendezvous = _latest(text(line.get("rendezvous")), self.rendezvous)
        self.group_rank = _latest(whole(line.get("group_rank")), self.group_rank)
        self.group_size = _latest(whole(line.get("group_size")), self.group_size)
        self.answer = backend_of(line.get("answer"))
        answer = self.answer or "none"
        if answer not in self.answers and len(self.answers) < 10:
            self.answers.append(answer)
        alone = backend_of(line.get("vllm_answer")) or "none"
        if alone not in self.alone and len(self.alone) < 10:
            self.alone.append(alone)
        current = "config current" if line.get("config_current") is True else "config not current"
        count = whole(line.get("count")) or 1
        times = f", {count} times" if count > 1 else ""
        self.note(
            ts,
            "resolved",
            f"backend {self.answer or 'none'}, vLLM alone {alone} "
            f"({current}; rule {self.rule or '?'}{times})",
        )

    def _workspace(self, ts: str | None, line: Mapping[str, Any]) -> None:
        self.hisparse = self.hisparse or line.get("hisparse") is True
        state = line.get("state")
        backend = text(line.get("backend"))
        kind = text(line.get("kind"))
        expected = text(line.get("expected"))
        error = text(line.get("error"))
        serves = text(line.get("serves"))
        self.group_rank = _latest(whole(line.get("group_rank")), self.group_rank)
        self.group_size = _latest(whole(line.get("group_size")), self.group_size)
        name = f"{kind} workspace" if kind else "workspace"
        if state == "failed":
            # A quant workspace that fails leaves the primary one in place.
            if kind == "primary" or self.workspace is None:
                self.workspace = None
                self.workspace_failed = True
            self.failure = error or self.failure
            self.serves = serves or self.serves
            what = f"{name} failed: backend {backend or expected or '?'}"
        elif state in ("made", "verified"):
            if backend is not None:
                if backend not in self.workspaces and len(self.workspaces) < 10:
                    self.workspaces.append(backend)
                if kind != "quant" or self.workspace is None:
                    self.workspace = backend
                self.workspace_failed = False
                if state == "verified" and backend not in self.verified:
                    self.verified.append(backend)
            if expected and backend and expected != backend:
                self.mismatch = f"{name} has backend {backend}, wanted was {expected}"
            what = f"{name} {state}: backend {backend or 'none'}"
        else:
            what = f"{name} {text(state) or 'in an unknown state'}: backend {backend or '?'}"
        if error:
            what += f": {error}"
        if serves:
            what += f"; {serves} serves instead"
        self.note(ts, "workspace", what)


def _latest(new: Any, old: Any) -> Any:
    return old if new is None else new
