"""Looks through a whole vLLM tree for the words that would make the guard needed."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from hisparse_guard.cli.doctor.model import Signs

# Without regard to case; byte code and compiled modules hold them too. FlashInfer's function that
# makes a workspace, its classes of workspaces, and its own modules of the mnnvl one.
WORKSPACE = (
    b"create_allreduce_fusion_workspace",
    b"allreducefusionworkspace",
    b"trtllm_mnnvl",
)
HISPARSE = (b"hisparse", b"hi_sparse", b"hi-sparse")
_GUARD = re.compile(rb"hisparse[_-]guard")
NO_FILE = "a pipe or a device in a module's place"
# Compiled modules can be large: read in parts, which overlap by more than the longest word.
_PART = 1 << 22
_OVERLAP = 64
COMPILED = (".so", ".pyd")
# With what code may be made of, or taken from, at run time.
CODE = (".py", ".pyc", *COMPILED, ".pth", ".pyx", ".json", ".zip", ".egg", ".whl")


def read_signs(folders: Iterable[str], guard: bool = True) -> Signs:
    """The signs in the packages that lie in `folders`; a module of its own is given as a file.

    Args:
        guard: whether the name of the guard counts, which is HiSparse's too.
    """
    hisparse: list[str] = []
    workspace: list[str] = []
    unreadable: list[str] = []
    for folder in folders:
        for path, problem in code_files(Path(folder)):
            name = os.path.relpath(path, folder)
            if problem is None:
                try:
                    found_hisparse, found_workspace = _search(path, guard)
                except (OSError, ValueError) as error:
                    problem = str(error.__class__.__name__)
                else:
                    hisparse += [name] * found_hisparse
                    workspace += [name] * found_workspace
            if problem is not None:
                unreadable.append(f"{path} ({problem})")
    return Signs(tuple(sorted(hisparse)), tuple(sorted(workspace)), tuple(unreadable))


def _search(path: Path, guard: bool) -> tuple[bool, bool]:
    """Whether the file, or its name, names HiSparse; and what makes a workspace."""
    hisparse = any(word in os.fsencode(path.name).lower() for word in HISPARSE)
    workspace, end = False, b""
    with path.open("rb") as file:
        while part := file.read(_PART):
            text = end + part.lower()
            if not guard:
                text = _GUARD.sub(b"", text)
            hisparse = hisparse or any(word in text for word in HISPARSE)
            workspace = workspace or any(word in text for word in WORKSPACE)
            end = text[-_OVERLAP:]
    return hisparse, workspace


def code_files(folder: Path) -> Iterator[tuple[Path, str | None]]:
    """Every file that Python could import below `folder`, with what is wrong with it."""
    problems: list[tuple[Path, str | None]] = []

    def cannot_list(error: OSError) -> None:
        problems.append((Path(error.filename), f"cannot be listed: {error.strerror}"))

    if folder.is_file():
        yield folder, None
    elif not folder.is_dir():
        yield folder, "no folder"
    visited: set[tuple[int, int]] = set()
    for root, names, files in os.walk(folder, onerror=cannot_list, followlinks=True):
        status = Path(root).stat()
        if (status.st_dev, status.st_ino) in visited:
            names.clear()
            continue
        visited.add((status.st_dev, status.st_ino))
        if "__pycache__" in names:
            yield from _stale_bytecode(Path(root))
        # Byte code beside its source; without the source Python does not import it.
        names[:] = [name for name in names if name != "__pycache__"]
        for name in names:
            if name.endswith(CODE):
                yield Path(root, name), "a folder in a module's place"
        for name in files:
            if name.endswith(COMPILED) and f"{name.partition('.')[0]}.py" in files:
                yield Path(root, name), "a compiled module in front of its source"
            elif name.endswith(CODE) or ".so." in name:
                yield Path(root, name), _problem(Path(root, name))
    yield from problems


def _stale_bytecode(folder: Path) -> Iterator[tuple[Path, str | None]]:
    """Byte code of another source that Python runs nevertheless, since it compares no times.

    By PEP 552: flags in the second word, of which the first bit says that a hash of the source
    follows.
    """
    for path in sorted(Path(folder, "__pycache__").glob("*.pyc")):
        source = folder / f"{path.name.partition('.')[0]}.py"
        with contextlib.suppress(OSError):
            with path.open("rb") as file:
                head = file.read(16)
            hashed = len(head) == 16 and head[4] & 1
            if hashed and head[8:] != importlib.util.source_hash(source.read_bytes()):
                yield path, f"made of another {source.name}, and run instead of it: delete it"


def _problem(path: Path) -> str | None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return str(error.strerror)
    return None if stat.S_ISREG(mode) else NO_FILE
