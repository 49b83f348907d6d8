"""The guard's evidence beside a log, by the one reader of evidence: the report command's.

This is the only module of triage that knows what a report looks like.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hisparse_guard.cli.logs.reader import Unreadable
from hisparse_guard.cli.triage.server_run import Run

if TYPE_CHECKING:
    from hisparse_guard.cli.report.report import Report, Result

_SAY_WORKSPACE = frozenset(
    {"workspace_mnnvl", "workspace_trtllm", "guard_verified_trtllm", "guard_says_mnnvl"}
)


@dataclass(frozen=True)
class Server:
    """What the evidence says of one server."""

    pids: frozenset[int]
    signals: frozenset[str]


@dataclass(frozen=True)
class Evidence:
    """The evidence that was given.

    Attributes:
        report: what `hisparse-guard report` says of it.
    """

    report: Report
    servers: tuple[Server, ...]

    def vouches_for(self, run: Run, runs: int) -> frozenset[str]:
        """The signals that it vouches for in this run.

        Restarted containers have the same process ids: servers that disagree say nothing.
        """
        found = {server.signals for server in self._servers_of(run, runs)}
        signals = found.pop() if len(found) == 1 else frozenset[str]()
        return signals - _SAY_WORKSPACE if _SAY_WORKSPACE & run.seen.keys() else signals

    def _servers_of(self, run: Run, runs: int) -> list[Server]:
        """The servers that have a worker's process id in common with the run."""
        pids = _worker_pids(run)
        if not pids:
            return [*self.servers] if len(self.servers) == runs == 1 else []
        return [server for server in self.servers if pids & server.pids]

    def remarks(self, runs: Sequence[Run]) -> list[str]:
        """What has to be said of it beside the verdicts of runs."""
        remarks = [f"evidence of the guard: {self.report.verdict}"]
        if runs and self.servers and not any(self._servers_of(run, len(runs)) for run in runs):
            remarks.append(
                "the evidence is of other processes than the log: no worker's process id is in "
                f"both (log: {_numbers({p for run in runs for p in _worker_pids(run)})}; "
                f"evidence: {_numbers({p for server in self.servers for p in server.pids})})"
            )
        return remarks


def _worker_pids(run: Run) -> set[int]:
    return {pid for label, pid in run.pids.items() if "Worker" in label}


def _numbers(pids: set[int]) -> str:
    known = sorted(pids)
    more = f" and {len(known) - 12} more" if len(known) > 12 else ""
    return (", ".join(map(str, known[:12])) or "none") + more


def read(folders: Sequence[str]) -> Evidence:
    """Reads and judges evidence.

    Raises:
        Unreadable: a path does not exist or may not be read.
    """
    from hisparse_guard.cli.report import judge

    try:
        report = judge([*folders])
    except OSError as error:
        raise Unreadable(f"--evidence {error.filename}: {error.strerror}") from None
    return Evidence(report, tuple(_server(result) for result in report.results))


def _server(result: Result) -> Server:
    from hisparse_guard.cli.report.render.common import kernel_classes

    server = result.server
    signals = {"hisparse_on"} if any(one.hisparse for one in server.workers) else set()
    if any("mnnvl" in one.backends for one in server.workers):
        signals.add("workspace_mnnvl")
    elif result.judgement.verdict == "safe":
        signals.add("guard_verified_trtllm")
    if result.judgement.missing:
        signals.add("guard_part")
    if kernel_classes(server) == ["waits"]:
        signals.add("kernel_waits")
    return Server(frozenset(one.pid for one in server.workers), frozenset(signals))
