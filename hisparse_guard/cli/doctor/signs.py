"""Looks through a whole vLLM tree for the words that would make the guard needed."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from hisparse_guard.cli.doctor.model import Signs

WORKSPACE = b"create_allreduce_fusion_workspace"
# As identifiers, classes and constants are spelled; byte code and compiled modules hold them too.
HISPARSE = (b"hisparse", b"HiSparse", b"HISPARSE", b"Hisparse", b"hi_sparse", b"hiSparse")
NO_FILE = "a pipe or a device in a module's place"
# Below this many bytes a file is read whole; compiled modules can be large.
_SMALL = 1 << 22
CODE = (".py", ".pyc", ".so", ".pyd", ".pth")


def read_signs(folders: Iterable[str]) -> Signs:
    """The signs in the package that lies in `folders`."""
    hisparse: list[str] = []
    workspace: list[str] = []
    unreadable: list[str] = []
    for folder in folders:
        for path, problem in _code_files(Path(folder)):
            name = os.path.relpath(path, folder)
            if problem is None:
                try:
                    found_hisparse, found_workspace = _search(path)
                except (OSError, ValueError) as error:
                    problem = str(error.__class__.__name__)
                else:
                    hisparse += [name] * found_hisparse
                    workspace += [name] * found_workspace
            if problem is not None:
                unreadable.append(f"{path} ({problem})")
    return Signs(tuple(sorted(hisparse)), tuple(sorted(workspace)), tuple(unreadable))


def _search(path: Path) -> tuple[bool, bool]:
    """Whether the file names HiSparse, and the function that makes a workspace."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size < _SMALL:
            text = file.read()
            return any(word in text for word in HISPARSE), WORKSPACE in text
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return any(data.find(word) >= 0 for word in HISPARSE), data.find(WORKSPACE) >= 0


def _code_files(folder: Path) -> Iterator[tuple[Path, str | None]]:
    """Every file that Python could import below `folder`, with what is wrong with it."""
    problems: list[tuple[Path, str | None]] = []

    def cannot_list(error: OSError) -> None:
        problems.append((Path(error.filename), f"cannot be listed: {error.strerror}"))

    if not folder.is_dir():
        yield folder, "no folder"
    visited: set[tuple[int, int]] = set()
    for root, names, files in os.walk(folder, onerror=cannot_list, followlinks=True):
        status = Path(root).stat()
        if (status.st_dev, status.st_ino) in visited:
            names.clear()
            continue
        visited.add((status.st_dev, status.st_ino))
        # Byte code beside its source; without the source Python does not import it.
        names[:] = [name for name in names if name != "__pycache__"]
        for name in names:
            if name.endswith(CODE):
                yield Path(root, name), "a folder in a module's place"
        for name in files:
            if name.endswith(CODE):
                yield Path(root, name), _problem(Path(root, name))
    yield from problems


def _problem(path: Path) -> str | None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return str(error.strerror)
    return None if stat.S_ISREG(mode) else NO_FILE
