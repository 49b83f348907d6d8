"""The command ``report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hisparse_guard.cli.report.verdict import Report


def command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH…", help="Evidence files, and folders with evidence files below them."
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON (see docs/evidence.md).")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one self-contained page to FILE.")
    ] = None,
    prometheus: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write metrics for node_exporter to FILE (*.prom)."),
    ] = None,
) -> None:
    """Say what the evidence proves: a verdict per worker and per server.

    Exit code: 0 safe or not concerned; 1 unsafe, ranks disagree or some ranks unguarded;
    3 no evidence; 4 unproven or no workspace could be made; 2 wrong usage.
    """
    from hisparse_guard.cli.app import usage_error
    from hisparse_guard.cli.report import render
    from hisparse_guard.cli.report.verdict import judge

    if prometheus is not None and prometheus.suffix != ".prom":
        raise usage_error(f"--prometheus {prometheus}: node_exporter only reads names in .prom")
    try:
        report = judge(paths)
    except FileNotFoundError as error:
        raise usage_error(f"no such file or folder: {error.filename}") from None
    except OSError as error:
        raise usage_error(f"cannot be read: {error.filename}: {error.strerror}") from None
    for target, write in ((html, _write_page), (prometheus, _write_metrics)):
        if target is None:
            continue
        try:
            write(report, target)
        except OSError as error:
            raise usage_error(f"cannot write {target}: {error.strerror or error}") from None
    if as_json:
        import json

        typer.echo(json.dumps(report.to_json(), indent=1))
    else:
        from rich.console import Console

        console = Console(highlight=False, soft_wrap=False)
        if not console.is_terminal:
            # A log or a pipe has no width: fold nothing that would fit on a screen.
            console = Console(highlight=False, width=160)
        render.terminal(report, console)
    raise typer.Exit(report.exit_code)


def _write_page(report: Report, target: Path) -> None:
    from hisparse_guard.cli.output import replace_file
    from hisparse_guard.cli.report import render

    replace_file(target, render.page(report))


def _write_metrics(report: Report, target: Path) -> None:
    from prometheus_client import generate_latest

    from hisparse_guard.cli.output import replace_file
    from hisparse_guard.cli.report import render

    # Renamed into place: node_exporter may read at any moment.
    replace_file(target, generate_latest(render.metrics(report)).decode())
