"""The guard's own settings: bad values, and what good ones leave open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hisparse_guard.cli.doctor.checks.flashinfer import can_make
from hisparse_guard.cli.doctor.model import Facts, Finding
from hisparse_guard.cli.known_settings import misspelt
from hisparse_guard.runtime.settings import EVIDENCE_DIR, PREFIX, read_settings
from hisparse_guard.runtime.telemetry import evidence


def settings(facts: Facts) -> Iterator[Finding]:
    chosen, problems = read_settings(facts.environment)
    for variable in sorted(facts.environment):
        if text := misspelt(variable):
            yield Finding("fix", "settings", text)
    for problem in problems:
        yield Finding("fix", "settings", problem)
    if not problems:
        written = f"in {chosen.evidence_dir}" if chosen.evidence_dir else "not written"
        text = f"mode {chosen.mode}, backend {chosen.backend}, multinode {chosen.multinode}"
        yield Finding("ok", "settings", f"{text}, evidence {written}")
    if facts.concerned:
        yield from _left_open(facts)
    if chosen.evidence_dir:
        yield from _evidence(chosen.evidence_dir)


def _left_open(facts: Facts) -> Iterator[Finding]:
    if facts.settings.mode == "off":
        yield Finding("fix", "mode", f"off: nothing is guarded; unset {PREFIX}MODE")
    elif facts.settings.mode == "observe":
        yield Finding(
            "fix",
            "mode",
            "observe: the guard records and changes nothing, so under HiSparse vLLM's own choice "
            f"is used, mnnvl included; unset {PREFIX}MODE",
        )
    if facts.settings.multinode == "keep":
        yield Finding(
            "note",
            "multinode",
            "keep: a process group that trtllm cannot serve (over several nodes; on 0.30 and 0.31 "
            "any in a multi-node world) is left with vLLM's mnnvl, which races under HiSparse; "
            f"unset {PREFIX}MULTINODE there",
        )


def _evidence(directory: str) -> Iterator[Finding]:
    folder = Path(directory)
    if not folder.is_absolute():
        text = f"{folder} is relative: a process that starts in another folder writes elsewhere"
        yield Finding("fix", "evidence", f"{EVIDENCE_DIR}: {text}")
    try:
        if not folder.exists():
            if not can_make(folder):
                yield Finding("fix", "evidence", f"{folder} does not exist and cannot be made")
            return
        evidence.check_folder(directory)
        if not can_make(folder):
            yield Finding("fix", "evidence", f"{folder} cannot be written to")
    except OSError as error:
        yield Finding("fix", "evidence", f"no evidence would be written: {error}")
