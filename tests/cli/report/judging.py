"""The report on evidence made to order, and what it says."""

from __future__ import annotations

from pathlib import Path

from hisparse_guard.cli.report.render.common import notes
from hisparse_guard.cli.report.report import Report, judge
from tests.cli.report.samples import Process


def judged(tmp_path: Path, *processes: Process) -> Report:
    for process in processes:
        process.write(tmp_path)
    return judge([tmp_path])


def verdicts(report: Report) -> list[str]:
    return [result.judgement.verdict for result in report.results]


def why(report: Report) -> str:
    first = report.results[0]
    return "\n".join(first.judgement.reasons + notes(first.server))
