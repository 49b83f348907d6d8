"""Real evidence, and ways to edit it.

The evidence is of two ranks on vLLM 0.33.0, guard 0.1.0, lazy workspace; names and paths replaced.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hisparse_guard.cli.report.report import Report, judge

DATA = Path(__file__).resolve().parents[2] / "data" / "evidence"
Line = dict[str, Any]
Ranks = list[list[Line]]

MNNVL = {"backend": "mnnvl", "expected": "mnnvl"}


def original() -> Ranks:
    """The lines of rank 0 and of rank 1."""
    return [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(DATA.glob("*.jsonl"))
    ]


def write(ranks: Ranks, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, lines in enumerate(ranks):
        if lines:
            host, pid = lines[0].get("host", "node-a"), lines[0].get("pid", number)
            with (folder / f"hisparse-guard-{host}-{pid}.jsonl").open("a") as handle:
                handle.writelines(json.dumps(line) + "\n" for line in lines)
    return folder


def said(report: Report) -> str:
    reasons = [reason for result in report.results for reason in result.judgement.reasons]
    return "\n".join([*reasons, *map(str, report.evidence.problems)])


def of(lines: list[Line], event: str, **fields: Any) -> list[Line]:
    return [
        line
        for line in lines
        if line["event"] == event and all(line.get(name) == fields[name] for name in fields)
    ]


def change(lines: list[Line], event: str, **fields: Any) -> None:
    for line in of(lines, event):
        line.update(fields)


def renumber(lines: list[Line]) -> None:
    for number, line in enumerate(lines, start=1):
        line["seq"] = number


def append(lines: list[Line], event: str, **fields: Any) -> None:
    envelope = {name: lines[-1][name] for name in ("schema", "ts", "host", "pid", "rank")}
    envelope |= {name: lines[-1][name] for name in ("world_size", "start")}
    lines.append({**envelope, "event": event, "seq": lines[-1]["seq"] + 1, **fields})


def without(lines: list[Line], event: str, *, gap: bool = False) -> None:
    lines[:] = [line for line in lines if line["event"] != event]
    if not gap:
        renumber(lines)


WORKSPACE = {
    "state": "made", "backend": "trtllm", "expected": "trtllm", "kind": None, "group_rank": 1,
    "group_size": 2, "error": None, "hisparse": True, "serves": None,
}  # fmt: skip

NOT_SAFE = {"unsafe", "disagreement", "partly guarded", "failed", "unproven"}
Edit = Callable[[Ranks], object]


class Expected(NamedTuple):
    """An edit of the lines of both ranks, the verdicts that it may have, and what is said."""

    function: Edit
    verdicts: set[str]
    says: str


class Edits(dict[str, Expected]):
    """Edits by name; a decorator that takes one in."""

    def __call__(self, name: str, *verdicts: str, says: str = "") -> Callable[[Edit], Edit]:
        def enter(function: Edit) -> Edit:
            self[name] = Expected(function, set(verdicts) or NOT_SAFE, says)
            return function

        return enter

    def check(self, name: str, folder: Path) -> None:
        function, verdicts, says = self[name]
        ranks = original()
        function(ranks)
        report = judge([write(ranks, folder)])
        assert report.verdict in verdicts, said(report)
        assert says in said(report)
        assert report.exit_code in (1, 4)
