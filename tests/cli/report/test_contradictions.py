"""Lines that no guard writes so, or that speak against each other, prove nothing.

The evidence is of two ranks on vLLM 0.33.0, guard 0.2.0: a workspace that was made, verified,
destroyed and made again. Names and paths are replaced.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hisparse_guard.cli.report.report import judge
from tests.cli.report.editing import Line, Ranks, of, renumber, said, write

DATA = Path(__file__).resolve().parents[2] / "data" / "evidence-0.2.0"


def original() -> Ranks:
    return [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(DATA.glob("*.jsonl"))
    ]


def test_the_evidence_as_it_stands_is_safe() -> None:
    report = judge([DATA])
    assert (report.verdict, report.evidence.problems) == ("safe", [])


MADE, VERIFIED = b'"state":"made"', b'"state":"verified"'
# In the first line that holds it: the bytes, and what takes their place; what is said then.
REPLACED: dict[str, tuple[bytes, bytes, str]] = {
    "a field twice, the last one good": (
        b'"backend":"trtllm","e', b'"backend":"mnnvl","backend":"trtllm","e',
        "a key is there twice"),
    "a field twice, written in two ways": (
        b'"backend":"trtllm","e', b'"back\\u0065nd":"mnnvl","backend":"trtllm","e', "twice"),
    "the event twice": (b'"event":"workspace"', b'"event":"error","event":"workspace"', ""),
    "the same event twice": (
        b'"event":"workspace"', b'"event":"workspace","event":"workspace"', "twice"),
    "a setting twice": (b'"mode":"enforce"', b'"mode":"off","mode":"enforce"', "twice"),
    "a miss with a field twice": (b'"used":"trtllm","target"', b'"used":"mnnvl","used":"trtllm",'
                                  b'"target"', "twice"),
    "a miss with a place in which a field is twice": (
        b'"where":{', b'"where":{"file":"x.py",', "twice"),
    "an unknown field twice": (MADE, b'"x":1,"x":2,' + MADE, "twice"),
    "bytes that are no UTF-8 in an unknown field": (MADE, b'"x":"\xff",' + MADE, "not JSON"),
    "a name that is no UTF-8": (MADE, b'"\xff":1,' + MADE, "not JSON"),
    "the same in a miss": (b'"origin":', b'"x":"\xff","origin":', "not JSON"),
    "letters of another script": (
        b'"backend":"trtllm","expected"', '"backend":"\u0442rtllm","expected"'.encode(),
        "\u0442rtllm workspace"),
    "a time without its fraction": (b'"ts":"', b'"ts":"2026-12-02T19:00:00Z","t":"', "RFC 3339"),
    "a mode of another version": (b'"mode":"enforce"', b'"mode":"audit"', "whose mode this"),
    "a decision in another mode": (
        b'"env_backend":"auto","mode":"enforce"', b'"env_backend":"auto","mode":"observe"',
        "several modes"),
    "a pin of another version": (b'"pinned":"trtllm"', b'"pinned":"mnnvl"', "whose pin this"),
    "a miss of another origin": (
        b'"origin":"resolver"', b'"origin":"getter"', "whose origin this"),
    "a decision at another address": (b"tcp://127.0.0.1:31021", b"tcp://127.0.0.1:31022",
                                      "several addresses"),
    "a workspace with an error": (b'"error":null', b'"error":"no memory"', "a reason why not"),
    "a creation that skips a number": (
        b'"creation":2', b'"creation":3', "not the next number"),
    "a creation with a number of before": (
        b'"creation":2', b'"creation":1', "not the next number"),
}  # fmt: skip


@pytest.mark.parametrize("name", REPLACED)
def test_what_no_guard_writes(tmp_path: Path, name: str) -> None:
    old, new, says = REPLACED[name]
    for path in DATA.glob("*.jsonl"):
        whole = path.read_bytes()
        if path.name.endswith("4202.jsonl"):
            assert old in whole
            whole = whole.replace(old, new, 1)
        (tmp_path / path.name).write_bytes(whole)
    report = judge([tmp_path])
    assert report.exit_code != 0
    assert says in said(report)


def _second(lines: list[Line]) -> Line:
    return of(lines, "workspace", state="made", creation=2)[0]


def _first_creation_without_its_line(lines: list[Line]) -> None:
    lines.remove(of(lines, "workspace", state="made", creation=1)[0])


def _given_out_after_it_was_destroyed(lines: list[Line]) -> None:
    _second(lines).update(state="verified", kind="primary", creation=1)


def _cut_after_a_config_without_hisparse(lines: list[Line]) -> None:
    del lines[2:]
    assert lines[1]["hisparse"] is False
    for line in lines:
        line.update(rank=None, world_size=None)


def _an_end_before_the_last_lines(lines: list[Line]) -> None:
    envelope = {name: lines[5][name] for name in ("schema", "ts", "host", "pid", "start")}
    none = {"rank": None, "world_size": None, "count": 1, "at_exit": True, "dropped": 0}
    lines.insert(6, {**envelope, **none, "event": "end"})


def _first_written_at_exit(lines: list[Line]) -> None:
    _second(lines)["at_exit"] = True


def _counted_to_seven(lines: list[Line]) -> None:
    lines.append({**_none_created_anew(lines), "count": 7})


def _traced_with_a_backend(lines: list[Line]) -> None:
    for line in of(lines, "context_miss"):
        line["origin"] = "trace"


def _clock_ahead_for_a_while(lines: list[Line]) -> None:
    of(lines, "resolved")[0]["ts"] = "2099-01-01T00:00:00.000000Z"


def _verified_without_a_getter(lines: list[Line]) -> None:
    of(lines, "workspace", state="verified")[0]["kind"] = None


def _config(**fields: object) -> Callable[[list[Line]], None]:
    def edit(lines: list[Line]) -> None:
        of(lines, "config_seen", hisparse=True)[0].update(fields)

    return edit


def _environment(lines: list[Line]) -> None:
    lines[0]["environment"]["VLLM_FLASHINFER_ALLREDUCE_BACKEND"] = "mnnvl"


def _armed_by(lines: list[Line]) -> None:
    lines[0]["how"] = "preload"


def _armed_twice(lines: list[Line]) -> None:
    lines.insert(4, dict(lines[0]))


def _switched_off_later(lines: list[Line]) -> None:
    of(lines, "resolved")[-1]["mode"] = "off"


def _primary_failed_and_quant_tried_twice(lines: list[Line]) -> None:
    at = lines.index(of(lines, "workspace")[0])
    first, second = of(lines, "workspace")[0], _second(lines)
    lines[:] = [line for line in lines if line["event"] != "workspace"]
    none = {"state": "failed", "backend": None, "error": "no memory"}
    lines[at:at] = [
        {**first, **none},
        {**first, **none, "kind": "primary", "error": None},
        {**first, **none, "creation": 2},
        {**second, "creation": 3},
        {**second, "state": "verified", "kind": "quant", "creation": 3},
    ]


def _nearly_as_many_misses_as_are_written(lines: list[Line]) -> None:
    """What is distinct counts, of whatever kind; the misses alone stay below the limit."""
    del lines[-1]
    miss = of(lines, "context_miss")[0]
    for number in range(995):
        where = {**miss["where"], "line": number}
        lines.append({**miss, "origin": "trace", "used": None, "where": where})


def _none_created_anew(lines: list[Line]) -> Line:
    """Takes the second creation and the lines at exit away; gives what was verified before."""
    lines.remove(_second(lines))
    lines[:] = [line for line in lines if not line["at_exit"]]
    return of(lines, "workspace", state="verified")[0]


def _given_out_the_tenth_time_after_it_was_destroyed(lines: list[Line]) -> None:
    lines.append({**_none_created_anew(lines), "count": 10})


def _a_workspace_without_a_number_among_numbered(lines: list[Line]) -> None:
    lines.append({**_none_created_anew(lines), "creation": None})


def _without_what_the_first_guard_did_not_write(lines: list[Line]) -> None:
    """As if guard 0.1.0 had written them, which says less that can contradict itself."""
    for line in lines:
        line.update({name: None for name in ("upstream", "used", "creation") if name in line})


def _first_seen_with_a_count_of_ten(lines: list[Line]) -> None:
    of(lines, "workspace", state="verified")[0]["count"] = 10


def _written_twice(lines: list[Line]) -> None:
    lines.insert(8, dict(lines[7]))


def _hisparse_seen_and_then_not(lines: list[Line]) -> None:
    for line in of(lines, "workspace"):
        line["hisparse"] = False


def _set_back(lines: list[Line]) -> None:
    for line in lines[3:]:
        line["ts"] = line["ts"].replace("T19", "T18")


def _miss_that_no_decision_answered(lines: list[Line]) -> None:
    for line in of(lines, "context_miss"):
        line.update(used=None, target=None)


def _setting(name: str, value: str) -> Callable[[list[Line]], None]:
    def edit(lines: list[Line]) -> None:
        lines[0]["settings"][name] = value

    return edit


def _decided(**fields: object) -> Callable[[list[Line]], None]:
    def edit(lines: list[Line]) -> None:
        for line in of(lines, "resolved"):
            line.update(fields)

    return edit


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (_first_creation_without_its_line, "a creation of a workspace has no line"),
        (_given_out_after_it_was_destroyed, "given out after it was destroyed"),
        (_cut_after_a_config_without_hisparse, "no config was seen"),
        (_an_end_before_the_last_lines, "lines after its end"),
        (_first_written_at_exit, "was not there before"),
        (_counted_to_seven, "no power of ten"),
        (_traced_with_a_backend, "only traced has a backend"),
        (_clock_ahead_for_a_while, "clock was set back"),
        (_verified_without_a_getter, "which getter gave it out"),
        (_config(source=None), "contradict each other"),
        (_config(source="guess"), "whose source"),
        (_config(tensor_parallel_size=-2), "parallel size below 1"),
        (_config(data_parallel_size=0), "parallel size below 1"),
        (_environment, "several values of VLLM_FLASHINFER_ALLREDUCE_BACKEND"),
        (_armed_by, "whose how"),
        (_armed_twice, "armed twice"),
        (_switched_off_later, "no evidence from rank 1"),
        (_primary_failed_and_quant_tried_twice, "no memory"),
        (_nearly_as_many_misses_as_are_written, "may have left out others"),
        (_given_out_the_tenth_time_after_it_was_destroyed, "given out after it was destroyed"),
        (_a_workspace_without_a_number_among_numbered, "numbers workspaces in another way"),
        (_without_what_the_first_guard_did_not_write, "numbers workspaces in another way"),
        (_first_seen_with_a_count_of_ten, "count does not follow"),
        (_written_twice, "count does not follow"),
        (_hisparse_seen_and_then_not, "not seen, after it was"),
        (_set_back, "clock was set back"),
        (_miss_that_no_decision_answered, "as no decision says"),
        (_setting("backend", "none"), "does not come to"),
        (_setting("multinode", "maybe"), "whose multinode"),
        (_decided(pinned="none"), "does not come to"),
        (_decided(rule="no-backend"), "does not come to"),
        (_decided(env_backend="mnnvl"), "does not come to"),
        (_decided(target="mnnvl"), "does not come to"),
        (_decided(vllm_answer=None, upstream=None), "does not come to"),
        (_decided(answer=["trtllm", True]), "does not come to"),
    ],
)
def test_lines_that_contradict_each_other(
    tmp_path: Path, edit: Callable[[list[Line]], None], says: str
) -> None:
    ranks = original()
    edit(ranks[1])
    renumber(ranks[1])
    report = judge([write(ranks, tmp_path)])
    assert report.exit_code != 0
    assert says in said(report)


def test_every_rank_cut_after_a_config_without_hisparse(tmp_path: Path) -> None:
    """A process that has seen no config with HiSparse yet writes nothing, unless it is traced."""
    ranks = original()
    for lines in ranks:
        _cut_after_a_config_without_hisparse(lines)
    assert judge([write(ranks, tmp_path)]).verdict == "unproven"


def test_a_count_that_was_written_already_comes_again_at_exit(tmp_path: Path) -> None:
    ranks = original()
    for lines in ranks:
        verified = _none_created_anew(lines)
        lines[:] = [line for line in lines if line["event"] != "end"]
        lines.remove(of(lines, "workspace", state="destroyed")[0])
        lines += [{**verified, "count": 10}, {**verified, "count": 10, "at_exit": True}]
        renumber(lines)
    assert judge([write(ranks, tmp_path)]).verdict == "safe"


@pytest.mark.parametrize("newline", [b"\r\n", b"\n\n", b"\n \t\n"])
def test_lines_ended_in_another_way_say_the_same(tmp_path: Path, newline: bytes) -> None:
    for path in DATA.glob("*.jsonl"):
        (tmp_path / path.name).write_bytes(path.read_bytes().replace(b"\n", newline))
    assert judge([tmp_path]).verdict == "safe"


def test_a_file_cut_anywhere_is_safe_only_between_lines(tmp_path: Path) -> None:
    for path in DATA.glob("*.jsonl"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    path = tmp_path / "hisparse-guard-node-a-4202.jsonl"
    whole = path.read_bytes()
    ends = {at for at, byte in enumerate(whole) if byte == ord("\n")}
    ends |= {at + 1 for at in ends}
    near = {at + by for at in ends for by in (-2, -1, 0)}
    for cut in sorted({*range(0, len(whole), 7), *near} - {len(whole)}):
        path.write_bytes(whole[:cut])
        assert judge([tmp_path]).exit_code != 0 or cut in ends, cut


def test_a_miss_has_no_other_lines_number(tmp_path: Path) -> None:
    ranks = original()
    miss = of(ranks[1], "context_miss")[0]
    error = ranks[1].index(_second(ranks[1]))
    ranks[1][error] = {**miss, "seq": miss["seq"]}
    ranks[1].insert(error, {**miss, "where": {**miss["where"], "line": 1}, "seq": error + 1})
    ranks[1].append({**ranks[1][error], "where": {**miss["where"], "line": 2}})
    report = judge([write(ranks, tmp_path)])
    assert report.exit_code != 0
    assert "the same number" in said(report)


def test_what_is_destroyed_was_there(tmp_path: Path) -> None:
    ranks = original()
    of(ranks[1], "workspace", state="destroyed")[0]["backend"] = "mnnvl"
    assert judge([write(ranks, tmp_path)]).verdict == "unsafe"
