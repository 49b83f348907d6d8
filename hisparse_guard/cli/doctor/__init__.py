"""``hisparse-guard doctor``: what an environment is, and what the guard would do in it."""

from __future__ import annotations

from hisparse_guard.cli.doctor.command import command

__all__ = ["command"]
