"""The report as JSON, schema 1; described in docs/evidence.md."""

from __future__ import annotations

from typing import Any

from hisparse_guard.cli import kernel_class
from hisparse_guard.cli.report.decoding import Miss
from hisparse_guard.cli.report.exit_codes import MEANING, Verdict
from hisparse_guard.cli.report.history import misses_of, timeline
from hisparse_guard.cli.report.model import Process
from hisparse_guard.cli.report.render.common import kernel_classes, notes
from hisparse_guard.cli.report.report import Report, Result
from hisparse_guard.runtime.telemetry.events import Armed, to_json

_ARMED = (
    "argv0", "how", "guard_version", "vllm_version", "flashinfer_version", "python",
    "build_class", "kernel_class",
)  # fmt: skip


def report_json(report: Report) -> dict[str, Any]:
    """All that a report says, in JSON's own types."""
    evidence = report.evidence
    return {
        "schema": 1,
        "verdict": report.verdict,
        "exit_code": report.exit_code,
        "meaning": MEANING[report.verdict],
        "servers": [_server(result, evidence.misses) for result in report.results],
        "bystanders": [_process(process) for process in report.bystanders],
        "sites": [_site(miss) for miss in evidence.misses],
        "evidence": {
            "files": evidence.files,
            "lines": evidence.lines,
            "processes": len(evidence.processes),
            "torn": evidence.torn,
            "unknown_schema": evidence.unknown_schema,
            "unknown_events": evidence.unknown_events,
            "problems": [problem.to_json() for problem in evidence.problems],
        },
    }


def _server(result: Result, misses: list[Miss]) -> dict[str, Any]:
    server, judgement = result.server, result.judgement
    classes = kernel_classes(server)
    return {
        "id": server.identifier,
        "verdict": judgement.verdict,
        "reasons": judgement.reasons,
        "notes": notes(server),
        "advice": judgement.advice,
        "latest": server.latest,
        "hisparse": server.hisparse,
        "kernel_classes": {one: kernel_class.meaning(one) for one in classes},
        "model": server.model,
        "hosts": server.hosts,
        "start": server.start,
        "last": server.last,
        "world_size": server.world_size,
        "ranks_missing": judgement.missing,
        "workers": [
            _worker(process, verdict)
            for process, verdict in zip(server.workers, judgement.workers, strict=True)
        ],
        "others": [_process(process) for process in server.others],
        "misses": [
            {
                "site": miss.number,
                "count": miss.count,
                "ranks": _ranks(miss.processes),
                "processes": len(miss.processes),
            }
            for miss in misses_of(server, misses)
        ],
        "timeline": [
            {
                "ts": one.ts,
                "event": one.event,
                "what": one.what,
                "ranks": _ranks(one.processes),
                "processes": len(one.processes),
            }
            for one in timeline(server)
        ],
    }


def _ranks(processes: list[Process]) -> list[int]:
    return sorted({process.rank for process in processes if process.rank is not None})


def _site(miss: Miss) -> dict[str, Any]:
    return {**to_json(miss.event), "first": miss.first}


def _process(process: Process) -> dict[str, Any]:
    armed: Armed | None = process.armed
    return {
        "host": process.host,
        "pid": process.pid,
        "start": process.start,
        "last": process.last_ts,
        "rank": process.rank,
        "file": process.files[0],
        "files": process.files,
        "lines": process.lines,
        "lines_lost": process.lost,
        **{name: getattr(armed, name, None) for name in _ARMED},
        "hisparse": process.hisparse,
        "model": process.model,
        "environment": process.environment,
        "errors": process.errors,
        "doubts": process.doubts,
        "ended": process.ended,
    }


def _worker(process: Process, verdict: Verdict) -> dict[str, Any]:
    groups = list(process.groups.items())
    # The whole state of each group, and of the first one under the older keys.
    group, standing = groups[0] if groups else (None, None)
    return {
        "verdict": verdict,
        **_process(process),
        "world_size": process.world_size,
        "group_rank": group.rank if group else None,
        "group_size": group.size if group else None,
        "rendezvous": process.rendezvous,
        "mode": process.mode,
        "rule": process.rule,
        "pinned": process.pinned,
        "vllm_alone": process.upstream,
        "workspace": {
            "backend": standing.backend if standing and standing.present else None,
            "verified": standing is not None and standing.state == "verified",
            "all": process.backends,
            "failed": any(one.state == "failed" for _, one in groups),
            "error": next((one.failure for _, one in groups if one.failure), None),
            "serves": next((one.fallback for _, one in groups if one.fallback), None),
            "mismatch": _mismatch(process),
        },
        "groups": [
            {
                "group": group.name,
                "group_size": group.size,
                "group_rank": group.rank,
                "used": standing.used,
                "workspace": standing.state,
                "backend": standing.backend,
                "expected": standing.expected,
            }
            for group, standing in groups
        ],
        "misses": process.miss_count,
    }


def _mismatch(process: Process) -> str | None:
    for standing in process.groups.values():
        if standing.backend is not None and standing.backend != standing.expected:
            return f"workspace has backend {standing.backend}, expected was {standing.expected}"
    return None
