"""In builds that carry the upstream fix: the calls that do not pass what init resolved."""

from __future__ import annotations

from collections.abc import Iterator

from hisparse_guard.cli.doctor.model import Facts, Finding


def callers(facts: Facts) -> Iterator[Finding]:
    if facts.calls is None:
        return
    for call in facts.calls:
        yield Finding(
            "note",
            "caller",
            f"{call.file}:{call.line} does not pass the backend that init resolved, and may make an "
            f"mnnvl workspace: {call.settings}",
        )
    if not facts.calls:
        yield Finding(
            "ok", "caller", "every call of a getter passes the backend that init resolved"
        )
