"""The answer as JSON: schema 2, described in docs/triage.md and held by a test."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hisparse_guard.cli.triage.checklist import checklist
from hisparse_guard.cli.triage.model import Place
from hisparse_guard.cli.triage.shown import shown
from hisparse_guard.cli.triage.standstill import Stall
from hisparse_guard.cli.triage.verdict import Finding, Judged

if TYPE_CHECKING:
    from hisparse_guard.cli.triage.examine import Triage

SCHEMA = 2


def to_json(result: Triage) -> dict[str, Any]:
    """The whole answer as plain values."""
    return {
        "tool": "hisparse-guard triage",
        "schema": SCHEMA,
        "verdict": result.verdict,
        "exit_code": result.exit_code,
        "reasons": [shown(reason) for reason in result.reasons],
        "files": [
            {
                "file": log.name,
                "kind": log.kind,
                "bytes": log.bytes,
                "lines": log.lines,
                "notes": log.notes,
            }
            for log in result.files
        ],
        "runs": [_run(judged) for judged in result.runs],
        "runs_not_kept": result.dropped,
        "load": [
            {
                "file": loaded.file,
                "kind": loaded.kind,
                "done": loaded.done,
                "failed": loaded.failed,
                "partial": loaded.partial,
                "verdict": loaded.verdict,
                "levels": [asdict(level) for level in loaded.levels],
            }
            for loaded in result.load
        ],
        "evidence": result.evidence.report.to_json() if result.evidence else None,
    }


def _run(judged: Judged) -> dict[str, Any]:
    run = judged.run
    trouble, stats = run.first_trouble(), run.last_stats()
    return {
        "origin": run.origin,
        "run": run.number,
        "begun_by": run.begun_by,
        "first_line": _place(run.first),
        "last_line": _place(run.last),
        "verdict": judged.verdict,
        "reasons": [shown(reason) for reason in judged.reasons],
        "came_up": _place(run.came_up),
        "first_answer": _place(run.answered),
        "last_answer": _place(run.last_answer),
        "shutdown": _place(run.shutdown),
        "first_trouble": {
            "line": _place(trouble.place),
            "what": shown(trouble.what),
            "frame": shown(trouble.frame) if trouble.frame else None,
            "signals": [*trouble.signals],
        }
        if trouble
        else None,
        "trouble_count": run.trouble_count,
        "failed_requests": run.failed_requests,
        "stands_still": _stall(judged.stall),
        "stood_still": [_stall(one) for engine in run.engines.values() for one in engine.ended],
        "findings": [_finding(one) for one in judged.findings],
        "notices": [_finding(one) for one in judged.notices],
        "circumstances": judged.circumstances,
        "signals": {
            name: {
                "count": seen.count,
                "ranks": [*seen.ranks],
                "lines": [*map(_place, seen.places)],
            }
            for name, seen in run.seen.items()
        },
        "excused_errors": run.harmless,
        "last_statistics": {
            "line": _place(stats.place),
            "prompt_tokens_per_s": stats.prompt,
            "generation_tokens_per_s": stats.generation,
            "running": stats.running,
            "waiting": stats.waiting,
            "kv_cache_usage_percent": stats.kv_usage,
        }
        if stats
        else None,
        **_configuration(judged),
    }


def _configuration(judged: Judged) -> dict[str, Any]:
    """What a run says of its configuration."""
    run = judged.run
    return {
        "facts": {
            name: {"value": shown(fact.value), "line": _place(fact.place)}
            for name, fact in run.facts.values.items()
        },
        "connectors": {name: _place(place) for name, place in run.facts.connectors.items()},
        "ranks_seen": [*run.ranks],
        "ranks_guarded": [*run.guard_ranks],
        "checklist": [
            {
                "item": item.name,
                "expected": item.expected,
                "state": item.state,
                "found": shown(item.found) if item.found else None,
                "line": _place(item.place),
            }
            for item in checklist(run, judged.present)
        ],
    }


def _place(place: Place | None) -> dict[str, Any] | None:
    if place is None:
        return None
    return {
        "file": place.file,
        "line": place.number,
        "time": place.time,
        "process": place.process,
        "pid": place.pid,
        "rank": place.rank,
        "text": shown(place.text),
    }


def _stall(stall: Stall | None) -> dict[str, Any] | None:
    if stall is None:
        return None
    return {
        "since": _place(stall.since),
        "until": _place(stall.until),
        "seconds": stall.seconds,
        "lines": stall.lines,
        "what": stall.what,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    fault = finding.fault
    return {
        "id": fault.id,
        "title": fault.title,
        "family": fault.family,
        "certainty": finding.certainty,
        "effect": finding.when.effect,
        "proven": [*finding.when.proven],
        "likely": [*finding.when.likely],
        "doubts": [*finding.doubts],
        "unproven": [*fault.unproven],
        "follows_from": finding.follows_from,
        "ranks": [*finding.ranks],
        "ranks_expected": fault.ranks,
        "build_classes": [*fault.build_classes],
        "meaning": " ".join(fault.meaning.split()),
        "next_steps": [*fault.next_steps],
        "sources": [*fault.sources],
        "evidence": [_place(place) for place in finding.evidence],
    }
