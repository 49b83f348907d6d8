"""The options of ``report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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

    Exit code: 0 shown to be safe or not concerned; 1 unsafe, ranks disagree or some ranks
    unguarded; 3 no evidence; 4 unproven or no workspace could be made; 2 wrong usage.
    """
    from hisparse_guard.cli.app import usage_error
    from hisparse_guard.cli.report.render import write_all
    from hisparse_guard.cli.report.report import judge

    if prometheus is not None and prometheus.suffix != ".prom":
        raise usage_error(f"--prometheus {prometheus}: node_exporter only reads names in .prom")
    try:
        report = judge(paths)
    except FileNotFoundError as error:
        raise usage_error(f"no such file or folder: {error.filename}") from None
    try:
        write_all(report, as_json=as_json, html=html, prometheus=prometheus)
    except OSError as error:
        if error.filename is None:
            raise
        raise usage_error(f"cannot write {error.filename}: {error.strerror or error}") from None
    raise typer.Exit(report.exit_code)
