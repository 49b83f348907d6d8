"""What a ramp found, and the verdict that follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from hisparse_guard.cli.exit_codes import Exit
from hisparse_guard.cli.output import plural
from hisparse_guard.cli.ramp.levels import LevelResult

SCHEMA = 1
TOOL = "hisparse-guard ramp"
# Kinds of failures that say nothing of the server.
NOT_OF_SERVER = ("cut off", "not sent", "cached")


@dataclass(frozen=True)
class Judged:
    """What another command says of a file; `against`: it speaks against the server."""

    words: str
    against: bool


@dataclass
class Result:
    """The whole ramp.

    Attributes:
        not_run: levels that were never begun, as (concurrency, requests).
        stopped: why the ramp ended early, or None.
        engine_dead: what showed that the engine was dead during the ramp, or None.
        after: what the server did after the last level; None where that was not asked.
        changed: what showed that another server answered than at the start, or None.
        known: the known-answer checks, "after" and "control": None (alike) or what differs.
        judged: what `triage` and `report` say of the logs and the evidence given.
        not_shown: what this ramp could not tell, in words.
        doubts: of that, what keeps it from being passed.
        unreadable: answers of the load without text that can be read, of a server that else
            sends such text.
    """

    base_url: str
    model: str
    load: dict[str, Any]
    server: dict[str, Any]
    levels: list[LevelResult] = field(default_factory=list)
    not_run: list[tuple[int, int]] = field(default_factory=list)
    stopped: str | None = None
    engine_dead: str | None = None
    interrupted: bool = False
    after: dict[str, Any] | None = None
    generator: dict[str, Any] = field(default_factory=dict)
    started: str = ""
    ended: str = ""
    guard_version: str = ""
    changed: str | None = None
    known: dict[str, str | None] = field(default_factory=dict)
    judged: dict[str, Judged] = field(default_factory=dict)
    not_shown: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    unreadable: int = 0
    internal_error: bool = False

    @property
    def done(self) -> int:
        return sum(level.done for level in self.levels)

    @property
    def failed(self) -> int:
        return sum(level.failed for level in self.levels)

    @property
    def partial(self) -> bool:
        """Not every level was run to its end."""
        return bool(self.not_run) or any(level.state != "complete" for level in self.levels)

    @property
    def alive(self) -> bool | None:
        """Whether the engine served after the last level; None where that was not asked."""
        if self.after is None:
            return None
        return not self.after["health"] and not self.after["probe"] and bool(self.after["listed"])

    @property
    def findings(self) -> list[str]:
        """What speaks against the server besides failed requests."""
        found = [self.changed, *self.known.values()]
        if self.alive is False:
            after = self.after or {}
            why = after["health"] or after["probe"] or "the model is no longer listed"
            found.append(f"the engine does not serve afterwards ({why})")
        found += [f"{name} says: {one.words}" for name, one in self.judged.items() if one.against]
        return [text for text in found if text]

    @property
    def verdict(self) -> str:
        """What the ramp shows of the server.

        - "passed": every request of every level done, the engine served afterwards, and nothing
          speaks against it.
        - "failed": a request failed at the server, or there is a finding.
        - "interrupted": neither was shown before it was ended.
        - "inconclusive": the load could not be made, or answers of it cannot be told from garbage.
        """
        at_server = any(
            not request.done and request.kind not in NOT_OF_SERVER
            for level in self.levels
            for request in level.requests
        )
        if at_server or self.engine_dead or self.findings:
            return "failed"
        if self.interrupted:
            return "interrupted"
        whole = (
            self.levels
            and not self.partial
            and not self.failed
            and self.unreadable < self.done
            and not self.doubts
        )
        return "passed" if self.alive and whole and "after" in self.known else "inconclusive"

    @property
    def exit_code(self) -> int:
        if self.internal_error:
            return Exit.INTERNAL_ERROR
        if self.interrupted:
            return Exit.INTERRUPTED
        return Exit.OK if self.verdict == "passed" else Exit.PROBLEM

    def first_failure(self) -> dict[str, Any] | None:
        for level in self.levels:
            request = level.first_failure()
            if request is not None:
                return {
                    "level": level.concurrency,
                    "request": request.number,
                    "id": request.id,
                    "at": request.ended,
                    "after_done": sum(
                        r.done and (r.ended or 0.0) <= (request.ended or math.inf)
                        for one in self.levels
                        for r in one.requests
                    ),
                    "kind": request.kind,
                    "error": request.error,
                    "detail": request.detail,
                }
        return None

    def sentence(self) -> str:
        """The verdict in words."""
        total = sum(level.planned for level in self.levels)
        unknown = f"; not shown: {', '.join(self.not_shown)}" if self.not_shown else ""
        if self.verdict == "passed":
            return f"passed: {self.done} of {total} requests done, the engine still serves{unknown}"
        parts = [f"{self.done} of {total} requests done, {self.failed} failed"]
        if self.stopped and self.stopped != self.changed:
            parts.append(f"stopped early, {self.stopped}")
        elif self.interrupted:
            parts.append("ended by the operator")
        parts += self.findings
        if self.unreadable and self.unreadable == self.done:
            parts.append(
                f"{plural(self.unreadable, 'answer')} without text that can be read: the model"
                " repeats special tokens, or its output is garbage"
            )
        if self.partial:
            parts.append("this result is partial")
        return f"{self.verdict}: " + "; ".join(parts) + unknown

    def to_json(self) -> dict[str, Any]:
        return {
            "tool": TOOL,
            "schema": SCHEMA,
            "verdict": self.verdict,
            "sentence": self.sentence(),
            "partial": self.partial,
            "interrupted": self.interrupted,
            "stopped": self.stopped,
            "engine_dead": self.engine_dead,
            "changed": self.changed,
            "known_answers": self.known,
            "judged": {name: one.words for name, one in self.judged.items()},
            "findings": self.findings,
            "not_shown": self.not_shown,
            "started": self.started,
            "ended": self.ended,
            "guard_version": self.guard_version,
            "base_url": self.base_url,
            "model": self.model,
            "server": self.server,
            "generator": self.generator,
            "load": self.load,
            "done": self.done,
            "failed": self.failed,
            "levels": [level.to_json() for level in self.levels],
            "levels_not_run": [
                {"concurrency": concurrency, "planned": requests}
                for concurrency, requests in self.not_run
            ],
            "first_failure": self.first_failure(),
            "after": self.after,
        }
