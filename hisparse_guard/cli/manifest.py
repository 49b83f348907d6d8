"""The manifest in a bundle: what was put there, and whether it still is."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import marshal
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "MANIFEST.json"
NAME = f"hisparse_guard/{FILE}"
SCHEMA = 1


def manifest(contents: Mapping[str, bytes], **facts: str | None) -> bytes:
    """The manifest of `contents` (relative name: bytes), with `facts` at its head."""
    hashes = {name: hashlib.sha256(contents[name]).hexdigest() for name in sorted(contents)}
    return (json.dumps({"schema": SCHEMA, **facts, "files": hashes}, indent=1) + "\n").encode()


def read(entry: Path) -> dict[str, Any] | None:
    """The manifest of what `entry` (a folder or a zip on PYTHONPATH) holds.

    Returns:
        None where there is none: a source checkout or an installed wheel.

    Raises:
        ValueError: it cannot be read.
    """
    text = _contents(entry, NAME).get(NAME)
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{entry}: {NAME} is not JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("files"), dict):
        raise ValueError(f"{entry}: {NAME} lists no files")
    return found


def differences(entry: Path) -> list[str]:
    """What of the bundle at `entry` is not as it was bundled, one line each; [] for all well.

    Byte code that Python itself has written into a writable folder is not listed. It runs instead
    of its source: what this interpreter would load is compared with the source, and what another
    one would load is named.

    Raises:
        ValueError: `entry` has no manifest or an unreadable one.
    """
    listed = read(entry)
    if listed is None:
        raise ValueError(f"{entry}: no {NAME}: not a bundle")
    contents = _contents(entry)
    contents.pop(NAME, None)
    lines = []
    for name, digest in sorted(listed["files"].items()):
        if name not in contents:
            lines.append(f"missing: {name}")
        elif hashlib.sha256(contents[name]).hexdigest() != digest:
            lines.append(f"altered: {name}")
    for name in sorted(contents.keys() - listed["files"]):
        if not _is_byte_code_of(name, contents):
            lines.append(f"not from the bundle: {name}")
    return lines


def _is_byte_code_of(name: str, contents: Mapping[str, bytes]) -> bool:
    """Whether `name` is what this interpreter compiles its source to."""
    folder, _, file = name.rpartition("__pycache__/")
    module, _, tag = file.removesuffix(".pyc").partition(".")
    tag, _, level = tag.partition(".opt-")
    source = contents.get(f"{folder}{module}.py")
    if source is None or tag != sys.implementation.cache_tag or level not in ("", "1", "2"):
        return False
    data = contents[name]
    if data[:4] != importlib.util.MAGIC_NUMBER:
        return False
    try:
        code = marshal.loads(data[16:])
        made = compile(
            source, code.co_filename, "exec", dont_inherit=True, optimize=int(level or "0")
        )
    except (ValueError, EOFError, TypeError, AttributeError, SyntaxError):
        return False
    return bool(code == made)


def _contents(entry: Path, only: str | None = None) -> dict[str, bytes]:
    """Relative name to bytes; of a folder only what Python could load from this bundle."""
    if entry.is_dir():
        found = [entry / only] if only else sorted(entry.rglob("*"))
        return {
            file.relative_to(entry).as_posix(): file.read_bytes()
            for file in found
            if file.is_file() and _of_a_bundle(file.relative_to(entry))
        }
    try:
        with zipfile.ZipFile(entry) as archive:
            names = [n for n in archive.namelist() if only in (None, n) and not n.endswith("/")]
            return {name: archive.read(name) for name in names}
    except (OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{entry}: {error}") from None


def _of_a_bundle(relative: Path) -> bool:
    first = relative.parts[0]
    return (
        first == "hisparse_guard"
        or first.partition(".")[0] == "sitecustomize"
        or (first == "__pycache__" and relative.name.startswith("sitecustomize."))
        or first.startswith("hisparse_guard-")
    )
