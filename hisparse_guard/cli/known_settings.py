"""The names of the guard's settings, for commands that are given some."""

from __future__ import annotations

from hisparse_guard.runtime.settings import CHOICES, EVIDENCE_DIR, PREFIX

NAMES = (EVIDENCE_DIR, *(PREFIX + name for name in CHOICES))


def misspelt(variable: str) -> str | None:
    """What is wrong with a variable that is named as a setting and is none; None for others."""
    if not variable.startswith(PREFIX) or variable in NAMES:
        return None
    return (
        f"{variable} is no setting of hisparse-guard and has no effect: use one of "
        f"{', '.join(NAMES)}"
    )
