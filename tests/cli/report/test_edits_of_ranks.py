"""Edits of real evidence: ranks, worlds, groups and hosts that are not whole."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from hisparse_guard.cli.report.report import judge
from tests.cli.report.editing import Edits, Ranks, change, of, original, renumber, write

edit = Edits()


@edit("rank 5 in place of rank 1", "unproven", says="no evidence from rank 1")
def _(ranks: Ranks) -> None:
    for line in ranks[1]:
        line["rank"] = 5


@edit("rank -1 in place of rank 1", "unproven", says="no evidence from rank 1")
def _(ranks: Ranks) -> None:
    for line in ranks[1]:
        line["rank"] = -1


@edit("rank 0 twice", "partly guarded")
def _(ranks: Ranks) -> None:
    for line in ranks[1]:
        line["rank"] = 0


@edit("no rank known", "unproven")
def _(ranks: Ranks) -> None:
    for line in ranks[1]:
        line["rank"] = None


@edit("no world size known", "unproven")
def _(ranks: Ranks) -> None:
    for line in ranks[0] + ranks[1]:
        line["world_size"] = None


for _size in (0, 1, -2, 3, 10**12):

    @edit(f"a world of {_size}")
    def _(ranks: Ranks, size: int = _size) -> None:
        for line in ranks[0] + ranks[1]:
            line["world_size"] = size


@edit("each rank a group of its own", "unproven", says="tensor parallel group of 2 ranks")
def _(ranks: Ranks) -> None:
    for lines in ranks:
        for event in ("resolved", "workspace"):
            change(lines, event, group_rank=0, group_size=1)


@edit("both ranks are rank 0 of their group", "unproven")
def _(ranks: Ranks) -> None:
    change(ranks[1], "resolved", group_rank=0)
    change(ranks[1], "workspace", group_rank=0)


@edit("a group of 4 of which 2 are here", "unproven")
def _(ranks: Ranks) -> None:
    for lines in ranks:
        change(lines, "resolved", group_size=4)
        change(lines, "workspace", group_size=4)


@edit("a second group without a workspace", "unproven")
def _(ranks: Ranks) -> None:
    for lines in ranks:
        line = copy.deepcopy(of(lines, "resolved")[0])
        lines.append({**line, "group": "9", "seq": 13})
        change(lines, "workspace", group="2")
        for line in of(lines, "resolved")[:-1]:
            line["group"] = "2"


@edit("hosts that meet at a loopback address", says="no evidence from rank")
def _(ranks: Ranks) -> None:
    for line in ranks[1]:
        line["host"] = "node-b"


for _address in (
    "tcp://localhost:1", "tcp://[::1]:1", "tcp://127.1.2.3:1", "tcp://0.0.0.0:1", "file:///tmp/x",
    "env://", "tcp://127.1:1", "tcp://[::ffff:127.0.0.1]:1", "tcp://LOCALHOST:1", "tcp://:1", "?",
):  # fmt: skip

    @edit(f"hosts that meet at {_address}", says="no evidence from rank")
    def _(ranks: Ranks, address: str = _address) -> None:
        for lines, host in zip(ranks, ("node-a", "node-b"), strict=True):
            change(lines, "resolved", rendezvous=address)
            for line in lines:
                line["host"] = host


def _groups(ranks: Ranks, tensor_parallel_size: int | None, **fields: int | None) -> None:
    for lines in ranks:
        change(lines, "config_seen", tensor_parallel_size=tensor_parallel_size)
        for event in ("resolved", "workspace"):
            change(lines, event, **fields)


for _size in (None, 1):

    @edit(f"groups of one rank, tensor parallel size {_size}", "unproven", says="of its ranks")
    def _(ranks: Ranks, size: int | None = _size) -> None:
        _groups(ranks, size, group_rank=0, group_size=1)


@edit("both ranks are the first of a group of unknown size", "unproven")
def _(ranks: Ranks) -> None:
    _groups(ranks, None, group_rank=0, group_size=None)


@edit("ranks of a group in another order than a tensor parallel one", "unproven", says="parallel")
def _(ranks: Ranks) -> None:
    for number, lines in enumerate(ranks):
        _groups([lines], 2, group_rank=1 - number)


@edit("proof for the tensor parallel size of one config of two", "unproven", says="of 4 ranks")
def _(ranks: Ranks) -> None:
    for lines in ranks:
        lines.insert(2, {**of(lines, "config_seen")[0], "tensor_parallel_size": 4})
        renumber(lines)


@edit("a world of one rank, whose group is not known", "unproven", says="in a world of 1")
def _(ranks: Ranks) -> None:
    del ranks[1]
    _groups(ranks, 1, group_rank=None, group_size=None)
    for line in ranks[0]:
        line["world_size"] = line["world_size"] and 1


@edit("one of two data parallel replicas", "unproven", says="for 4 ranks")
def _(ranks: Ranks) -> None:
    for lines in ranks:
        change(lines, "config_seen", tensor_parallel_size=2, data_parallel_size=2)


@pytest.mark.parametrize("name", edit)
def test_edit(tmp_path: Path, name: str) -> None:
    edit.check(name, tmp_path)


def test_both_hosts_of_a_loopback_address_are_servers(tmp_path: Path) -> None:
    ranks = original()
    edit["hosts that meet at a loopback address"].function(ranks)
    report = judge([write(ranks, tmp_path)])
    assert [one.judgement.missing for one in report.results] in ([[0], [1]], [[1], [0]])
