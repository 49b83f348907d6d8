"""``hisparse-guard report``: what the evidence of guarded servers proves.

For other commands: `judge(paths)` gives a `Report` with `.verdict`, `.exit_code` and `.to_json()`;
`read_evidence(paths)` gives the records alone, as the one reader of evidence reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hisparse_guard.cli.report.command import command

if TYPE_CHECKING:
    from hisparse_guard.cli.report.reader import Evidence, read_evidence
    from hisparse_guard.cli.report.report import Report, judge

__all__ = ["Evidence", "Report", "command", "judge", "read_evidence"]


def __getattr__(name: str) -> Any:
    # msgspec and the schema are only needed once evidence is read, and `hisparse-guard --help`
    # imports this package.
    if name in ("Evidence", "read_evidence"):
        from hisparse_guard.cli.report import reader

        return getattr(reader, name)
    if name in ("Report", "judge"):
        from hisparse_guard.cli.report import report

        return getattr(report, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
