"""The evidence schema, once: one record type an event, field names as in the JSON.

The runtime writes these, `hisparse-guard report` reads them, the tests make samples from them and
`docs/evidence.md` is held against them. Schema 1: a field is never renamed or removed; new ones may
be added, and a reader takes their default for a line of an older guard.

A line is an `Envelope` and the fields of its event, in one flat JSON object.
"""

from typing import Any, NamedTuple

from hisparse_guard.runtime.config_facts import ConfigFacts

SCHEMA = 1
# Of one process. A loop that makes ever new misses or errors must not fill a disk; decisions and
# workspaces always count.
MOST_DISTINCT = 1000

# What vLLM's resolver answers, in vLLM's own shape; an unknown shape is written as its repr.
Answer = str | tuple[Any, ...] | None


class CodeLocation(NamedTuple):
    """A line of someone's code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


class Envelope(NamedTuple):
    """The fields of every line.

    Attributes:
        ts: when the line was written, RFC 3339, UTC, in microseconds.
        start: when the guard was activated in this process, or when it was forked; host, pid and
            start together name one process, since pids are used again.
        seq: 1, 2, … within a process; a gap is a line that could not be written.
        rank, world_size: torch.distributed's global ones; None before they are known.
        count: how often the same content was recorded by now; written again at every power of
            ten, and at exit.
        at_exit: whether this line only brings the count up to date, when the process ends.
    """

    schema: int
    ts: str
    event: str
    host: str
    pid: int
    rank: int | None
    world_size: int | None
    start: str
    seq: int
    count: int = 1  # type: ignore[assignment]
    at_exit: bool = False


class Armed(NamedTuple):
    """The first line of a process: what guards it, and what it is.

    Attributes:
        how: injected via: ``sitecustomize``, ``entry point`` or ``fork``.
        build_class, kernel_class: the labels of `build_class`; None where they could not be read.
        settings: the settings in force, by field name of `Settings`.
        environment: vLLM's variables that matter, None where unset.
    """

    how: str
    guard_version: str
    vllm_version: str | None
    flashinfer_version: str | None
    python: str
    build_class: str | None
    ppid: int
    argv0: str | None
    settings: dict[str, Any]
    environment: dict[str, str | None]
    kernel_class: str | None = None


# What a vLLM config says, once for each distinct content.
ConfigSeen = ConfigFacts


class Resolved(NamedTuple):
    """One decision about the all-reduce backend of a process group.

    Attributes:
        hisparse: whether any config of this process had HiSparse on by then.
        config_current: whether a vLLM config was current.
        env_backend: ``VLLM_FLASHINFER_ALLREDUCE_BACKEND``.
        rule: the row of the decision table (`decision.Rule`).
        vllm_answer, answer: what vLLM's resolver answered, and what its caller was given.
        pinned: what holds for the group from now on: ``trtllm``, ``none`` or None.
        group_rank, group_size, group: of the process group, by torch's name for it; None where
            the resolver is given none.
        rendezvous: address of torch's default store, the same on all ranks of a server.
        upstream, used, target: the backend that vLLM alone would use, the one used, and the one
            that the guard asks for; ``none`` for no FlashInfer all-reduce, None where unknown.
        conflict: a fresh decision differs from what was pinned before.
    """

    hisparse: bool
    config_current: bool
    env_backend: str
    mode: str
    rule: str
    vllm_answer: Answer
    answer: Answer
    pinned: str | None
    group_rank: int | None
    group_size: int | None
    rendezvous: str | None
    group: str | None = None
    upstream: str | None = None
    used: str | None = None
    target: str | None = None
    conflict: bool = False


class ContextMiss(NamedTuple):
    """A call site that asked for the vLLM config while none was current.

    Attributes:
        origin: ``resolver``, or ``trace`` (``HISPARSE_GUARD_TRACE_CONTEXT=1``).
        where: the call site; for the resolver, the caller outside its module: who was answered by
            the pin.
        stack: from the outermost caller in.
        left_at, left_s: where the config context was last left, and how many seconds before.
        vllm_alone: the upstream backend; None for none or unknown.
        used, target: as in `Resolved`.
    """

    origin: str
    where: CodeLocation
    stack: tuple[CodeLocation, ...]
    left_at: CodeLocation | None
    left_s: float | None
    vllm_alone: str | None
    used: str | None
    target: str | None = None


class Workspace(NamedTuple):
    """A FlashInfer all-reduce workspace came, went, or did not come.

    Attributes:
        state: ``made`` (with a `kind`: a getter gave it out and it is not as expected),
            ``verified`` (a getter gave it out and it is), ``failed`` or ``destroyed`` (every
            workspace of the process).
        backend, expected: what it has, and what was decided.
        kind: the getter that gave it out, ``primary`` or ``quant``; None when seen at creation.
        error, serves: why it failed, and what serves instead.
        mode: the guard's mode.
        creation: the number of the creation in this process, from 1; for a ``verified`` one, how
            many there were by then (0: made before the guard was there).
    """

    state: str
    backend: str | None
    expected: str | None
    kind: str | None
    group_rank: int | None
    group_size: int | None
    error: str | None
    hisparse: bool
    serves: str | None
    group: str | None = None
    mode: str | None = None
    creation: int | None = None


class Error(NamedTuple):
    """Something of the guard's own that failed, or that it cannot guard."""

    message: str
    detail: str | None = None


class End(NamedTuple):
    """The process ends and could still say so.

    Attributes:
        dropped: how many records were not written, because a process writes no more than a
            thousand different misses and errors. Decisions and workspaces are never dropped.
    """

    dropped: int = 0


Event = Armed | ConfigSeen | Resolved | ContextMiss | Workspace | Error | End

# The value of `event` in the JSON, for each record.
NAMES: dict[type[Any], str] = {
    Armed: "armed",
    ConfigSeen: "config_seen",
    Resolved: "resolved",
    ContextMiss: "context_miss",
    Workspace: "workspace",
    Error: "error",
    End: "end",
}


def to_json(value: Any) -> Any:
    """A record, or what stands in one, as JSON's own types: a nested record becomes an object."""
    if hasattr(value, "_fields"):
        return {name: to_json(item) for name, item in value._asdict().items()}
    return [to_json(item) for item in value] if isinstance(value, tuple) else value
