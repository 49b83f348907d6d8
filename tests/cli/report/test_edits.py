"""Edits of real evidence: what proves nothing must not read as safe.

The evidence is of two ranks on vLLM 0.33.0, guard 0.1.0, lazy workspace; names and paths replaced.
"""

from __future__ import annotations

import copy
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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


# An edit changes the lines of both ranks; then the verdicts that it may have, and what is said.
Edit = Callable[[Ranks], object]
NOT_SAFE = {"unsafe", "disagreement", "partly guarded", "failed", "unproven"}
EDITS: dict[str, tuple[Edit, set[str], str]] = {}


def edit(name: str, *verdicts: str, says: str = "") -> Callable[[Edit], Edit]:
    def enter(function: Edit) -> Edit:
        EDITS[name] = (function, set(verdicts) or NOT_SAFE, says)
        return function

    return enter


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


def test_the_evidence_as_it_stands_is_safe(tmp_path: Path) -> None:
    assert judge([DATA]).verdict == "safe"
    assert judge([DATA]).exit_code == 0
    assert judge([write(original(), tmp_path)]).verdict == "safe"


@pytest.mark.parametrize("name", EDITS)
def test_edit(tmp_path: Path, name: str) -> None:
    function, verdicts, says = EDITS[name]
    ranks = original()
    function(ranks)
    report = judge([write(ranks, tmp_path)])
    assert report.verdict in verdicts, said(report)
    assert says in said(report)
    assert report.exit_code in (1, 4)


def test_both_hosts_of_a_loopback_address_are_servers(tmp_path: Path) -> None:
    ranks = original()
    EDITS["hosts that meet at a loopback address"][0](ranks)
    report = judge([write(ranks, tmp_path)])
    assert [one.judgement.missing for one in report.results] in ([[0], [1]], [[1], [0]])


def test_one_process_in_two_files_is_as_bad_as_the_worse(tmp_path: Path) -> None:
    ranks = original()
    write(ranks, tmp_path / "good")
    for line in of(ranks[1], "workspace"):
        line.update(MNNVL)
    write(ranks, tmp_path / "bad")
    for order in (("good", "bad"), ("bad", "good")):
        assert judge([tmp_path / name for name in order]).verdict == "unsafe"


@pytest.mark.parametrize("how", ["each line a file", "twice", "last first"])
def test_how_lines_are_spread_over_files_changes_nothing(tmp_path: Path, how: str) -> None:
    ranks = original()
    if how == "each line a file":
        for number, line in enumerate(ranks[0] + ranks[1]):
            (tmp_path / f"{number}.jsonl").write_text(json.dumps(line) + "\n")
    elif how == "twice":
        write([lines * 2 for lines in ranks], tmp_path)
    else:
        write([lines[::-1] for lines in ranks], tmp_path)
    report = judge([tmp_path])
    assert (report.verdict, report.evidence.problems) == ("safe", [])


# Files beside the good ones


def unsafe(folder: Path) -> Path:
    ranks = original()
    for lines in ranks:
        change(lines, "workspace", **MNNVL)
        for line in lines:
            line["host"] = "node-z"
    return write(ranks, folder)


def _link_to_folder(beside: Path, hidden: Path) -> None:
    (beside / "more").symlink_to(hidden)


def _link_to_file(beside: Path, hidden: Path) -> None:
    for path in hidden.iterdir():
        (beside / path.name).symlink_to(path)


@pytest.mark.parametrize("how", [_link_to_folder, _link_to_file])
def test_links_are_followed(tmp_path: Path, how: Callable[[Path, Path], None]) -> None:
    beside = write(original(), tmp_path / "evidence")
    how(beside, unsafe(tmp_path / "hidden"))
    (beside / "loop").symlink_to(beside)
    assert judge([beside]).verdict == "unsafe"


