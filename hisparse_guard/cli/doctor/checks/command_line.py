"""The command line and the Python that it starts."""

from __future__ import annotations

from collections.abc import Iterator

from hisparse_guard.cli.doctor.model import Facts, Finding


def command_line(facts: Facts) -> Iterator[Finding]:
    started = facts.started
    if started.via:
        yield Finding("ok", "command", f"followed through {', '.join(started.via)}")
    if started.unknown is not None:
        yield Finding("unknown", "command", started.unknown)
    options = f" with {' '.join(started.options)}" if started.options else ""
    yield Finding(
        "ok",
        "python",
        f"{facts.seen['implementation']} {facts.seen['python']} at {started.interpreter}{options}",
    )
