"""What holds for any edit and any split of real evidence.

More examples: ``HYPOTHESIS_EXAMPLES=10000 pytest tests/cli/report/test_properties.py``.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse_guard.cli.report.report import Report, judge
from tests.cli.report.editing import original, write

EXAMPLES = int(os.environ.get("HYPOTHESIS_EXAMPLES", "150"))
Line = dict[str, Any]

seeds = st.integers(0, 2**32).map(random.Random)
backends = st.sampled_from(["mnnvl", "MNNVL", "auto", "mnnvl_v2", "none", "", "trtllm2"])
# Values that no guard writes into any field, or that say something else than the evidence does.
wrong = st.sampled_from(
    [None, True, False, -1, 0, 1, 5, 1.5, 10**30, "", "x", "mnnvl", "trtllm", "none", [], {},
     ["mnnvl", True], ["trtllm", False], {"backend": "mnnvl"}, "\x1b[31m"]
)  # fmt: skip
# Fields whose change takes away or contradicts a proof, whatever the value.
PROOF = [
    ("workspace", "backend"), ("workspace", "expected"), ("resolved", "answer"),
]  # fmt: skip


def judged(lines: list[Line], spread: random.Random | None = None, files: int = 2) -> Report:
    """The report on lines, each written to one of several files, in any order."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if spread is None:
            ranks = [[x for x in lines if x.get("pid") == pid] for pid in (4101, 4102)]
            write(ranks, folder)
        else:
            lines = list(lines)
            spread.shuffle(lines)
            for line in lines:
                with (folder / f"{spread.randrange(files)}.jsonl").open("a") as handle:
                    handle.write(json.dumps(line) + "\n")
        return judge([folder])


def all_lines() -> list[Line]:
    return [line for rank in original() for line in rank]


@settings(max_examples=EXAMPLES, deadline=None)
@given(random=seeds, files=st.integers(1, 12), twice=st.lists(st.integers(0, 23), max_size=24))
def test_how_lines_are_spread_and_repeated_changes_nothing(
    random: random.Random, files: int, twice: list[int]
) -> None:
    lines = all_lines()
    report = judged(lines + [lines[at] for at in twice], random, files)
    assert (report.verdict, report.evidence.problems) == ("safe", [])


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    random=seeds,
    at=st.sets(st.integers(0, 23), max_size=20),
    bad=st.integers(0, 23),
    backend=backends,
)
def test_unsafe_is_never_taken_back(
    random: random.Random, at: set[int], bad: int, backend: str
) -> None:
    """A line that says another workspace under HiSparse; whatever else is there or not."""
    lines = all_lines()
    workspaces = [line for line in lines if line["event"] == "workspace"]
    strange = {**workspaces[bad % len(workspaces)], "backend": backend, "at_exit": False}
    kept = [line for number, line in enumerate(lines) if number not in at]
    for fewer in ([strange], [*kept, strange], [*lines, strange]):
        report = judged(fewer, random, 4)
        assert (report.verdict, report.exit_code) == ("unsafe", 1)


@settings(max_examples=EXAMPLES, deadline=None)
@given(random=seeds, gone=st.sets(st.integers(0, 23), min_size=1, max_size=23))
def test_lines_that_are_missing_are_never_safe(random: random.Random, gone: set[int]) -> None:
    """But for the last ones, which nobody can know of: proof has to be left for each rank."""
    lines = all_lines()
    kept = [line for number, line in enumerate(lines) if number not in gone]
    report = judged(kept, random, 3)
    if report.exit_code == 0:
        for pid in (4101, 4102):
            seqs = sorted(line["seq"] for line in kept if line["pid"] == pid)
            assert seqs == list(range(1, len(seqs) + 1))
            left = [line for line in kept if line["pid"] == pid and line["event"] == "workspace"]
            assert any(line["state"] in ("made", "verified") for line in left)


@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_proof_that_is_taken_away_is_never_safe(data: st.DataObject) -> None:
    """The same field of every line of one rank says something else."""
    event, name = data.draw(st.sampled_from(PROOF))
    pid = data.draw(st.sampled_from([4101, 4102]))
    lines = all_lines()
    mine = [line for line in lines if line["pid"] == pid and line["event"] == event]
    value = data.draw(wrong.filter(lambda one: one not in (mine[0][name], "trtllm")))
    for line in mine:
        line[name] = value
    report = judged(lines)
    assert report.exit_code != 0, value


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    at=st.integers(0, 23),
    name=st.sampled_from(
        ["schema", "event", "host", "pid", "rank", "world_size", "start", "seq", "state",
         "backend", "answer", "hisparse", "group_rank", "group_size", "expected"]
    ),
    value=wrong,
)  # fmt: skip
def test_one_field_that_is_changed_is_never_better(at: int, name: str, value: Any) -> None:
    """Safe only where the line still says what it said, or less of what is no proof."""
    lines = all_lines()
    line = lines[at]
    if name not in line or line[name] == value:
        return
    before = dict(line)
    line[name] = value
    report = judged([line], random.Random(1), 1) if len(lines) == 1 else judged_as_is(lines)
    if report.exit_code == 0:
        # A line that does not know its rank yet; HiSparse that the others have seen; the last
        # number of the process.
        harmless = {
            "rank": value is None,
            "world_size": value is None,
            "hisparse": value is False,
            "group_rank": value is None,
            "group_size": value is None,
            # The same backend, in the shape that older releases of vLLM answer in.
            "answer": value == "trtllm",
        }
        proof_is_left = before["event"] == "workspace" and before["at_exit"]
        assert harmless.get(name) or proof_is_left, (before["event"], name, value)


def judged_as_is(lines: list[Line]) -> Report:
    """Lines stay in the file of the rank that wrote them, whatever they say."""
    with tempfile.TemporaryDirectory() as scratch:
        for number, half in enumerate((lines[:12], lines[12:])):
            text = "".join(json.dumps(line) + "\n" for line in half)
            Path(scratch, f"hisparse-guard-node-a-{4101 + number}.jsonl").write_text(text)
        return judge([scratch])


@settings(max_examples=EXAMPLES, deadline=None)
@given(cut=st.integers(1, 6000), which=st.integers(0, 1))
def test_a_file_cut_anywhere(cut: int, which: int) -> None:
    """Safe only where it was cut between lines, with proof left."""
    ranks = original()
    with tempfile.TemporaryDirectory() as scratch:
        folder = write(ranks, Path(scratch))
        path = sorted(folder.iterdir())[which]
        whole = path.read_bytes()
        left = whole[:-cut]
        path.write_bytes(left)
        report = judge([folder])
        if report.exit_code == 0:
            assert whole[len(left) - 1 : len(left)] == b"\n" or whole[len(left) :][:1] == b"\n"
            assert b'"workspace"' in left


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    extra=st.one_of(
        st.binary(min_size=1, max_size=200).filter(lambda data: data.strip(b" \t\r\n\f\v") != b""),
        st.dictionaries(st.sampled_from(["schema", "event", "x"]), wrong).map(
            lambda line: json.dumps(line).encode()
        ),
    ),
    at=st.integers(0, 12),
)
def test_a_line_that_is_not_understood_is_never_safe(extra: bytes, at: int) -> None:
    ranks = original()
    with tempfile.TemporaryDirectory() as scratch:
        path = sorted(write(ranks, Path(scratch)).iterdir())[1]
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*lines[:at], extra + b"\n", *lines[at:]]))
        assert judge([scratch]).exit_code != 0
