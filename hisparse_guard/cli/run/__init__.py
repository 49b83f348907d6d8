"""``hisparse-guard run``: starts a command with the guard injected."""

from __future__ import annotations

from hisparse_guard.cli.run.command import command

__all__ = ["command"]
