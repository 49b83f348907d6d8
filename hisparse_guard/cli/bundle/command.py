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
) -> None:
    """Writes the guard as one self-contained folder, zip or ConfigMap.

    Pure Python, for CPython 3.10 and later. The same input gives the same bytes. Prints the sha256
    of the zip (of a ConfigMap: of the zip in it), or of a folder's manifest.
    """
    from hisparse_guard.cli.app import usage_error
    from hisparse_guard.cli.bundle import build, write

    form = format or (Format.zip if dest.suffix == ".zip" else Format.dir)
    try:
        write.check_destination(dest, on_path=form is not Format.configmap)
        contents = build.contents(python)
        if form is Format.dir:
            digest, of = write.folder(contents, dest)
        elif form is Format.zip:
            digest, of = write.zip_file(contents, dest)
        else:
            digest, of = write.configmap(contents, dest)
    except (build.Unbundled, OSError) as error:
        raise usage_error(str(error)) from error
    # As sha256sum prints it, so that `sha256sum --check` reads it: a ConfigMap's in the container.
    typer.echo(f"{digest}  {of}")
