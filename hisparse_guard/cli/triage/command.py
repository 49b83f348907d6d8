"""The options of `hisparse-guard triage`."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG...",
            help="vLLM logs, plain or packed (gzip, bzip2, xz, zstd), `-` for standard input; "
            "beside them an evalscope summary or the JSON result of `hisparse-guard ramp`.",
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON (see docs/triage.md).")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show every run, all evidence and the checklist.")
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
    """Say by its log whether a server is all right.

    Exit codes: 0 shown to be healthy, 1 a fault named, 3 no vLLM log in what was given, 4 not
    shown to be healthy (trouble that it does not know, or a log that does not tell).
    """
    from hisparse_guard.cli.triage.answer import answer

    raise typer.Exit(
        answer(logs, evidence or [], symptom or [], joined, as_json=as_json, verbose=verbose)
    )
