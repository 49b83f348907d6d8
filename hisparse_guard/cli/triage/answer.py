"""Runs triage for the command line: progress, usage errors, the page or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence

from hisparse_guard.cli.app import usage_error
from hisparse_guard.cli.logs.reader import Progress, Unreadable
from hisparse_guard.cli.triage.catalogue import CatalogueError
from hisparse_guard.cli.triage.examine import Triage, triage
from hisparse_guard.cli.triage.render import page
from hisparse_guard.cli.triage.verdict import SYMPTOMS


def answer(
    logs: Sequence[str],
    evidence: Sequence[str],
    symptoms: Sequence[str],
    joined: bool,
    *,
    as_json: bool,
    verbose: bool,
) -> int:
    """Prints the answer.

    Returns:
        The exit code.

    Raises:
        typer.BadParameter: a file cannot be read, or an option is wrong.
    """
    wrong = [word for word in symptoms if word not in SYMPTOMS]
    if wrong:
        raise usage_error(f"--symptom {wrong[0]}: must be one of {', '.join(SYMPTOMS)}")
    if logs.count("-") > 1:
        raise usage_error("standard input (-) can be read once only")
    try:
        result = _with_progress(
            lambda tick: triage(
                logs, evidence=evidence, symptoms=symptoms, joined=joined, tick=tick
            )
        )
    except (Unreadable, CatalogueError) as error:
        raise usage_error(str(error)) from None
    if as_json:
        text = json.dumps(result.to_json(), indent=2, ensure_ascii=False)
    else:
        text = page(result, verbose)
    print(text)
    return result.exit_code


def _with_progress(judge: Callable[[Callable[[Progress], None] | None], Triage]) -> Triage:
    if not sys.stderr.isatty():
        return judge(None)
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

        return judge(tick)
