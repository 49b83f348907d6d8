"""The report as gauges, for node_exporter's textfile collector."""

from __future__ import annotations

import re

from prometheus_client import CollectorRegistry, Gauge

from hisparse_guard.cli.output import printable
from hisparse_guard.cli.report.exit_codes import EXIT_CODES
from hisparse_guard.cli.report.model import Process
from hisparse_guard.cli.report.render.common import kernel_classes
from hisparse_guard.cli.report.report import Report, Result
from hisparse_guard.cli.report.worker_verdict import serves


class _Gauges:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def make(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"hisparse_guard_{name}", text, labels, registry=self.registry)


def _word(verdict: str) -> str:
    return re.sub(r"\W", "_", verdict)


def metrics(report: Report) -> CollectorRegistry:
    """The report as gauges.

    All runs stay in as long as their evidence is kept. ``latest="true"`` are those that are not
    shown to have ended: alert on these.
    """
    gauges = _Gauges()
    make = gauges.make
    make("report_exit_code", "Exit code of hisparse-guard report: 0 is fine.").set(report.exit_code)
    make("report_timestamp_seconds", "When this report was made.").set_to_current_time()
    make("evidence_files", "Evidence files read.").set(report.evidence.files)
    make("evidence_torn_files", "Evidence files with a last line cut short.").set(
        len(report.evidence.torn)
    )
    make("evidence_problems", "All problems with the evidence.").set(
        sum(problem.count for problem in report.evidence.problems)
    )
    of_run = ("server", "model", "latest", "kernel_class")
    verdicts = make("server_verdict", "1 for the verdict on a server.", *of_run, "verdict")
    ranks = make("server_ranks", "Ranks that reported, and that exist.", *of_run, "state")
    workers = make(
        "worker_verdict", "1 for the verdict on a worker.",
        *of_run, "host", "rank", "pid", "backend", "verdict",
    )  # fmt: skip
    misses = make(
        "worker_context_misses", "Times vLLM's config was asked for outside its context.",
        *of_run, "host", "rank", "pid",
    )  # fmt: skip
    for result in report.results:
        run = _run_labels(result)
        server, judgement = result.server, result.judgement
        for verdict in EXIT_CODES:
            if verdict != "no evidence":
                verdicts.labels(*run, _word(verdict)).set(verdict == judgement.verdict)
        if server.workers:
            reported = {one.rank for one in server.workers if one.rank is not None}
            ranks.labels(*run, "reported").set(len(reported))
            if server.world_size is not None:
                ranks.labels(*run, "world").set(server.world_size)
        for process, word in zip(server.workers, judgement.workers, strict=True):
            rank = "" if process.rank is None else str(process.rank)
            who = (*run, printable(process.host), rank, str(process.pid))
            workers.labels(*who, _backends(process), _word(word)).set(1)
            misses.labels(*who).set(process.miss_count)
    return gauges.registry


def _run_labels(result: Result) -> tuple[str, str, str, str]:
    server = result.server
    return (
        printable(server.identifier),
        printable(server.model or ""),
        "true" if server.latest else "false",
        printable(",".join(kernel_classes(server))),
    )


def _backends(process: Process) -> str:
    found = {
        standing.backend if standing.present else serves(process, standing)
        for standing in process.groups.values()
    }
    return printable(",".join(sorted(one for one in found if one)))
