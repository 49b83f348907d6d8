"""Requests and levels of a ramp, and what became of each."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Linear between the two nearest ranks; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass
class Request:
    """One planned request and what became of it. Times in seconds since the epoch.

    Attributes:
        unshown: done, and why its answer shows nothing (`doubts`), or None.
    """

    number: int
    id: str = ""
    sent: float | None = None
    ended: float | None = None
    done: bool = False
    kind: str | None = None
    error: str | None = None
    detail: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int = 0
    unshown: str | None = None
    ttft_s: float | None = None
    latency_s: float | None = None
    itl_s: list[float] = field(default_factory=list)

    @property
    def settled(self) -> bool:
        return self.done or self.error is not None

    def fail(self, kind: str, error: str, detail: str | None = None) -> None:
        self.kind, self.error, self.detail = kind, error, detail

    def to_json(self) -> dict[str, Any]:
        named = (
            "number",
            "id",
            "sent",
            "ended",
            "done",
            "kind",
            "error",
            "detail",
            "unshown",
        )
        measured = ("prompt_tokens", "output_tokens", "ttft_s", "latency_s", "itl_s")
        return {name: getattr(self, name) for name in (*named, *measured)}


@dataclass
class LevelResult:
    """One level.

    Attributes:
        number: from 0 on.
        state: "complete" (it ran to its end), "stopped" (engine dead) or "interrupted".
    """

    number: int
    concurrency: int
    requests: list[Request]
    state: str = "complete"
    reason: str | None = None
    started: float = 0.0
    ended: float = 0.0

    @property
    def planned(self) -> int:
        return len(self.requests)

    @property
    def done(self) -> int:
        return sum(request.done for request in self.requests)

    @property
    def failed(self) -> int:
        return self.planned - self.done

    @property
    def duration_s(self) -> float:
        """From the first request sent to the last one ended."""
        sent = [r.sent for r in self.requests if r.sent is not None]
        ended = [r.ended for r in self.requests if r.sent is not None and r.ended is not None]
        return max(ended) - min(sent) if sent and ended else 0.0

    def tokens_per_s(self) -> float | None:
        """Output tokens of done requests over the level's duration."""
        tokens = sum(r.output_tokens for r in self.requests if r.done)
        return tokens / self.duration_s if tokens and self.duration_s else None

    def first_failure(self) -> Request | None:
        """Of those that were sent and ended by themselves the earliest, else any failed one."""
        failed = [r for r in self.requests if not r.done]
        own = [r for r in failed if r.sent is not None and r.kind != "cut off"]
        return min(own or failed, key=lambda r: (r.ended or math.inf, r.number), default=None)

    def to_json(self) -> dict[str, Any]:
        good = [r for r in self.requests if r.done]
        ttft = [r.ttft_s * 1000 for r in good if r.ttft_s is not None]
        itl = [gap * 1000 for r in good for gap in r.itl_s]

        def milliseconds(values: list[float]) -> dict[str, float | None]:
            top = percentile(values, 99)
            return {
                "median": round(statistics.median(values), 3) if values else None,
                "p99": None if top is None else round(top, 3),
            }

        speed = self.tokens_per_s()
        kinds = Counter(r.kind or "unknown" for r in self.requests if not r.done)
        return {
            "concurrency": self.concurrency,
            "planned": self.planned,
            "done": self.done,
            "failed": self.failed,
            "state": self.state,
            "reason": self.reason,
            "failures": dict(kinds.most_common()),
            "duration_s": round(self.duration_s, 3),
            "output_tokens_per_s": None if speed is None else round(speed, 3),
            "ttft_ms": milliseconds(ttft),
            "itl_ms": milliseconds(itl),
            "prompt_tokens": sorted({r.prompt_tokens for r in good if r.prompt_tokens is not None})
            if len({r.prompt_tokens for r in good}) <= 4
            else None,
        }
