"""FlashInfer's mnnvl kernel: whether it races."""

from __future__ import annotations

from collections.abc import Iterator

from hisparse_guard.cli.doctor.model import Facts, Finding
from hisparse_guard.cli.kernel_class import RACES, WAITS


def kernel_class(facts: Facts) -> Iterator[Finding]:
    kernel = facts.kernel
    if kernel is None or not facts.concerned:
        return
    if kernel.label == "races":
        yield Finding("note", "kernel class", f"races: {kernel.reason}: {RACES}")
    elif kernel.label == "waits":
        yield Finding("note", "kernel class", f"waits: {kernel.reason}: {WAITS}")
    else:
        hint = ""
        if facts.jit_cache is not None:
            version, suggestion = facts.jit_cache
            says = f"suggests '{suggestion}', which is no proof" if suggestion else "tells nothing"
            hint = f"; its version ({version or 'unknown'}) {says}"
        yield Finding("note", "kernel class", f"unknown: {kernel.reason}{hint}")
