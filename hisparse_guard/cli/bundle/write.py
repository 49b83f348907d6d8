"""A bundle on disk: whole or not at all, in place of nothing, readable by every user."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from hisparse_guard.cli import manifest
from hisparse_guard.cli.bundle.build import Contents, Unbundled, zipped
from hisparse_guard.cli.bundle.configmap import ENTRY
from hisparse_guard.cli.bundle.configmap import configmap as configmap_of
from hisparse_guard.cli.output import printable


def check_destination(dest: Path, *, on_path: bool) -> None:
    """Says what is wrong with `dest` before anything is made.

    Args:
        on_path: it is to stand on PYTHONPATH.

    Raises:
        Unbundled: it exists, has no folder to be in, cannot be printed, or cannot stand on
            PYTHONPATH.
    """
    # The line with its sha256 is for terminals, and for `sha256sum --check`.
    if not str(dest).isprintable():
        raise Unbundled(f"{printable(str(dest))} holds what cannot be printed: choose another name")
    if dest.exists() or dest.is_symlink():
        raise _exists(dest)
    if not dest.absolute().parent.is_dir():
        raise Unbundled(f"{dest.absolute().parent} is not a folder")
    if on_path and os.pathsep in str(dest.absolute()):
        raise Unbundled(
            f"{dest.absolute()} cannot stand on PYTHONPATH, since it holds a {os.pathsep!r}: "
            "choose another name"
        )


def _exists(dest: Path) -> Unbundled:
    return Unbundled(
        f"{dest} exists; a bundle in use must not change under its processes: choose a new name"
    )


def folder(contents: Contents, dest: Path) -> tuple[str, Path]:
    """Writes the bundle as a folder.

    Returns:
        The sha256 of its manifest, which holds those of all other files, and the manifest's path.
    """
    byte_code = {}
    for name, data in contents.compiled.items():
        parent, _, module = name.rpartition("/")
        cached = f"__pycache__/{module.removesuffix('.py')}.{contents.cache_tag}.pyc"
        byte_code[f"{parent}/{cached}" if parent else cached] = data
    everything = contents.sealed(byte_code)
    with tempfile.TemporaryDirectory(dir=dest.absolute().parent, prefix=f".{dest.name}.") as made:
        whole = Path(made) / dest.name
        for name, data in everything.items():
            file = whole / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            file.chmod(0o644)
        for path in (whole, *(p for p in whole.rglob("*") if p.is_dir())):
            path.chmod(0o755)
        try:
            # Takes the name, or finds it taken; a folder is then renamed onto an empty one only.
            dest.mkdir()
            whole.rename(dest)
        except FileExistsError:
            raise _exists(dest) from None
    return hashlib.sha256(everything[manifest.NAME]).hexdigest(), dest / manifest.NAME


def zip_file(contents: Contents, dest: Path) -> tuple[str, Path]:
    """Writes the bundle as one zip; returns its sha256 and its path."""
    data = zipped(contents, small=False)
    _write_whole(dest, data)
    return hashlib.sha256(data).hexdigest(), dest


def configmap(contents: Contents, dest: Path) -> tuple[str, Path]:
    """Writes a ConfigMap that holds the zip.

    Returns:
        The sha256 of the zip, and its path in a container that mounts the ConfigMap.

    Raises:
        Unbundled: larger than Kubernetes takes.
    """
    import yaml

    data = zipped(contents, small=True)
    text = yaml.safe_dump(configmap_of(data), sort_keys=False, width=1 << 30)
    _write_whole(dest, text.encode())
    return hashlib.sha256(data).hexdigest(), Path(ENTRY)


def _write_whole(dest: Path, data: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=dest.absolute().parent, prefix=f".{dest.name}.") as made:
        whole = Path(made) / dest.name
        whole.write_bytes(data)
        whole.chmod(0o644)
        try:
            # A link never takes the place of another file, as a renamed file does.
            dest.hardlink_to(whole)
        except FileExistsError:
            raise _exists(dest) from None
