"""Runs the levels one after the other, and stops where the engine is dead."""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from hisparse_guard.cli.ramp.generator import Generator
from hisparse_guard.cli.ramp.hiding import Hider
from hisparse_guard.cli.ramp.load import Level, Load
from hisparse_guard.cli.ramp.result import LevelResult, Request, Result
from hisparse_guard.cli.ramp.target import Target

PROBE_TOKENS = 8
# Health is asked three times before an engine is called dead: one lost packet is no proof.
TRIES = 3
BETWEEN_TRIES_S = 1.0
# vLLM's import alone takes tens of seconds on a slow disk.
GENERATOR_START_S = 300.0
TICK_S = 0.5


class GeneratorFailed(RuntimeError):
    """The load generator did not send a single request; the text says why."""


class Progress(Protocol):
    def level_started(self, level: LevelResult) -> None: ...
    def changed(self, level: LevelResult) -> None: ...
    def level_ended(self, level: LevelResult) -> None: ...
    def note(self, text: str) -> None: ...


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def dead(target: Target, pool: Sequence[int], probe: bool) -> str | None:
    """None where the engine serves, else why it does not.

    Args:
        probe: also ask for one token where health is fine: an engine can hang, or answer
            errors, while its front end calls it healthy. Where health is silent, one token is
            asked for in any case.
    """
    reason = None
    for attempt in range(TRIES):
        if attempt:
            time.sleep(BETWEEN_TRIES_S)
        unhealthy = target.unhealthy()
        reason = unhealthy.reason if unhealthy else None
        silent = unhealthy is not None and not unhealthy.sure
        if silent or (probe and unhealthy is None):
            reason = target.probe(secrets.SystemRandom().choices(list(pool), k=PROBE_TOKENS))
        if reason is None:
            return None
    return reason


class Watch(threading.Thread):
    """Looks after the engine during a level: its health at intervals, a probe after a failure."""

    def __init__(self, target: Target, pool: Sequence[int], interval_s: float) -> None:
        super().__init__(daemon=True)
        self._target = target
        self._pool = pool
        self._interval_s = interval_s
        self._wake = threading.Event()
        self._over = threading.Event()
        self._failures = 0
        self.dead: str | None = None

    def failure_seen(self) -> None:
        self._failures += 1
        self._wake.set()

    def run(self) -> None:
        probed = 0
        while not self._over.is_set() and self.dead is None:
            self._wake.wait(self._interval_s)
            self._wake.clear()
            if self._over.is_set():
                return
            failures = self._failures
            self.dead = dead(self._target, self._pool, probe=failures > probed)
            probed = failures

    def end(self) -> None:
        self._over.set()
        self._wake.set()


