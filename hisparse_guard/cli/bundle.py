"""`bundle`: the guard as one folder, one zip or one Kubernetes ConfigMap, in need of nothing."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class Format(str, Enum):
    dir = "dir"
    zip = "zip"
    configmap = "configmap"


def command(
    dest: Annotated[Path, typer.Argument(help="What to make; it must not exist yet.")],
    format: Annotated[
        Format | None, typer.Option(help="Default: zip if DEST ends in .zip, else dir.")
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            metavar="PYTHON",
            help="Interpreter to compile for, e.g. the image's (default: this one). Another "
            "Python falls back to the source, which starts about a third of a millisecond later.",
        ),
    ] = None,
    workload: Annotated[
        str,
        typer.Option(
            metavar="KIND/NAME",
            help="configmap: what the patch is for (Deployment, StatefulSet, DaemonSet, Job, Pod).",
        ),
    ] = "Deployment/vllm",
    container: Annotated[
        str, typer.Option(metavar="NAME", help="configmap: the container to guard.")
    ] = "vllm",
    command: Annotated[
        str,
        typer.Option(
            metavar="WORDS",
            help="configmap: the container's `command` as it is now or, where it has none, its "
            "image's ENTRYPOINT.",
        ),
    ] = "vllm serve",
    image_pythonpath: Annotated[
        str | None,
        typer.Option(
            metavar="VALUE",
            help="configmap: set PYTHONPATH by `env` and not by a shell around the command, with "
            "VALUE (PYTHONPATH in the image, '' for none) behind the guard.",
        ),
    ] = None,
) -> None:
    """Writes a self-contained, pure-Python copy of the guard for CPython 3.10 and later."""
    import shlex

    from hisparse_guard.cli import bundling
    from hisparse_guard.cli.app import usage_error

    form = format or (Format.zip if dest.suffix == ".zip" else Format.dir)
    if dest.exists() or dest.is_symlink():
        raise usage_error(
            f"{dest} exists; a bundle in use must not change under its processes: choose a new name"
        )
    if not dest.absolute().parent.is_dir():
        raise usage_error(f"{dest.absolute().parent} is not a folder")
    try:
        contents = bundling.contents(python)
        if form is Format.dir:
            digest, of = bundling.write_folder(contents, dest)
        elif form is Format.zip:
            digest, of = bundling.write_zip(contents, dest)
        else:
            patch = bundling.Patch(
                workload=workload,
                container=container,
                command=tuple(shlex.split(command)),
                image_pythonpath=image_pythonpath,
            )
            digest, of = bundling.write_configmap(contents, dest, patch)
    except (bundling.Unbundled, OSError) as error:
        raise usage_error(str(error)) from error
    # As sha256sum prints it, so that `sha256sum --check` reads it.
    typer.echo(f"{digest}  {of}")
