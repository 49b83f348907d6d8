"""Evidence made to order: lines in the order and form in which the guard writes them."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

EPOCH = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)

STACK = [
    {"file": "/vllm/v1/worker/gpu_worker.py", "line": 412, "function": "profile_cudagraph_memory"},
    {"file": "/vllm/v1/worker/gpu_model_runner.py", "line": 5120, "function": "capture_model"},
    {
        "file": "/vllm/distributed/device_communicators/flashinfer_all_reduce.py",
        "line": 190,
        "function": "get_fi_ar_workspace",
    },
]
LEFT_AT = {"file": "/vllm/v1/worker/gpu_worker.py", "line": 350, "function": "load_model"}


def stamp(seconds: float) -> str:
    """RFC 3339, UTC, `seconds` after the samples' epoch."""
    at = EPOCH + timedelta(seconds=seconds)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


class Process:
    """One worker process that writes evidence."""

    def __init__(
        self,
        *,
        rank: int | None = 0,
        world: int | None = 2,
        group: int | None = None,
        host: str = "node-a",
        pid: int = 100,
        ppid: int = 50,
        start: float = 0.0,
        rendezvous: str | None = "tcp://10.0.0.1:29500",
        instance: str | None = "abc123",
        mode: str = "enforce",
        guard: str = "0.1.0",
        environment: dict[str, str | None] | None = None,
    ) -> None:
        self.rank, self.world, self.host, self.pid = rank, world, host, pid
        self.group = group or world
        self.rendezvous, self.instance, self.mode = rendezvous, instance, mode
        self.start, self.clock, self.seq = start, start, 0
        self.lines: list[str] = []
        self.known = False
        self.line(
            "armed",
            how="sitecustomize",
            guard_version=guard,
            vllm_version="0.33.0",
            flashinfer_version="0.7.2.post1",
            python="3.12.3",
            build_class="unguarded",
            ppid=ppid,
            argv0="/usr/bin/vllm",
            settings={
                "mode": mode,
                "backend": "trtllm",
                "multinode": "none",
                "evidence_dir": "/evidence",
                "trace_context": False,
            },
            environment=environment or {"VLLM_FLASHINFER_ALLREDUCE_BACKEND": None},
        )

    def line(self, event: str, **fields: Any) -> Process:
        self.seq += 1
        self.clock += 0.25
        record = {
            "schema": 1,
            "ts": stamp(self.clock),
            "event": event,
            "host": self.host,
            "pid": self.pid,
            "rank": self.rank if self.known else None,
            "world_size": self.world if self.known else None,
            "start": stamp(self.start),
            "seq": self.seq,
            **fields,
        }
        self.lines.append(json.dumps(record, separators=(",", ":")))
        return self

    def config(self, hisparse: bool = True, tp: int | None = None, **fields: Any) -> Process:
        return self.line(
            "config_seen",
            **{
                "hisparse": hisparse,
                "source": "attention_config" if hisparse else None,
                "model": "deepseek-ai/DeepSeek-V3.2",
                "instance_id": self.instance,
                "tensor_parallel_size": tp or self.group,
                "data_parallel_size": 1,
                **fields,
            },
        )

    def resolve(
        self,
        alone: Any = ("mnnvl", True),
        answer: Any = ("trtllm", False),
        pinned: str | None = "trtllm",
        hisparse: bool = True,
        **fields: Any,
    ) -> Process:
        self.known = True
        return self.line(
            "resolved",
            **{
                "count": 1,
                "at_exit": False,
                "hisparse": hisparse,
                "config_current": True,
                "env_backend": "auto",
                "mode": self.mode,
                "rule": "hisparse" if hisparse else "no-hisparse",
                "vllm_answer": alone,
                "answer": answer,
                "pinned": pinned,
                "group_rank": None if self.rank is None else self.rank % (self.group or 1),
                "group_size": self.group,
                "rendezvous": self.rendezvous,
                **fields,
            },
        )

    def resolve_late(self, **fields: Any) -> Process:
        """A decision without a config; who asked is the next line."""
        return self.resolve(**{"config_current": False, "rule": "context-miss", **fields})

    def miss(self, count: int = 1, **fields: Any) -> Process:
        return self.line(
            "context_miss",
            **{
                "count": count,
                "at_exit": False,
                "origin": "resolver",
                "where": STACK[-1],
                "stack": STACK,
                "left_at": LEFT_AT,
                "left_s": 3.25 + self.pid,
                "vllm_alone": "mnnvl",
                "used": "trtllm",
                **fields,
            },
        )

    def workspace(
        self, state: str = "verified", backend: str | None = "trtllm", **fields: Any
    ) -> Process:
        return self.line(
            "workspace",
            **{
                "state": state,
                "backend": backend,
                "expected": "trtllm",
                "kind": "primary" if state == "verified" else None,
                "group_rank": None if self.rank is None else self.rank % (self.group or 1),
                "group_size": self.group,
                "error": None,
                "hisparse": True,
                "serves": None,
                **fields,
            },
        )

    def guarded(self) -> Process:
        """A worker on an unguarded build with the guard in force."""
        return self.config().resolve().resolve_late().miss().workspace("made").workspace()

    def observed(self) -> Process:
        """The same under HISPARSE_GUARD_MODE=observe."""
        self.mode = "observe"
        mnnvl = {"answer": ("mnnvl", True), "pinned": None}
        self.config().resolve(**mnnvl).resolve_late(**mnnvl)
        return self.miss(used="mnnvl").workspace("made", "mnnvl", expected="mnnvl")

    @property
    def text(self) -> str:
        return "".join(line + "\n" for line in self.lines)

    def write(self, folder: Path, name: str | None = None) -> Path:
        """Appends its lines to its file, as the guard does."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / (name or f"hisparse-guard-{self.host}-{self.pid}.jsonl")
        with path.open("a") as handle:
            handle.write(self.text)
        return path


def world(size: int = 2, pid: int = 100, **fields: Any) -> list[Process]:
    """One process a rank, armed and no further; pids count up from `pid`."""
    return [Process(rank=r, world=size, pid=pid + r, **fields) for r in range(size)]
