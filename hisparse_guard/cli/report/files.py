"""Which files are evidence. What may be evidence and cannot be read is a problem, never nothing."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from hisparse_guard.cli.packed import MAGIC
from hisparse_guard.cli.report.problems import Problem

NAME = "hisparse-guard-<host>-<pid>.jsonl"
_NAME = re.compile(r"hisparse-guard-(.+)-\d+\.jsonl", re.DOTALL)
_PACKED = re.compile(
    r"\.(t?gz|t?zst|zstd|t?bz2?|t?xz|lz4|lzma|lzo|br|zip|tar|cpio|7z|rar|z|gpg|age)(\.|$)",
    re.IGNORECASE,
)
_HEAD = 64 << 10
# As they are, or quoted once more in a container's log.
_SCHEMA, _EVENT = (re.compile(rb'\\*"%s\\*"\s*:' % name) for name in (b"schema", b"event"))


def host_of(path: str | os.PathLike[str]) -> str | None:
    """The host that an evidence file's name tells, or None."""
    match = _NAME.search(os.fspath(path).rpartition("/")[2])
    return match.group(1) if match else None


def evidence_files(paths: Iterable[str | os.PathLike[str]], problems: list[Problem]) -> list[Path]:
    """The evidence files that `paths` name: a file as it is, a folder with all below it.

    Each file once, however many of the paths or links lead to it. What may be evidence and is
    not read is added to `problems`.

    Raises:
        FileNotFoundError: a path does not exist.
    """
    search = _Search(problems)
    without: list[Path] = []
    for given in map(Path, paths):
        search.something = False
        try:
            status = given.stat()
        except FileNotFoundError:
            raise
        except OSError as error:
            search.problem(given, f"cannot be read: {error.strerror or error}")
            continue
        if stat.S_ISDIR(status.st_mode):
            search.folder(given)
        else:
            search.file(given, status)
        if not search.something:
            without.append(given)
    if search.found:
        # Whoever names a folder asks for what is in it: nothing there is no answer.
        problems += [Problem(str(given), "holds no evidence") for given in without]
    return list(search.found.values())


class _Search:
    def __init__(self, problems: list[Problem]) -> None:
        self.found: dict[tuple[int, int], Path] = {}
        # Whether there was evidence, or what may be some.
        self.something = False
        self._problems = problems
        self._folders: set[tuple[int, int]] = set()

    def problem(self, path: str | os.PathLike[str], what: str) -> None:
        self.something = True
        self._problems.append(Problem(os.fspath(path), what, host=host_of(path)))

    def folder(self, top: Path) -> None:
        def unlistable(error: OSError) -> None:
            self.problem(str(error.filename), f"cannot be listed: {error.strerror or error}")

        # Links are followed: Kubernetes and collectors make folders of them.
        for folder, folders, names in os.walk(top, onerror=unlistable, followlinks=True):
            status = os.stat(folder)  # noqa: PTH116 - a name
            if (status.st_dev, status.st_ino) in self._folders:
                folders.clear()
                # All of it was read by an earlier path.
                self.something = self.something or folder == os.fspath(top)
                continue
            self._folders.add((status.st_dev, status.st_ino))
            folders.sort()
            for name in sorted(names):
                self._entry(Path(folder, name))

    def _entry(self, path: Path) -> None:
        try:
            status = path.stat()
        except OSError as error:
            # A link that leads nowhere, or a folder that may not be entered.
            self.problem(path, f"cannot be read: {error.strerror or error}")
            return
        if path.name.lower().endswith(".jsonl"):
            self.file(path, status)
        elif _PACKED.search(path.name):
            self.problem(path, "is packed and was not read: unpack it")
        elif "hisparse-guard-" in path.name or ".jsonl" in path.name.lower():
            # Rotated and backup copies too: a worker may be in nothing else.
            self.problem(path, f"is named like evidence and was not read: name it {NAME}")
        elif stat.S_ISREG(status.st_mode):
            self._other(path)

    def _other(self, path: Path) -> None:
        """A file of another name, which may hold evidence all the same."""
        try:
            with path.open("rb") as handle:
                head = handle.read(_HEAD)
        except OSError as error:
            self.problem(path, f"cannot be read: {error.strerror or error}")
            return
        if head.startswith(MAGIC):
            self.problem(path, "is packed and was not read: unpack it")
            return
        # Other programs write UTF-16 (PowerShell): each of these letters with a zero byte.
        text = head.replace(b"\0", b"")
        if _SCHEMA.search(text) and _EVENT.search(text):
            self.problem(path, f"holds lines like evidence and was not read: name it {NAME}")

    def file(self, path: Path, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            # A pipe or a device would block the reading.
            self.problem(path, "is not a file and was not read")
        elif _PACKED.search(path.name):
            self.problem(path, "is packed and was not read: unpack it")
        else:
            self.something = True
            self.found.setdefault((status.st_dev, status.st_ino), path)
