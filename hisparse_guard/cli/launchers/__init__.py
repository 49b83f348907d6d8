"""What a command line starts in the end; `follow.py` goes from launcher to launcher."""

from __future__ import annotations

from hisparse_guard.cli.launchers.follow import follow, only_tells
from hisparse_guard.cli.launchers.way import NoSuchProgram, Started

__all__ = ["NoSuchProgram", "Started", "follow", "only_tells"]
