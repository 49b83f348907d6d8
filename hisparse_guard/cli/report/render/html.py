"""The report as one self-contained page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone

from hisparse_guard import __version__
from hisparse_guard.cli.output import page_parts
from hisparse_guard.cli.report.exit_codes import EXIT_CODES, MEANING
from hisparse_guard.cli.report.history import misses_of, timeline
from hisparse_guard.cli.report.render.common import (
    TONE,
    clock,
    facts,
    kernel_meanings,
    notes,
    remarks,
    workspace,
)
from hisparse_guard.cli.report.report import Report

_MOST_WORKERS = 2000
_MOST_MISSES = 300


def page(report: Report) -> Iterator[str]:
    """The report as one self-contained HTML page, in parts."""
    counts = Counter(result.judgement.verdict for result in report.results)
    return page_parts(
        "report.html.j2",
        report=report,
        counts=", ".join(f"{counts[word]} {word}" for word in EXIT_CODES if counts[word]),
        meaning=MEANING,
        tone=TONE,
        version=__version__,
        written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC"),
        remarks=remarks(report),
        clock=clock,
        facts=facts,
        notes=notes,
        kernel_meanings=kernel_meanings,
        misses_of=lambda server: misses_of(server, report.evidence.misses),
        timeline_of=timeline,
        workspace=workspace,
        most_workers=_MOST_WORKERS,
        most_misses=_MOST_MISSES,
    )