def _packed(suffix: str) -> Callable[[Path], None]:
    def place(folder: Path) -> None:
        data = gzip.compress(b"{}")
        (folder / f"hisparse-guard-node-a-7.jsonl{suffix}").write_bytes(data)

    return place


def _named(name: str, data: bytes = b"") -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(data) and None


def _fifo(folder: Path) -> None:
    os.mkfifo(folder / "hisparse-guard-node-a-7.jsonl")


BESIDE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "gz": (_packed(".gz"), "is packed"),
    "zst": (_packed(".zst"), "is packed"),
    "an archive": (_named("evidence.tar.gz", b"x"), "is packed"),
    "a zip": (_named("evidence.ZIP", b"x"), "is packed"),
    "rotated": (_packed(".1"), "named like evidence"),
    "a backup": (_named("hisparse-guard-node-a-7.jsonl~", b"x"), "named like evidence"),
    "rotated, of another name": (_named("worker.jsonl.1", b"x"), "named like evidence"),
    "a partial copy": (_named(".hisparse-guard-node-a-7.jsonl.Xy12", b"x"), "named like evidence"),
    "empty": (_named("hisparse-guard-node-a-7.jsonl"), "is empty"),
    "blank": (_named("hisparse-guard-node-a-7.jsonl", b"\n\n \n"), "is empty"),
    "a pipe": (_fifo, "is not a file"),
    "a dead link": (lambda f: (f / "x.jsonl").symlink_to(f / "none"), "cannot be read"),
    "no JSON": (_named("hisparse-guard-node-a-7.jsonl", b"hello\n"), "not JSON"),
    "UTF-16": (_named("hisparse-guard-node-a-7.jsonl", "{}\n".encode("utf-16")), "not JSON"),
    "zeros": (_named("hisparse-guard-node-a-7.jsonl", b"\0" * 999), "cut short"),
    "torn": (_named("hisparse-guard-node-a-7.jsonl", b'{"schema":1,"ts"'), "cut short"),
    "huge number": (_named("x.jsonl", b'{"schema":' + b"9" * 9999 + b"}\n"), "x.jsonl"),
    "nested": (_named("x.jsonl", b"[" * 99999 + b"\n"), "x.jsonl"),
    "not UTF-8": (_named("x.jsonl", b'{"schema":1,"event":"\xff"}\n'), "x.jsonl"),
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_is_not_read_is_told_and_caps_the_verdict(tmp_path: Path, name: str) -> None:
    place, says = BESIDE[name]
    place(write(original(), tmp_path))
    report = judge([tmp_path])
    assert report.verdict == "unproven"
    assert says in said(report)


def test_an_unreadable_file_is_not_an_absent_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another user; the tests may run as root, who can read all."""
    import builtins

    path = tmp_path / "hisparse-guard-node-a-4102.jsonl"
    write(original(), tmp_path)
    real = builtins.open

    def refusing(name: Any, *arguments: Any, **options: Any) -> Any:
        if str(name) == str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "open", refusing)
    report = judge([tmp_path])
    assert report.verdict in NOT_SAFE
    assert "Permission denied" in said(report)


def test_what_is_of_another_host_does_not_count(tmp_path: Path) -> None:
    """The whole is unproven then; the server of this host is safe."""
    write(original(), tmp_path)
    (tmp_path / "hisparse-guard-node-z-7.jsonl").write_bytes(b"")
    report = judge([tmp_path])
    assert (report.verdict, report.results[0].judgement.verdict) == ("unproven", "safe")


def test_a_run_that_ended_well_stays_safe(tmp_path: Path) -> None:
    """Workspaces are destroyed when a server is stopped."""
    ranks = original()
    for lines in ranks:
        append(lines, "workspace", **(WORKSPACE | {"state": "destroyed", "backend": None}))
        append(lines, "end", dropped=0)
    report = judge([write(ranks, tmp_path)])
    assert report.verdict == "safe", said(report)
    assert not report.results[0].server.latest
