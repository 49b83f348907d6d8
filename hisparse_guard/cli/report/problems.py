"""What is wrong with evidence itself: it caps the verdict of what it may belong to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Problem:
    """Something that could not be read, or was read and cannot be right.

    Attributes:
        host: of the processes that it may belong to, where the file's name says so; None for any.
        of_process: whether it is held against processes whose lines are in the same file; else
            it is held against every server (of `host`).
    """

    file: str
    what: str
    line: int | None = None
    count: int = 1
    host: str | None = None
    of_process: bool = False

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}, line {self.line}"
        return f"{where}: {self.what}" + (f" ({self.count} times)" if self.count > 1 else "")

    def to_json(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line, "problem": self.what, "count": self.count}
