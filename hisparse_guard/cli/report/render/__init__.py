"""A report as text, JSON, a page and metrics: one module each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hisparse_guard.cli.output import replace_file
from hisparse_guard.cli.report.report import Report


def write_all(report: Report, *, as_json: bool, html: Path | None, prometheus: Path | None) -> None:
    """Writes the files that were asked for, and then prints.

    Raises:
        OSError: a file cannot be written; `filename` is its name. Of the output itself it is None.
    """
    if html is not None:
        from hisparse_guard.cli.report.render.html import page

        _write(html, page(report))
    if prometheus is not None:
        from prometheus_client import generate_latest

        from hisparse_guard.cli.report.render.prometheus import metrics

        # Renamed into place: node_exporter may read at any moment.
        _write(prometheus, generate_latest(metrics(report)).decode())
    if as_json:
        import json

        import typer

        typer.echo(json.dumps(report.to_json(), indent=1))
    else:
        from hisparse_guard.cli.report.render.text import print_report

        print_report(report)


def _write(target: Path, text: str | Iterable[str]) -> None:
    try:
        replace_file(target, text)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(target)) from None