class Runner:
    """One ramp.

    Args:
        environment: of the generator; the server's key is added to it.
        folder: where the generator's own output is kept, one file a process.
        health_interval_s: how often the engine's health is asked during a level, in seconds.
    """

    def __init__(
        self,
        target: Target,
        load: Load,
        *,
        pool: Sequence[int],
        server: Mapping[str, Any],
        python: Path,
        environment: Mapping[str, str],
        insecure: bool,
        folder: Path,
        progress: Progress,
        health_interval_s: float = 5.0,
        start_generator: Callable[..., Generator] = Generator,
    ) -> None:
        self._target = target
        self._load = load
        self._pool = list(pool)
        self._python = python
        self._environment = environment
        # Before anything keeps or prints them: a server may echo the key that it refuses.
        self._hider = Hider(environment)
        self._insecure = insecure
        self._folder = folder
        self._progress = progress
        self._interval_s = health_interval_s
        self._start_generator = start_generator
        self._generator: Generator | None = None
        self._log = folder
        self._run_id = secrets.token_hex(4)
        self.result = Result(
            base_url=target.base_url,
            model=target.model,
            load={
                "levels": [[level.concurrency, level.requests] for level in load.levels],
                "isl": load.isl,
                "osl": load.osl,
                "multi_turn": load.multi_turn,
                "turns": load.turns,
                "turn_isl": load.turn_isl,
                "seed": load.seed,
                "timeout_s": load.timeout_s,
                "request_ids": f"ramp-{self._run_id}-",
            },
            server=dict(server),
        )

    def run(self) -> Result:
        """Runs all levels; a KeyboardInterrupt ends it with what there is so far.

        Raises:
            GeneratorFailed: no load could be made at all.
        """
        result = self.result
        result.started = _now()
        try:
            for number, level in enumerate(self._load.levels):
                self._level(number, level)
                last = result.levels[-1]
                if result.stopped is None and last.failed:
                    result.stopped = self._verdict_after_failures(last)
                if result.stopped is not None:
                    break
            self._afterwards()
        except KeyboardInterrupt:
            result.interrupted = True
        finally:
            if self._generator is not None:
                self._generator.close()
        for outcome in result.levels:
            for request in outcome.requests:
                if not request.settled:
                    # Only where a second Ctrl-C came while a level was being closed.
                    request.fail("cut off", "cut off: ended by the operator")
        result.not_run = [
            (level.concurrency, level.requests) for level in self._load.levels[len(result.levels) :]
        ]
        result.ended = _now()
        return result

    def _verdict_after_failures(self, last: LevelResult) -> str | None:
        self._progress.note("requests failed: asking whether the engine still serves")
        reason = dead(self._target, self._pool, probe=True)
        if reason is not None:
            self.result.engine_dead = reason
            return f"the engine is dead: {reason}"
        if not last.done:
            return f"no request of level {last.concurrency} was done"
        return None

    def _afterwards(self) -> None:
        unhealthy = self._target.unhealthy()
        if self.result.engine_dead is not None:
            # A hanging engine has had its time already.
            probe: str | None = f"not asked: {self.result.engine_dead}"
        else:
            tokens = secrets.SystemRandom().choices(self._pool, k=PROBE_TOKENS)
            probe = self._target.probe(tokens)
        self.result.after = {
            "health": unhealthy.reason if unhealthy else None,
            "probe": probe,
            "listed": self._target.listed(),
        }

    def _plan(self, number: int, level: Level) -> dict[str, Any]:
        return {
            "level": number,
            "base_url": self._target.base_url,
            "tokenize_url": self._target.tokenize_url(),
            "model": self._target.model,
            "requests": level.requests,
            "concurrency": level.concurrency,
            "conversations": level.conversations,
            "turns": self._load.turns,
            "isl": self._load.isl,
            "turn_isl": self._load.turn_isl,
            "osl": self._load.osl,
            "seed": f"{self._load.seed}/{number}",
            "pool": self._pool,
            "timeout_s": self._load.timeout_s,
            "insecure": self._insecure,
            "request_id": f"ramp-{self._run_id}-{level.concurrency}",
        }

    def _level(self, number: int, level: Level) -> None:
        plan = self._plan(number, level)
        outcome = LevelResult(
            number,
            level.concurrency,
            [Request(n, id=f"{plan['request_id']}-{n}") for n in range(level.requests)],
            started=time.time(),
        )
        self.result.levels.append(outcome)
        if self._generator is None:
            self._log = self._folder / f"generator-from-level-{number + 1}.log"
            self._generator = self._start_generator(self._python, self._environment, self._log)
        generator = self._generator
        generator.begin(plan)
        self._progress.level_started(outcome)
        watch = Watch(self._target, self._pool, self._interval_s)
        watch.start()
        error: str | None = None
        try:
            while True:
                try:
                    error = self._follow(generator, watch, outcome)
                    break
                except KeyboardInterrupt:
                    if outcome.state == "interrupted":
                        generator.process.kill()
                    outcome.state, outcome.reason = "interrupted", "ended by the operator"
                    self._progress.note("ending: waiting for the generator to account for itself")
                    generator.stop("ended by the operator")
        finally:
            watch.end()
            self._settle(outcome, error)
            outcome.ended = time.time()
            self._progress.level_ended(outcome)
        if watch.dead is not None:
            self.result.engine_dead = watch.dead
            self.result.stopped = f"the engine is dead: {watch.dead}"
        if outcome.state == "interrupted":
            raise KeyboardInterrupt

    def _follow(self, generator: Generator, watch: Watch, outcome: LevelResult) -> str | None:
        """Takes the generator's events until it has finished the level.

        Returns:
            None, or how the generator failed.
        """
        began = time.monotonic()
        heard = False
        while True:
            try:
                event = generator.event(TICK_S)
            except queue.Empty:
                event = {}
            if event is None:
                self._generator = None
                outcome.generator_exit = status = generator.close()
                return f"was ended by signal {-status}" if status < 0 else f"ended ({status})"
            event = self._hider.hide_json(event)
            if event.get("event") == "finished":
                return None if event["error"] is None else f"failed ({event['error']})"
            heard = heard or bool(event)
            if not heard and time.monotonic() - began > GENERATOR_START_S:
                generator.process.kill()
            self._take(event, outcome, watch)
            if watch.dead is not None:
                if outcome.state == "complete":
                    outcome.state, outcome.reason = "stopped", f"engine dead: {watch.dead}"
                    self._progress.note(f"the engine is dead: {watch.dead}")
                generator.stop(f"engine dead: {watch.dead}")
            elif outcome.state == "interrupted":
                generator.stop("ended by the operator")
            self._progress.changed(outcome)

    def _take(self, event: dict[str, Any], outcome: LevelResult, watch: Watch) -> None:
        kind = event.get("event")
        if kind == "ready":
            self.result.generator = {
                "name": "vllm bench serve",
                "vllm": event["vllm"],
                "python": event["python"],
            }
        elif kind == "sent":
            outcome.requests[event["request"]].sent = event["at"]
        elif kind == "ended":
            request = outcome.requests[event["request"]]
            if request.settled:
                return
            request.ended = event["at"]
            if event["ok"]:
                request.done = True
                request.prompt_tokens = event["prompt_tokens"]
                request.output_tokens = event["output_tokens"]
                request.ttft_s = event["ttft_s"]
                request.latency_s = event["latency_s"]
                request.itl_s = event["itl_s"]
            else:
                request.fail(event["kind"], event["error"], event["detail"])
                if event["kind"] not in ("cut off", "not sent"):
                    watch.failure_seen()

    def _settle(self, outcome: LevelResult, error: str | None) -> None:
        """Requests that the generator did not account for have failed, and say so."""
        left = [request for request in outcome.requests if not request.settled]
        if not left:
            return
        if outcome.state != "complete":
            for request in left:
                what = "cut off" if request.sent else "not sent"
                request.fail(what, f"{what}: {outcome.reason}")
            return
        error = error or "left it out"
        tail = self._hider.hide(self._log.read_text(errors="replace")).strip().splitlines()
        if outcome.number == 0 and not any(request.sent for request in outcome.requests):
            last = tail[-1] if tail else "it said nothing"
            raise GeneratorFailed(
                f"the load generator ({self._python}) {error} without sending a request: {last}"
            )
        detail = "\n".join(tail[-20:]) or None
        for request in left:
            what = "before the answer was whole" if request.sent else "before sending it"
            request.fail("generator", f"the load generator {error} {what}", detail)
