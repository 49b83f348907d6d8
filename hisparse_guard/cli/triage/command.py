"""The command itself: arguments, progress, output, exit code."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hisparse_guard.cli.triage.core import Triage
    from hisparse_guard.cli.triage.reader import Progress


def _with_progress(
    logs: list[str], evidence: list[str], symptoms: list[str], joined: bool
) -> Triage:
    from hisparse_guard.cli.triage.core import triage

    if not sys.stderr.isatty():
        return triage(logs, evidence=evidence, symptoms=symptoms, joined=joined)
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TimeElapsedColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def tick(progress: Progress) -> None:
            # A packed file gives more bytes than it has.
            total = progress.total if (progress.total or 0) >= progress.done else None
            bar.update(task, completed=progress.done, total=total)

        return triage(logs, evidence=evidence, symptoms=symptoms, joined=joined, tick=tick)


def command(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG...",
            help="vLLM logs, plain or packed (gzip, bzip2, xz), `-` for standard input; beside "
            "them an evalscope summary or the JSON result of `hisparse-guard ramp`.",
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON (see docs/triage.md).")
    ] = False,
    evidence: Annotated[
        list[str] | None,
        typer.Option(metavar="DIR", help="Evidence of the guard, for the verdict to use."),
    ] = None,
    symptom: Annotated[
        list[str] | None,
        typer.Option(help="What you saw and no log says: garbled, slow or hang."),
    ] = None,
    joined: Annotated[
        bool, typer.Option("--joined", help="The files are pieces of one log, oldest first.")
    ] = False,
) -> None:
    """Name the fault that a vLLM log shows.

    Says what is proven and what is only likely, with the lines that it rests on, ticks the
    deployment checklist and gives the next step. Every start in a log is judged by itself.

    Exit codes: 0 nothing wrong, 1 a fault named, 3 no vLLM log in what was given, 4 a fault
    that it does not know.
    """
    from hisparse_guard.cli.app import usage_error
    from hisparse_guard.cli.triage.catalogue import CatalogueError
    from hisparse_guard.cli.triage.core import SYMPTOMS
    from hisparse_guard.cli.triage.reader import Unreadable
    from hisparse_guard.cli.triage.render import text

    wrong = [word for word in symptom or [] if word not in SYMPTOMS]
    if wrong:
        raise usage_error(f"--symptom {wrong[0]}: must be one of {', '.join(SYMPTOMS)}")
    if logs.count("-") > 1:
        raise usage_error("standard input (-) can be read once only")
    try:
        result = _with_progress(logs, evidence or [], symptom or [], joined)
    except (Unreadable, CatalogueError) as error:
        raise usage_error(str(error)) from None
    if as_json:
        print(json.dumps(result.to_json(), indent=2, ensure_ascii=False))
    else:
        print(text(result))
    raise typer.Exit(result.exit_code)
