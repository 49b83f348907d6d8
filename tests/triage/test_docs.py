"""docs/triage.md lists every fault with its certainties, and every field of the JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from hisparse_guard.cli.triage import triage
from hisparse_guard.cli.triage.catalogue import Fault, load
from tests.triage.logs import DATA

DOCS = (Path(__file__).parents[2] / "docs" / "triage.md").read_text(encoding="utf-8")


def row(fault: Fault) -> str:
    words = dict.fromkeys(
        when.certainty if when.effect == "fault" else f"{when.certainty} (notice)"
        for when in fault.when
    )
    return f"| `{fault.id}` | {', '.join(words)} | {fault.title} |"


def test_every_fault_is_listed_as_it_is() -> None:
    listed = [
        line
        for line in DOCS.splitlines()
        if re.match(r"\| `[a-z0-9-]+` \| (?:proven|likely|unconfirmed)\b", line)
    ]
    assert listed == [row(fault) for fault in load().faults]


def keys(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*(keys(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(keys(item) for item in value))
    return set()


def test_every_field_is_described() -> None:
    ramp = DATA / "evalscope-summary.txt"
    data = triage([str(DATA / "main-crash.log"), str(ramp)]).to_json()
    # Names, not fields.
    del data["lives"][0]["facts"]["connectors"]
    del data["lives"][0]["facts"]["backend_lines"]
    described = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", DOCS))))
    assert keys(json.loads(json.dumps(data))) - described == set()
