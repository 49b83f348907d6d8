"""What the guard says of itself. Patches hand facts in; an event comes of each.

    patches ──facts──▶ this module ──event, if its content is new──▶ evidence file (one line, first)
                                                              └────▶ vLLM's log (`messages`)

When: nothing is written before a HiSparse config is seen or a backend is resolved, but an `error`.
The evidence of a process then begins with `armed` and the configs seen so far. The log of a process
that never sees HiSparse gets nothing above DEBUG, but an internal error. Each distinct content is
written once; how often it came again is written at every power of ten and at exit.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from typing import Any

import hisparse_guard
from hisparse_guard.runtime.decision import MNNVL, NONE, Decision, parse_answer
from hisparse_guard.runtime.state import ENV_BACKEND, state, workspace_backend
from hisparse_guard.runtime.telemetry import events, log, messages, process_facts
from hisparse_guard.runtime.telemetry.evidence import EvidenceFile

_REPORTED_VARIABLES = (
    ENV_BACKEND,
    "VLLM_ALLREDUCE_USE_FLASHINFER",
    "VLLM_USE_V2_MODEL_RUNNER",
    "VLLM_PLUGINS",
    "CUDA_LAUNCH_BLOCKING",
)


class _Recorder:
    """What this process has recorded."""

    def __init__(self, injected_via: str) -> None:
        self.injected_via = injected_via
        self.evidence = EvidenceFile()
        # Another thread may have held the parent's when this process was forked.
        self.lock = threading.RLock()
        # By content: the first record, and how often it came.
        self.counts: dict[events.Event, tuple[events.Event, int]] = {}
        self.dropped = 0
        self.logged_armed = False

    def record(self, event: events.Event) -> bool:
        """Counts an event and writes it where its content is new; whether it is."""
        key = event
        if isinstance(event, events.ContextMiss):
            # The call site and what it got; not by which way and how long after.
            key = event._replace(stack=(), left_at=None, left_s=None)
        with self.lock:
            first, count = self.counts.get(key, (event, 0))
            capped = isinstance(event, (events.ContextMiss, events.Error))
            if capped and count == 0 and len(self.counts) >= events.MOST_DISTINCT:
                self.dropped += 1
                return False
            self.counts[key] = (first, count + 1)
            if str(count + 1).rstrip("0") == "1":
                self._write_evidence(first, count + 1)
            return count == 0

    def end(self) -> None:
        with self.lock:
            if self.evidence.seq > 0:
                for event, count in self.counts.values():
                    if count > 1:
                        self._write_evidence(event, count, at_exit=True)
                self._write_evidence(events.End(self.dropped), 1, at_exit=True)

    @cached_property
    def armed(self) -> events.Armed:
        labels: tuple[str | None, str | None] = None, None
        # Not at the top: a server without HiSparse need not compile it. The guard's zip may have
        # been replaced since; then there are no labels.
        with suppress(Exception):
            from hisparse_guard.runtime.telemetry import build_class

            labels = build_class.labels()
        return events.Armed(
            how=self.injected_via,
            guard_version=hisparse_guard.__version__,
            vllm_version=process_facts.package_version("vllm"),
            flashinfer_version=process_facts.package_version("flashinfer"),
            python=sys.version.split()[0],
            build_class=labels[0],
            ppid=os.getppid(),
            argv0=sys.argv[0] if getattr(sys, "argv", None) else None,
            settings=state.read_settings()._asdict(),
            environment={name: os.environ.get(name) for name in _REPORTED_VARIABLES},
            kernel_class=labels[1],
        )

    def _write_evidence(self, event: events.Event, count: int, at_exit: bool = False) -> None:
        folder = state.read_settings().evidence_dir
        if folder is None:
            return
        try:
            if self.evidence.seq == 0:
                self.evidence.write(folder, self.armed)
            self.evidence.write(folder, event, count, at_exit)
        except Exception as error:
            # A full disk, a read-only folder, one that others may write to; logged once each. Any
            # other, lest an error in here costs the log line too.
            lost = f"no evidence is written to HISPARSE_GUARD_EVIDENCE_DIR={folder}: {error}"
            log.log(logging.WARNING, f"{lost}; the server is not affected")


_recorder = _Recorder("")


def begin(injected_via: str) -> None:
    """The guard was activated in this process, or the process was forked from one that has it."""
    global _recorder
    log.forget()
    _recorder = _Recorder(injected_via)


def end() -> None:
    """The process ends: what was counted or held back until now. May be called more than once."""
    _recorder.end()
    log.flush(last_chance=True)


def config_noted() -> None:
    """A config with new content was noted in the state."""
    _record_configs()
    log.flush()


def context_left(lost_patches: Iterable[str]) -> None:
    """A config context was left in a process that saw HiSparse."""
    for name in lost_patches:
        advice = f"start that tool before vLLM is imported, or {messages.REMEDY}"
        _error(f"{name} is not guarded any more: another tool took the patch off; {advice}")
    if process_facts.global_rank()[0] is not None:
        _log_armed()


def resolved(decision: Decision, group: Any, frame: Any) -> None:
    """The resolver was called from `frame` and is answered by `decision`."""
    answers = {"vllm_answer": _plain(decision.vllm_answer), "answer": _plain(decision.answer)}
    fields = {**decision._asdict(), **answers, **process_facts.group_fields(group)}
    event = events.Resolved(**fields, rendezvous=process_facts.rendezvous())
    _record_and_log(event, messages.resolved(event) if decision.hisparse else None)
    if decision.hisparse and not decision.config_current:
        stack = process_facts.call_stack(frame)
        callers = [site for site in stack if not site.file.endswith("flashinfer_all_reduce.py")]
        upstream = None if decision.upstream == NONE else decision.upstream
        _context_miss("resolver", callers or stack, stack, upstream, decision.used, decision.target)


def asked_without_config(frame: Any) -> None:
    """With TRACE_CONTEXT: code at `frame` asked for the config and there was none."""
    stack = process_facts.call_stack(frame)
    if stack:
        _context_miss("trace", stack, stack, None, None, None)


def workspace_made(workspace: Any, backend: Any, group: Any, failure: BaseException | None) -> None:
    """vLLM made a workspace, or None of it came."""
    made = workspace_backend(workspace) or (None if backend is None else str(backend))
    # One that was made has no failure: the exception is then one that vLLM handles meanwhile.
    reason = None if failure is None or workspace is not None else repr(failure)
    _workspace("failed" if workspace is None else "made", made, None, group, reason)


def workspace_given_out(kind: str, workspace: Any, group: Any) -> None:
    """A getter gave out a workspace under HiSparse."""
    backend, expected = workspace_backend(workspace), state.expected_backend(group)
    as_expected = backend is not None and backend == expected != MNNVL
    what = "failed" if workspace is None else "verified" if as_expected else "made"
    if what != "failed" or expected != NONE:
        _workspace(what, backend, kind, group, None)


def workspace_destroyed() -> None:
    """vLLM destroyed every workspace of this process."""
    _workspace("destroyed", None, None, None, None)


def internal_error(lost: str, error: Exception) -> None:
    """Something of the guard's own failed; `lost` says what that costs and what to do."""
    _error(f"internal error: {lost}; please report this line", repr(error))


