"""In builds that carry the upstream fix: the calls that do not pass what init resolved."""

from __future__ import annotations

from collections.abc import Iterator

from hisparse_guard.cli.doctor.model import Facts, Finding

IN_DOUBT = "in which settings is not known, so take it for all"


def callers(facts: Facts) -> Iterator[Finding]:
    if facts.calls_unread is not None:
        text = f"whether every call passes what init resolved cannot be told: {facts.calls_unread}"
        yield Finding("note", "caller", text)
    if facts.calls is None:
        return
    for call in facts.calls:
        yield Finding(
            "note",
            "caller",
            f"{call.file}:{call.line} ({call.function}) calls {call.getter} without the backend "
            "that init resolved, and may make an mnnvl workspace: "
            f"{call.matters or IN_DOUBT}",
        )
    if not facts.calls:
        yield Finding("ok", "caller", "each call of a getter passes the backend that init resolved")
