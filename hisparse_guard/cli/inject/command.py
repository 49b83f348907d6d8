"""`inject`: Kubernetes manifests in, the same with the guard in."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    file: Annotated[
        str, typer.Argument(metavar="[FILE|-]", help="YAML or JSON; - is standard input.")
    ] = "-",
    container: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A container to guard, in place of those that the manifest shows to run vLLM. "
            "May be given several times.",
        ),
    ] = None,
    selector: Annotated[
        str | None,
        typer.Option(
            "--selector",
            "-l",
            metavar="LABELS",
            help="Only objects or pod templates with these labels, as KEY=VALUE,KEY!=VALUE.",
        ),
    ] = None,
    evidence: Annotated[
        bool, typer.Option("--evidence", help="Have evidence files written, to an emptyDir.")
    ] = False,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A setting of the guard, as MODE=observe. May be given several times.",
        ),
    ] = None,
    image_pythonpath: Annotated[
        str,
        typer.Option(
            metavar="VALUE", help="PYTHONPATH in the image, which the manifest does not show."
        ),
    ] = "",
    allow_partial_group: Annotated[
        bool,
        typer.Option(
            "--allow-partial-group",
            help="Guard a group of pods (LeaderWorkerSet, Ray) though a part of it runs no vLLM.",
        ),
    ] = False,
    uninject: Annotated[
        bool, typer.Option("--uninject", help="Take out what inject put in.")
    ] = False,
) -> None:
    """Adds the guard to Kubernetes manifests, or takes it out.

    Every pod template that runs vLLM gets it; all else comes out as it went in. Reads any stream
    of YAML or JSON, Lists included, and writes it to standard output; what was done and why goes
    to standard error. Works as a Helm post-renderer and a KRM function. Exit code: 0 injected or
    taken out; 2 wrong usage, or not to be edited, and nothing comes out; 3 nothing was to be
    changed, and the input came out as it was.
    """
    from hisparse_guard.cli.app import usage_error
    from hisparse_guard.cli.inject import run
    from hisparse_guard.cli.inject.nodes import Refused

    if uninject and (container or selector or evidence or setting or image_pythonpath):
        raise usage_error("--uninject takes out all that was put in: it goes with no other option")
    try:
        if uninject:
            code = run.uninject_file(file)
        else:
            code = run.inject_file(
                file,
                containers=frozenset(container or ()),
                selector=selector,
                evidence=evidence,
                settings=setting or [],
                image_pythonpath=image_pythonpath,
                allow_partial_group=allow_partial_group,
            )
    except (Refused, OSError) as error:
        raise usage_error(str(error)) from error
    raise typer.Exit(code)
