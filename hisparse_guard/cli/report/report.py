"""Evidence files in, a report out: read, put together, judged."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hisparse_guard.cli.report.exit_codes import EXIT_CODES, Verdict, severity, worst
from hisparse_guard.cli.report.model import Process, process_of
from hisparse_guard.cli.report.problems import Problem
from hisparse_guard.cli.report.reader import Evidence, read_evidence
from hisparse_guard.cli.report.server_verdict import Judgement, judge_server
from hisparse_guard.cli.report.servers import Server, servers_of


@dataclass(slots=True)
class Result:
    """A server run and its verdict."""

    server: Server
    judgement: Judgement


@dataclass(slots=True)
class Report:
    """What the evidence proves.

    Attributes:
        results: the worst first, then the latest.
        bystanders: processes that saw HiSparse off and belong to no server.
        problems: reading problems that belong to no process.
    """

    verdict: Verdict
    results: list[Result]
    bystanders: list[Process]
    problems: list[Problem]
    evidence: Evidence

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """The form that ``report --json`` prints; described in docs/evidence.md."""
        from hisparse_guard.cli.report.render.as_json import report_json

        return report_json(self)


def judge(paths: Iterable[str | os.PathLike[str]]) -> Report:
    """Reads evidence and judges every server in it.

    Args:
        paths: evidence files and folders of them, of any mix of hosts and restarts.

    Raises:
        FileNotFoundError: a path does not exist.
    """
    return judge_evidence(read_evidence(paths))


def judge_evidence(evidence: Evidence) -> Report:
    """Judges what was read."""
    processes = [process_of(found, evidence.misses) for found in evidence.processes]
    servers, bystanders = servers_of(processes)
    loose = [problem for problem in evidence.problems if not problem.of_process]
    results = [Result(server, judge_server(server, loose)) for server in servers]
    results.sort(key=lambda one: one.server.start, reverse=True)
    results.sort(key=lambda one: severity(one.judgement.verdict))
    verdicts = [result.judgement.verdict for result in results]
    if bystanders:
        verdicts.append("not HiSparse")
    if loose:
        # Whatever they are of, it may be a server that nothing else tells of.
        verdicts.append("unproven")
    return Report(worst(verdicts), results, bystanders, loose, evidence)
