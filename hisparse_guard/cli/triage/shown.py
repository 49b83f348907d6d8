"""How lines and names of a log are shown: printable, masked, and of bounded length."""

from __future__ import annotations

from hisparse_guard.cli.masking import mask
from hisparse_guard.cli.output import printable
from hisparse_guard.cli.triage.model import Place

_MOST = 400


def shown(text: str, width: int = _MOST) -> str:
    """`text` as it is echoed."""
    text = mask(text[: 4 * _MOST])
    if len(text) > width:
        text = text[: width - 1] + "…"
    return printable(text.replace("\t", "    "))


def where(place: Place) -> str:
    """`file:line, time, process (rank)` of a place."""
    parts = [f"{shown(place.file, 120)}:{place.number}"]
    if place.time:
        parts.append(shown(place.time, 40))
    if place.process:
        pid = f" pid {place.pid}" if place.pid is not None else ""
        parts.append(shown(place.process, 60) + pid)
    if place.rank:
        parts.append(shown(place.rank, 40))
    return ", ".join(parts)
