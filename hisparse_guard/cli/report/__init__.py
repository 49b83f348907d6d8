"""``hisparse-guard report``: what the evidence of guarded servers proves."""

from __future__ import annotations

from hisparse_guard.cli.report.cli import command
from hisparse_guard.cli.report.verdict import Report, judge

__all__ = ["Report", "command", "judge"]
