"""What text, page and metrics have in common: words for facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timezone

from hisparse_guard.cli import kernel_class
from hisparse_guard.cli.output import plural
from hisparse_guard.cli.report.files import NAME
from hisparse_guard.cli.report.model import NONE, Process, moment
from hisparse_guard.cli.report.report import Report
from hisparse_guard.cli.report.servers import Server
from hisparse_guard.cli.report.worker_verdict import serves

# Tones of the page; the terminal has the same in its own colours.
TONE: dict[str, str] = {
    "unsafe": "bad",
    "disagreement": "bad",
    "partly guarded": "bad",
    "failed": "warn",
    "unproven": "warn",
    "safe": "good",
    "not HiSparse": "calm",
    "no evidence": "warn",
}


def workspace(process: Process) -> str:
    """The workspaces of one worker, in words."""
    found: list[str] = []
    for standing in process.groups.values():
        if standing.present:
            found.append(f"{standing.backend} ({standing.state})")
        elif standing.state == "failed":
            found.append("failed: " + (standing.failure or "no reason given"))
        elif standing.state == "destroyed":
            found.append(f"{standing.backend} (destroyed)")
        else:
            found.append("off" if serves(process, standing) == NONE else "none yet")
    now = {standing.backend for standing in process.groups.values()}
    if others := [backend for backend in process.backends if backend not in now]:
        found.append(f"also {', '.join(others)}")
    return "; ".join(dict.fromkeys(found)) or "none yet"


def remarks(report: Report) -> list[str]:
    """What the operator should know of the evidence itself."""
    found = []
    if not report.evidence.files:
        found.append(
            f"no file here is named {NAME}: is HISPARSE_GUARD_EVIDENCE_DIR set for the server, and "
            "is the guard in it (hisparse-guard doctor)?"
        )
    for event, count in sorted(report.evidence.unknown_events.items()):
        found.append(
            f"{count} lines of event {event} were not understood: use a newer hisparse-guard"
        )
    return found + [str(problem) for problem in report.evidence.problems]


def clock(stamp: str | None) -> str:
    """An evidence time to the millisecond, without its zone, which is UTC."""
    at = moment(stamp)
    if at is None:
        return stamp or "at an unknown time"
    parsed = datetime.fromtimestamp(at, timezone.utc)
    return parsed.strftime("%Y-%m-%d %H:%M:%S.") + f"{parsed.microsecond // 1000:03d}"


def _distinct(values: Iterable[str | None]) -> list[str]:
    return sorted({value for value in values if value})


def kernel_classes(server: Server) -> list[str]:
    """The kernel classes of a server's processes; more than one where images differ."""
    return _distinct(p.armed.kernel_class for p in server.processes if p.armed)


def kernel_meanings(server: Server) -> list[str]:
    """What they mean, one sentence each."""
    return [f"{one}: {kernel_class.meaning(one)}" for one in kernel_classes(server)]


def notes(server: Server) -> list[str]:
    """What does not decide the verdict, and the operator should know."""
    armed = [process.armed for process in server.processes if process.armed]
    found = [
        f"{name} differ: {', '.join(values)}"
        for name, values in (
            ("modes", _distinct(process.mode for process in server.workers)),
            ("guard versions", _distinct(one.guard_version for one in armed)),
            ("vLLM versions", _distinct(one.vllm_version for one in armed)),
            ("FlashInfer versions", _distinct(one.flashinfer_version for one in armed)),
            ("build classes", _distinct(one.build_class for one in armed)),
            ("kernel classes", _distinct(one.kernel_class for one in armed)),
        )
        if len(values) > 1
    ]
    standings = [one for process in server.workers for one in process.groups.values()]
    for why in _distinct(one.failure for one in standings if one.state != "failed"):
        found.append(f"a workspace failed, another serves: {why}")
    lost = sum(process.lost for process in server.processes)
    if lost:
        found.append(f"{plural(lost, 'line')} of evidence lost")
    return found


def facts(server: Server) -> list[tuple[str, list[str]]]:
    """What the processes of a server have in common, or do not: each distinct value."""
    processes = server.processes
    armed = [process.armed for process in processes if process.armed]
    settings = Counter(
        f"{name}={value}" for one in processes for name, value in sorted(one.environment.items())
    )
    rows = [
        ("vLLM", _distinct(one.vllm_version for one in armed)),
        ("build class", _distinct(one.build_class for one in armed)),
        ("FlashInfer", _distinct(one.flashinfer_version for one in armed)),
        ("kernel class", _distinct(one.kernel_class for one in armed)),
        ("guard", _distinct(one.guard_version for one in armed)),
        ("mode", _distinct(process.mode for process in server.workers)),
        ("armed by", _distinct(one.how for one in armed)),
        ("rule", _distinct(process.rule for process in server.workers)),
        ("environment", sorted(settings)),
    ]
    return [(name, values) for name, values in rows if values]