def _workspace(what: str, backend: Any, kind: str | None, group: Any, reason: str | None) -> None:
    event = events.Workspace(
        state=what,
        backend=backend,
        expected=state.expected_backend(group),
        kind=kind,
        error=reason,
        hisparse=state.hisparse,
        serves="vLLM's other all-reduce (custom or NCCL)" if what == "failed" else None,
        mode=state.settings.mode if state.settings is not None else None,
        creation=state.creations,
        **process_facts.group_fields(group),
    )
    _record_and_log(event, messages.workspace(event) if state.hisparse else None)


def _context_miss(
    origin: str, callers: Any, stack: Any, upstream: str | None, used: Any, target: Any
) -> None:
    left_at, left_s = None, None
    if state.last_exit is not None:
        code, line, at = state.last_exit
        left_at = events.CodeLocation(code.co_filename, line, code.co_name)
        left_s = round(time.monotonic() - at, 3)
    event = events.ContextMiss(origin, callers[-1], stack, left_at, left_s, upstream, used, target)
    _record_and_log(event, messages.context_miss(event, state.hisparse))


def _error(message: str, detail: str | None = None) -> None:
    event = events.Error(message, detail)
    _record_and_log(event, messages.error(event))


def _record_configs() -> None:
    if state.settings is not None:
        for facts in list(state.configs):
            if facts not in _recorder.counts:
                _recorder.record(facts)


def _record_and_log(event: events.Event, line: messages.Line | None) -> None:
    # Evidence first: what the log tells of is on disk.
    _record_configs()
    is_new = _recorder.record(event)
    if state.hisparse and not isinstance(event, events.Error):
        _log_armed()
    if is_new and line is not None:
        log.log(*line)


def _log_armed() -> None:
    # They may grow with each module that is patched.
    for problem in state.problems:
        if events.Error(problem) not in _recorder.counts:
            _error(problem)
    if not _recorder.logged_armed:
        _recorder.logged_armed = True
        log.log(*messages.armed(_recorder.armed, *process_facts.global_rank()))


def _plain(answer: Any) -> Any:
    # As JSON has it, and hashable. What has an unknown shape is written as its repr, without the
    # address in it, which would make every answer a new one.
    return answer if parse_answer(answer) is not None else repr(answer).partition(" at 0x")[0]
