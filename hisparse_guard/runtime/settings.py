"""The settings of the guard: the only place that knows their names and values."""

from collections.abc import Mapping
from typing import NamedTuple

PREFIX = "HISPARSE_GUARD_"
EVIDENCE_DIR = PREFIX + "EVIDENCE_DIR"

# name -> valid values, the first is the default; in the order of the fields of `Settings`.
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
    chosen: list[str] = []
    problems: list[str] = []
    for name, valid in CHOICES.items():
        given = environ.get(PREFIX + name, "").strip()
        chosen.append(given.lower() if given.lower() in valid else valid[0])
        if given and given.lower() not in valid:
            problems.append(
                f"{PREFIX}{name}={given!r} is not valid and counts as {valid[0]}: "
                f"use one of {', '.join(valid)}"
            )
    mode, backend, multinode, trace = chosen
    evidence_dir = environ.get(EVIDENCE_DIR, "").strip() or None
    return Settings(mode, backend, multinode, trace == "1", evidence_dir), problems
