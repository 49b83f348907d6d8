"""What the guard decided, recorded and said on one tree, in a form that can be compared.

``python -m tests.conformance.golden PATH…`` records the guard on PATH… on each release with
HiSparse, and writes ``tests/data/golden/decisions.json``. It was recorded with the guard of commit
fe772eb, before its runtime was rewritten.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.conformance.jobs import GUARD_JOBS, Results
from tests.support.environments import UNGUARDED_RELEASES

FILE = Path(__file__).resolve().parents[1] / "data" / "golden" / "decisions.json"
RECORDED = UNGUARDED_RELEASES

# What a rank found that is not a decision: what holds the wrappers is in other tests.
PASSING = {"pid", "rank", "traceback", "before", "after", "same", "resolver", "create"}
PASSING |= {"aside", "back", "wrapped"}

# Kinds of log lines, by words that stay whatever else is said; the first that fits.
KINDS = {
    "armed": r"armed by",
    "context miss": r"context miss",
    "verified": r"workspace (verified|made again): backend=(?P<backend>\w+)",
    "at risk": r"at risk",
    "not as pinned": r"workspace is not as expected",
    "cannot serve": r"cannot serve",
}
# Said once by each rank. Of the other kinds is compared whether they are said at what level: how
# often depends on the times in their text, and the old guard said some of them twice.
ONCE = ("armed", "not as pinned", "cannot serve")
WORKSPACE = ("state", "backend", "expected")
LEVEL = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")


def compared(results: Results, label: str) -> dict[str, Any]:
    """What is compared for one job."""
    return {
        "ranks": [_rank(results, label, rank) for rank in results.guarded(label)],
        "log": dict(sorted(Counter(map(_kind, results.log(label))).items())),
    }


def _rank(results: Results, label: str, rank: dict[str, Any]) -> dict[str, Any]:
    lines = results.evidence(label, rank)

    def of(event: str, *names: str) -> list[Any]:
        # Each once: how often the same was recorded is no decision.
        said = [[_value(line, name) for name in names] for line in lines if line["event"] == event]
        return [values for i, values in enumerate(said) if values not in said[:i]]

    found = {name: value for name, value in rank.items() if name not in PASSING}
    if "error" in found:
        found["error"] = found["error"].partition("(")[0]
    return {
        "found": found,
        "resolved": of("resolved", "rule", "vllm_answer", "answer", "pinned"),
        "context_miss": of("context_miss", "where.function", "vllm_alone", "used"),
        # That one was destroyed was not recorded then.
        "workspace": [w for w in of("workspace", *WORKSPACE) if w[0] != "destroyed"],
    }


def _value(line: dict[str, Any], name: str) -> Any:
    value: Any = line
    for part in name.split("."):
        value = value and value[part]
    return value


def _kind(line: str) -> str:
    level = LEVEL.search(line)
    said = f"{level[1] if level else 'bare'}: "
    for kind, pattern in KINDS.items():
        match = re.search(pattern, line)
        if match:
            return f"{said}{kind} {match.groupdict().get('backend', '')}".rstrip()
    return f"{said}other"


def without_counts(outcome: dict[str, Any]) -> dict[str, Any]:
    """`outcome` as it is compared: counts only of what each rank says once."""
    log = {kind: n for kind, n in outcome["log"].items() if not kind.endswith(": other")}
    return {**outcome, "log": {k: n if k.endswith(ONCE) else "said" for k, n in log.items()}}


def golden(release: str, label: str) -> Any:
    """What was recorded for one job on one release."""
    (one,) = [g for g in json.loads(FILE.read_text())[label] if release in g["releases"]]
    return {"ranks": one["ranks"], "log": one["log"]}


def record(guard: list[Path]) -> None:
    outcomes: dict[str, list[Any]] = {label: [] for label in GUARD_JOBS}
    for release in RECORDED:
        print(f"{release} …", file=sys.stderr, flush=True)
        results = Results(release, guard)
        for label, groups in outcomes.items():
            outcome = json.loads(json.dumps(compared(results, label)))
            for group in groups:
                if {"ranks": group["ranks"], "log": group["log"]} == outcome:
                    group["releases"].append(release)
                    break
            else:
                groups.append({"releases": [release], **outcome})
    FILE.parent.mkdir(parents=True, exist_ok=True)
    lines = [f'"{label}": {json.dumps(groups)}' for label, groups in outcomes.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    record([Path(path).resolve() for path in sys.argv[1:]])
