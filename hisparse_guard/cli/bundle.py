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
    dest: Annotated[
        Path, typer.Argument(metavar="DEST", help="What to make; it must not exist yet.")
    ],
    format: Annotated[
        Format | None, typer.Option(help="Default: zip if DEST ends in .zip, else dir.")
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            metavar="PYTHON",
            help="Interpreter to compile for, e.g. the image's (default: this one). Another "
            "Python falls back to the source, which starts two to three milliseconds later.",
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="KIND/NAME",
            help="configmap: what the patch is for (Deployment, StatefulSet, DaemonSet, Job, Pod).",
            show_default="Deployment/vllm",
        ),
    ] = None,
    container: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="configmap: the container to guard.", show_default="vllm"
        ),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help="configmap: the container's `command` as it is now or, where it has none, its "
            "image's ENTRYPOINT.",
            show_default="vllm serve",
        ),
    ] = None,
    image_pythonpath: Annotated[
        str | None,
        typer.Option(
            metavar="VALUE",
            help="configmap: set PYTHONPATH by `env` and not by a shell around the command, with "
            "VALUE (PYTHONPATH in the image, '' for none) behind the guard; without --command.",
        ),
    ] = None,
) -> None:
    """Writes the guard as one self-contained folder, zip or ConfigMap.

    Pure Python, for CPython 3.10 and later. Prints the sha256 of the zip, or of a folder's
    manifest.
    """
    import shlex

    from hisparse_guard.cli import bundling
    from hisparse_guard.cli.app import usage_error

    form = format or (Format.zip if dest.suffix == ".zip" else Format.dir)
    if form is not Format.configmap:
        for name, given in (
            ("--workload", workload),
            ("--container", container),
            ("--command", command),
            ("--image-pythonpath", image_pythonpath),
        ):
            if given is not None:
                raise usage_error(f"{name} goes with --format configmap")
    if command is not None and image_pythonpath is not None:
        raise usage_error("--image-pythonpath leaves the command as it is: give no --command")
    try:
        words = shlex.split("vllm serve" if command is None else command)
    except ValueError as error:
        raise usage_error(f"--command {command}: {error}") from error
    try:
        if dest.exists() or dest.is_symlink():
            raise bundling.Unbundled(
                f"{dest} exists; a bundle in use must not change under its processes: "
                "choose a new name"
            )
        if not dest.absolute().parent.is_dir():
            raise bundling.Unbundled(f"{dest.absolute().parent} is not a folder")
        contents = bundling.contents(python)
        if form is Format.dir:
            digest, of = bundling.write_folder(contents, dest)
        elif form is Format.zip:
            digest, of = bundling.write_zip(contents, dest)
        else:
            patch = bundling.Patch(
                workload="Deployment/vllm" if workload is None else workload,
                container="vllm" if container is None else container,
                command=tuple(words),
                image_pythonpath=image_pythonpath,
            )
            digest, of = bundling.write_configmap(contents, dest, patch)
    except (bundling.Unbundled, OSError) as error:
        raise usage_error(str(error)) from error
    if form is Format.configmap:
        typer.echo(f"{dest}: configmap.yaml and patch.yaml, which puts the zip at {of}", err=True)
    # As sha256sum prints it, so that `sha256sum --check` reads it: a ConfigMap's in the container.
    typer.echo(f"{digest}  {of}")
