"""Edits of real evidence: what proves nothing must not read as safe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hisparse_guard.cli.report.report import judge
from tests.cli.report.editing import (
    DATA,
    MNNVL,
    WORKSPACE,
    Edits,
    Ranks,
    append,
    change,
    of,
    original,
    renumber,
    said,
    without,
    write,
)

edit = Edits()


@edit("rank 1 has mnnvl and no decision", "unsafe", says="mnnvl workspace under HiSparse")
def _(ranks: Ranks) -> None:
    without(ranks[1], "resolved")
    change(ranks[1], "workspace", **MNNVL)


@edit("the same with the gaps left", "unsafe")
def _(ranks: Ranks) -> None:
    without(ranks[1], "resolved", gap=True)
    change(ranks[1], "workspace", **MNNVL)


@edit("cut after the armed line", "unproven", says="no config was seen")
def _(ranks: Ranks) -> None:
    for lines in ranks:
        del lines[1:]


for _backend in ("MNNVL", "mnnvl_v2", "auto", "TRTLLM", "trtllm ", "Trtllm", "", "none"):

    @edit(f"workspaces with backend {_backend!r}", "unsafe")
    def _(ranks: Ranks, backend: str = _backend) -> None:
        for lines in ranks:
            change(lines, "workspace", backend=backend)


for _backend in (["mnnvl"], ["trtllm"], {"name": "trtllm"}, 7, True, None):

    @edit(f"workspaces with backend {_backend!r} and what is not a name", "unproven")
    def _(ranks: Ranks, backend: Any = _backend) -> None:
        for lines in ranks:
            change(lines, "workspace", backend=backend)


for _expected in ("mnnvl", "none", None, "TRTLLM"):

    @edit(f"workspaces that were expected to be {_expected!r}", "unproven")
    def _(ranks: Ranks, expected: Any = _expected) -> None:
        for lines in ranks:
            change(lines, "workspace", expected=expected)


for _answer in ({"backend": "mnnvl"}, {}, [], ["trtllm"], ["trtllm", False, 1], 0, False, [[]]):

    @edit(f"resolver answer {_answer!r} and no workspace", "unproven", says="")
    def _(ranks: Ranks, answer: Any = _answer) -> None:
        for lines in ranks:
            without(lines, "workspace")
            change(lines, "resolved", answer=answer)


@edit("decisions for mnnvl, workspaces trtllm", "unproven")
def _(ranks: Ranks) -> None:
    for lines in ranks:
        change(lines, "resolved", answer=["mnnvl", True])


@edit("a sequence number missing", "unproven", says="numbered lines are not here")
def _(ranks: Ranks) -> None:
    del ranks[1][7]


@edit("the first line missing", "unproven")
def _(ranks: Ranks) -> None:
    del ranks[1][0]


@edit("a line of schema 2", "unproven", says="schema that this version does not know")
def _(ranks: Ranks) -> None:
    append(ranks[1], "workspace", **(WORKSPACE | MNNVL), count=1)
    ranks[1][-1]["schema"] = 2


@edit("only one line of schema 2 more, without a number of its own", "unproven")
def _(ranks: Ranks) -> None:
    append(ranks[1], "workspace", **WORKSPACE)
    ranks[1][-1].update(schema=2, seq=12)


for _schema in (True, 1.5, "1", None):

    @edit(f"schema {_schema!r}", "unproven")
    def _(ranks: Ranks, schema: Any = _schema) -> None:
        ranks[1][4]["schema"] = schema


@edit("an unknown event", "unproven", says="event that this version does not know")
def _(ranks: Ranks) -> None:
    append(ranks[0], "workspace_v2", backend="mnnvl")


@edit("an unknown state", "unproven", says="state that this version does not know")
def _(ranks: Ranks) -> None:
    append(ranks[0], "workspace", **(WORKSPACE | {"state": "replaced", "backend": "mnnvl"}))


@edit("an unknown kind", "unproven", says="kind that this version does not know")
def _(ranks: Ranks) -> None:
    append(ranks[0], "workspace", **(WORKSPACE | {"kind": "tertiary"}))


@edit("an unknown rule", "unproven", says="whose rule this version does not know")
def _(ranks: Ranks) -> None:
    change(ranks[0], "resolved", rule="hisparse-2")


@edit("a field that is missing", "unproven")
def _(ranks: Ranks) -> None:
    for line in of(ranks[0], "workspace"):
        del line["expected"]


@edit("an error event", "unproven", says="vLLM is not guarded there")
def _(ranks: Ranks) -> None:
    append(ranks[1], "error", message="vLLM is not guarded there", detail=None)


@edit("the last re-creation failed", says="rank 1")
def _(ranks: Ranks) -> None:
    ranks[1][-1].update(state="failed", backend=None, error="no memory")


@edit("a re-creation failed, the count at exit is of the first", says="rank 1")
def _(ranks: Ranks) -> None:
    ranks[1].insert(-2, {**ranks[1][-1], "state": "failed", "count": 1, "at_exit": False})
    renumber(ranks[1])


@edit("destroyed and not made again", "unproven", says="destroyed")
def _(ranks: Ranks) -> None:
    append(ranks[1], "workspace", **(WORKSPACE | {"state": "destroyed", "backend": None}))


@edit("made anew without success, then destroyed, then an end", "disagreement", says="failed")
def _(ranks: Ranks) -> None:
    for state, kind in (("destroyed", None), ("failed", "primary"), ("destroyed", None)):
        fields = {"state": state, "backend": None, "kind": kind}
        append(ranks[1], "workspace", **(WORKSPACE | fields))
    append(ranks[1], "end", dropped=0)


@edit("a tensor parallel size above the world's", "unproven", says="in a world of 2")
def _(ranks: Ranks) -> None:
    for line in [line for lines in ranks for line in lines]:
        for name in ("group", "group_size", "group_rank"):
            if name in line:
                line[name] = None
        if "tensor_parallel_size" in line:
            line["tensor_parallel_size"] = 4


@edit("a workspace mnnvl between good ones", "unsafe")
def _(ranks: Ranks) -> None:
    ranks[1].insert(7, {**of(ranks[1], "workspace")[0], **MNNVL})
    renumber(ranks[1])


@edit("rank 1 decided for none", "disagreement", "unproven")
def _(ranks: Ranks) -> None:
    without(ranks[1], "workspace")
    change(ranks[1], "resolved", answer=[None, False], pinned="none")


@edit("rank 1 saw HiSparse off", "disagreement")
def _(ranks: Ranks) -> None:
    for event in ("config_seen", "resolved", "workspace"):
        change(ranks[1], event, hisparse=False)


@edit("rank 1 saw no config", "unproven")
def _(ranks: Ranks) -> None:
    without(ranks[1], "config_seen")
    for event in ("resolved", "workspace"):
        change(ranks[1], event, hisparse=False)


@edit("mnnvl and nothing that tells of HiSparse", "unproven")
def _(ranks: Ranks) -> None:
    for lines in ranks:
        without(lines, "config_seen")
        change(lines, "resolved", hisparse=False, answer=["mnnvl", True])
        change(lines, "workspace", hisparse=False, **MNNVL)


@edit("HiSparse off, and rank 1 is not there", "unproven", says="no evidence from rank 1")
def _(ranks: Ranks) -> None:
    change(ranks[0], "config_seen", hisparse=False)
    for event in ("resolved", "workspace"):
        change(ranks[0], event, hisparse=False)
    ranks[1].clear()


@edit("hisparse in words", "unproven")
def _(ranks: Ranks) -> None:
    for lines in ranks:
        for event in ("config_seen", "resolved", "workspace"):
            change(lines, event, hisparse="false")


@edit("rank 1 is not there", "partly guarded", says="no evidence from rank 1")
def _(ranks: Ranks) -> None:
    ranks[1].clear()


@edit("rank 1 was switched off", "partly guarded")
def _(ranks: Ranks) -> None:
    ranks[1][0]["settings"]["mode"] = "off"
    del ranks[1][2:]


@edit("rank 1 is of the run before", "partly guarded")
def _(ranks: Ranks) -> None:
    for line in ranks[1]:
        line["start"] = line["start"].replace("T11:", "T09:")
        line["ts"] = line["ts"].replace("T11:", "T09:")


@edit("a time that is none", "unproven")
def _(ranks: Ranks) -> None:
    ranks[1][3]["ts"] = "yesterday"


@edit("a day that is none", "unproven")
def _(ranks: Ranks) -> None:
    ranks[1][4]["ts"] = "2026-02-31T11:15:55.986399Z"


@edit("two lines with one number", "unproven", says="the same number")
def _(ranks: Ranks) -> None:
    ranks[1].append({**ranks[1][-1], "count": 3})


@edit("a decision that contradicts its answer", "unproven", says="a decision says")
def _(ranks: Ranks) -> None:
    change(ranks[1], "resolved", used="mnnvl")


@edit("a miss that was answered with mnnvl", "unproven", says="answered with mnnvl")
def _(ranks: Ranks) -> None:
    change(ranks[1], "context_miss", used="mnnvl")


@edit("an end that left out records", "unproven", says="left out 3 records")
def _(ranks: Ranks) -> None:
    append(ranks[1], "end", dropped=3)


@edit("the start of half the lines is another", "unproven", "partly guarded")
def _(ranks: Ranks) -> None:
    for line in ranks[1][6:]:
        line["start"] = "2026-12-02T11:15:42.063285Z"


@edit("no armed line, and the rest numbered anew", "unproven", says="armed line")
def _(ranks: Ranks) -> None:
    without(ranks[1], "armed")


@edit("tensor parallel size 1 in a world of 2 without data parallelism", "unproven")
def _(ranks: Ranks) -> None:
    for lines in ranks:
        del lines[2:]
        change(lines, "config_seen", tensor_parallel_size=1)


@edit("tensor parallel size 1, and a call site that was answered", "unproven")
def _(ranks: Ranks) -> None:
    for lines in ranks:
        without(lines, "resolved")
        without(lines, "workspace")
        change(lines, "config_seen", tensor_parallel_size=1, data_parallel_size=2)


@edit("the primary getter got none, the quant one did", says="rank 1")
def _(ranks: Ranks) -> None:
    for line in of(ranks[1], "workspace", kind="primary"):
        line.update(state="failed", backend=None)


@edit("an end, and destroyed after it", "unproven", says="destroyed")
def _(ranks: Ranks) -> None:
    append(ranks[1], "end", dropped=0)
    append(ranks[1], "workspace", **(WORKSPACE | {"state": "destroyed", "backend": None}))


@edit("ranks of different models", "unproven", says="different models")
def _(ranks: Ranks) -> None:
    change(ranks[0], "config_seen", model="a")
    change(ranks[1], "config_seen", model="b")


@edit("a fresh decision that differs from the pin", "unproven", says="pinned before")
def _(ranks: Ranks) -> None:
    change(ranks[1], "resolved", conflict=True)


@edit("the engine core saw HiSparse, and the workers of one rank each saw it off", "unproven")
def _(ranks: Ranks) -> None:
    core = [dict(line, pid=1, rank=None, world_size=None) for line in ranks[0][:2]]
    change(core, "config_seen", instance_id="one")
    for rank, lines in enumerate(ranks):
        del lines[2:]
        for line in lines:
            line.update(rank=rank, world_size=2)
        change(lines, "armed", ppid=1)
        config = {"hisparse": False, "source": None, "instance_id": "one"}
        change(lines, "config_seen", **config, tensor_parallel_size=1, data_parallel_size=2)
    ranks.append(core)


def test_the_evidence_as_it_stands_is_safe(tmp_path: Path) -> None:
    assert judge([DATA]).verdict == "safe"
    assert judge([DATA]).exit_code == 0
    assert judge([write(original(), tmp_path)]).verdict == "safe"


@pytest.mark.parametrize("name", edit)
def test_edit(tmp_path: Path, name: str) -> None:
    edit.check(name, tmp_path)


def test_a_run_that_ended_well_stays_safe(tmp_path: Path) -> None:
    """Workspaces are destroyed when a server is stopped."""
    ranks = original()
    for lines in ranks:
        append(lines, "workspace", **(WORKSPACE | {"state": "destroyed", "backend": None}))
        append(lines, "end", dropped=0)
    report = judge([write(ranks, tmp_path)])
    assert report.verdict == "safe", said(report)
    assert not report.results[0].server.latest
