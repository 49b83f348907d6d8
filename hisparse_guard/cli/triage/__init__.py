"""`hisparse-guard triage`: is this server all right, and which known fault does its log show?

`triage(paths, …)` answers with a `Triage` that has `.exit_code` and `.to_json()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hisparse_guard.cli.triage.command import command

if TYPE_CHECKING:
    from hisparse_guard.cli.triage.examine import Triage, triage

__all__ = ["Triage", "command", "triage"]


def __getattr__(name: str) -> Any:
    # The catalogue and its expressions are only needed once a log is read, and
    # `hisparse-guard --help` imports this package.
    if name in ("Triage", "triage"):
        from hisparse_guard.cli.triage import examine

        return getattr(examine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
