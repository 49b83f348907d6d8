"""`hisparse-guard ramp`: the concurrency ramp that shows whether a fix holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    base_url: str = typer.Option(
        ..., "--base-url", help="The server's address, e.g. http://127.0.0.1:8000."
    ),
    model: str = typer.Option(..., "--model", help="The model's name, as the server lists it."),
    engine_url: Annotated[
        list[str] | None,
        typer.Option(
            "--engine-url",
            help="A vLLM server behind a router at --base-url, asked for health, models and tokens."
            " Repeat it for each.",
        ),
    ] = None,
    levels: str | None = typer.Option(
        None, "--levels", help="Requests in flight, level by level [1,2,4,8,16]."
    ),
    requests: str | None = typer.Option(
        None, "--requests", help="Requests of each level, or one number for all [8,8,8,16,32]."
    ),
    isl: int | None = typer.Option(
        None, "--isl", min=1, help="Tokens of a prompt [32000]; of a first turn [80000]."
    ),
    osl: int | None = typer.Option(
        None, "--osl", min=1, help="Tokens of an answer, exact [2000]; of a turn's [220]."
    ),
    multi_turn: bool = typer.Option(
        False,
        "--multi-turn",
        help="Growing conversations in place of the ramp: 64 of 13 turns, 32 at a time.",
    ),
    conversations: int | None = typer.Option(None, "--conversations", min=1, help="[64]"),
    turns: int | None = typer.Option(None, "--turns", min=2, help="Turns of a conversation [13]."),
    turn_isl: int | None = typer.Option(
        None, "--turn-isl", min=1, help="Tokens of each later question [340]."
    ),
    seed: int | None = typer.Option(
        None, "--seed", help="Send the prompts of an earlier run again. Without: never the same."
    ),
    timeout: float = typer.Option(
        1800.0, "--timeout", min=0.1, help="Seconds one request may take."
    ),
    probe_timeout: float = typer.Option(
        300.0, "--probe-timeout", min=0.1, help="Seconds the probe of a doubtful engine may take."
    ),
    insecure: bool = typer.Option(
        False, "--insecure", help="Do not verify the server's TLS certificate."
    ),
    ca_file: Annotated[
        Path | None,
        typer.Option("--ca-file", help="Certificates (PEM) that the server's is signed by."),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", help="A file that holds the API key.")
    ] = None,
    control_url: str | None = typer.Option(
        None,
        "--control-url",
        help="A server of the same model and layout that is known to be right: its greedy answers"
        " must be the same.",
    ),
    token_ids: str | None = typer.Option(
        None,
        "--token-ids",
        metavar="LOW-HIGH",
        help="Ids of ordinary tokens, where no server there answers /tokenize [prompts of words].",
    ),
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the result as JSON.")
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Write the result as a page.")
    ] = None,
    archive: Annotated[
        Path | None,
        typer.Option(
            "--archive", metavar="FILE.tar.gz", help="Write the whole record, secrets masked."
        ),
    ] = None,
    server_log: Annotated[
        list[Path] | None,
        typer.Option(
            "--server-log", help="A log of the server: triaged, and for --archive; repeatable."
        ),
    ] = None,
    evidence: Annotated[
        list[Path] | None,
        typer.Option(
            "--evidence",
            help="Evidence files or their folder: judged, and for --archive; repeatable.",
        ),
    ] = None,
    deployment: Annotated[
        list[Path] | None,
        typer.Option(
            "--deployment",
            help="A file that says how the server is deployed, for --archive; repeatable.",
        ),
    ] = None,
    keep_names: bool = typer.Option(
        False, "--keep-names", help="Keep paths, user names, hosts and addresses in --archive."
    ),
) -> None:
    """Run the concurrency ramp and say whether the fault is gone.

    An API key is taken from --api-key-file, OPENAI_API_KEY or VLLM_API_KEY, never from the
    command line. Exit: 0 all requests done by the same server, which still serves; 1 not so, or a
    file that was asked for could not be written; 2 wrong usage; 130 interrupted.
    """
    import os
    import sys

    # Now: what follows takes long to load, and the parent may be gone by then.
    parent = os.getppid()
    if sys.stderr is not None and sys.stderr.isatty():
        print("hisparse-guard ramp: loading", file=sys.stderr)

    from hisparse_guard.cli.app import usage_error
    from hisparse_guard.cli.ramp import load as loads
    from hisparse_guard.cli.ramp.outputs import Outputs
    from hisparse_guard.cli.ramp.session import Session

    try:
        session = Session(
            base_url=base_url,
            model=model,
            engine_urls=engine_url or [],
            control_url=control_url,
            load=loads.load(
                levels=levels,
                requests=requests,
                isl=isl,
                osl=osl,
                multi_turn=multi_turn,
                conversations=conversations,
                turns=turns,
                turn_isl=turn_isl,
                seed=seed,
                timeout_s=timeout,
            ),
            pool=loads.token_range(token_ids),
            probe_timeout_s=probe_timeout,
            ca_file=ca_file,
            insecure=insecure,
            api_key_file=api_key_file,
            parent=parent,
            wanted=Outputs(
                json=json_file,
                html=html_file,
                archive=archive,
                keep_names=keep_names,
                server_logs=server_log or [],
                evidence=evidence or [],
                deployment=deployment or [],
            ),
        )
    except ValueError as error:
        raise usage_error(str(error)) from None
    raise typer.Exit(session.run())
