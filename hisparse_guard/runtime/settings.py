"""The settings of the guard: the only place that knows their names and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

PREFIX = "HISPARSE_GUARD_"
EVIDENCE_DIR = PREFIX + "EVIDENCE_DIR"
TRACE_CONTEXT = PREFIX + "TRACE_CONTEXT"

# name -> valid values; the first is the default.
CHOICES: dict[str, tuple[str, ...]] = {
    "MODE": ("enforce", "observe", "strict", "off"),
    "BACKEND": ("trtllm", "none"),
    "MULTINODE": ("none", "keep"),
    "TRACE_CONTEXT": ("0", "1"),
}


class Settings(NamedTuple):
    """What the environment says; the fields are named as in the evidence."""

    mode: str = "enforce"
    backend: str = "trtllm"
    multinode: str = "none"
    trace_context: bool = False
    evidence_dir: str | None = None


def read_settings(environ: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """The settings in `environ`, and one line for each value that is not valid.

    A value that is not valid counts as the default; unset and empty mean the default.
    """
    problems: list[str] = []
    chosen: dict[str, str] = {}
    for name, valid in CHOICES.items():
        value = environ.get(PREFIX + name, "").strip()
        chosen[name] = value.lower() or valid[0]
        if chosen[name] not in valid:
            chosen[name] = valid[0]
            problems.append(
                f"{PREFIX}{name}={value!r} is not valid and counts as {valid[0]}: "
                f"use one of {', '.join(valid)}"
            )
    known = {PREFIX + name for name in CHOICES} | {EVIDENCE_DIR}
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and variable not in known:
            problems.append(
                f"{variable} is no setting of hisparse-guard and has no effect: "
                f"use one of {', '.join(sorted(known))}"
            )
    settings = Settings(
        mode=chosen["MODE"],
        backend=chosen["BACKEND"],
        multinode=chosen["MULTINODE"],
        trace_context=chosen["TRACE_CONTEXT"] == "1",
        evidence_dir=environ.get(EVIDENCE_DIR, "").strip() or None,
    )
    return settings, problems
