"""The evidence reader on whole, torn, mixed and hostile files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hisparse_guard.cli.report import reading as module
from hisparse_guard.cli.report.life import Life, Site
from hisparse_guard.cli.report.reading import Reading, read
from tests.cli.report.samples import Process, world


def problems(found: Reading) -> str:
    return "\n".join(str(problem) for problem in found.problems)


def test_a_whole_file_has_no_problems(tmp_path: Path) -> None:
    life = Process().guarded()
    life.write(tmp_path)
    found = read([tmp_path])
    assert (found.files, found.lines, found.torn, found.problems) == (1, len(life.lines), [], [])
    (one,) = found.lives
    assert (one.host, one.pid, one.rank, one.world_size) == ("node-a", 100, 0, 2)
    assert (one.workspace, one.pinned, one.alone, one.misses) == ("trtllm", "trtllm", ["mnnvl"], 1)
    assert one.lost == 0


@pytest.mark.parametrize("cut", [1, 2, 40, 300])
def test_a_last_line_cut_short_is_torn_and_costs_only_itself(tmp_path: Path, cut: int) -> None:
    life = Process().guarded()
    path = life.write(tmp_path)
    path.write_text(life.text[: -1 - cut])
    found = read([tmp_path])
    assert found.torn == [str(path)]
    assert found.problems == []
    assert found.lives[0].lines == len(life.lines) - 1


def test_a_last_line_that_lacks_only_its_newline_is_whole(tmp_path: Path) -> None:
    life = Process().guarded()
    life.write(tmp_path).write_text(life.text[:-1])
    found = read([tmp_path])
    assert (found.torn, found.problems) == ([], [])
    assert found.lives[0].lines == len(life.lines)


def test_the_next_life_writes_behind_a_torn_line(tmp_path: Path) -> None:
    """A container restarts: same host, same pid, same file, and no newline was written."""
    first, second = Process().guarded(), Process(start=900.0).guarded()
    path = first.write(tmp_path)
    path.write_text(first.text[:-60] + second.text)
    found = read([tmp_path])
    assert [life.lines for life in found.lives] == [len(first.lines) - 1, len(second.lines)]
    assert "torn line" in problems(found)
    assert found.torn == []


def test_nul_filled_tails(tmp_path: Path) -> None:
    life = Process().guarded()
    path = life.write(tmp_path)
    path.write_bytes(life.text.encode() + b"\0" * 5000)
    found = read([tmp_path])
    assert "NUL" in problems(found) and found.torn == []
    assert found.lives[0].lines == len(life.lines)

    after = Process(start=50.0).config()
    path.write_bytes(life.text.encode() + b"\0" * 5000 + after.text.encode())
    found = read([tmp_path])
    assert [one.lines for one in found.lives] == [len(life.lines), len(after.lines)]
    assert "NUL" in problems(found)


def test_lines_longer_than_any_evidence_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE", 5000)
    monkeypatch.setattr(module, "_CHUNK", 1000)
    life = Process().guarded()
    path = life.write(tmp_path)
    path.write_text("x" * 100_000 + "\n" + life.text + "y" * 100_000)
    found = read([tmp_path])
    assert found.lives[0].lines == len(life.lines)
    assert "2 lines are not evidence" in problems(found)

    path.write_bytes(life.text.encode() + b"\0" * 100_000 + b"\n" + life.text.encode())
    assert read([tmp_path]).lives[0].lines == 2 * len(life.lines)


@pytest.mark.parametrize("chunk", [1, 7, 100, 4096])
def test_chunks_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    Process().guarded().write(tmp_path)
    whole = read([tmp_path])
    monkeypatch.setattr(module, "_CHUNK", chunk)
    assert read([tmp_path]).lives == whole.lives


def test_bad_utf8_is_told_and_read(tmp_path: Path) -> None:
    life = Process().config()
    raw = life.text.encode().replace(b"DeepSeek-V3.2", b"Deep\xffSeek")
    life.write(tmp_path).write_bytes(raw)
    found = read([tmp_path])
    assert "UTF-8" in problems(found)
    assert found.lives[0].model == "deepseek-ai/Deep�Seek"


def test_a_byte_order_mark_is_no_harm(tmp_path: Path) -> None:
    life = Process().config()
    life.write(tmp_path).write_bytes(b"\xef\xbb\xbf" + life.text.encode())
    assert read([tmp_path]).lives[0].lines == 2


def test_newer_schemas_and_events_are_counted_and_left_out(tmp_path: Path) -> None:
    life = Process().config().line("self_destruct", fuse=3)
    path = life.write(tmp_path)
    path.write_text(life.text + life.lines[0].replace('"schema":1', '"schema":2') + "\n")
    found = read([tmp_path])
    assert dict(found.unknown_events) == {"self_destruct": 1}
    assert found.unknown_schema == 1
    assert [life.host for life in found.lives] == ["node-a"]


def test_numbered_lines_that_are_missing_are_told(tmp_path: Path) -> None:
    life = Process().guarded()
    del life.lines[2:4]
    life.write(tmp_path)
    found = read([tmp_path])
    assert found.lives[0].lost == 2
    assert "numbered 6 lines, 2 of them are not here" in problems(found)


def test_hostile_text_is_cut_and_made_printable(tmp_path: Path) -> None:
    life = Process().config(model="a\x1b[31mred\ud800" + "b" * 10_000)
    life.write(tmp_path)
    model = read([tmp_path]).lives[0].model
    assert model is not None
    assert model.isprintable() and len(model) < 2100 and "\\x1b[31mred" in model
    model.encode()


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "7",
        "null",
        "{}",
        "[" * 100_000,
        '{"schema":1,"event":["resolved"]}',
        '{"schema":1,"event":"resolved","rank":' + "9" * 5000 + "}",
        '{"schema":1,"event":"resolved","rank":NaN,"vllm_answer":{},"answer":[[]],"count":-1}',
        '{"schema":1,"event":"context_miss","stack":[1,{"file":2}],"left_s":1e999,"where":[]}',
        '{"schema":1,"event":"armed","settings":[],"environment":{"A":1},"ppid":true}',
        '{"schema":1,"event":"workspace","state":{},"backend":[]}',
    ],
)
def test_hostile_lines_never_end_the_reading(tmp_path: Path, line: str) -> None:
    life = Process().guarded()
    life.write(tmp_path).write_text(line + "\n" + life.text)
    found = read([tmp_path])
    assert [one.lines for one in found.lives if one.pid == 100] == [len(life.lines)]


def test_folders_are_searched_and_a_file_is_read_once(tmp_path: Path) -> None:
    for process in world(3, host="n1"):
        process.guarded().write(tmp_path / "n1" / "deep")
    path = Process(host="n2").guarded().write(tmp_path / "n2")
    (tmp_path / "n1" / "vllm.log").write_text("not evidence\n")
    (tmp_path / "n2" / "loop").symlink_to(tmp_path)
    (tmp_path / "n2" / "hisparse-guard-again-100.jsonl").symlink_to(path)
    os.mkfifo(tmp_path / "hisparse-guard-pipe-1.jsonl")
    found = read([tmp_path, tmp_path / "n1", path])
    assert found.files == 4
    assert sorted({life.host for life in found.lives}) == ["n1", "n2"]


def test_copies_of_one_file_count_once(tmp_path: Path) -> None:
    life = Process().guarded()
    life.write(tmp_path / "a")
    life.lines.pop()
    life.write(tmp_path / "b")
    found = read([tmp_path])
    assert [one.lines for one in found.lives] == [6]
    assert "is in" in problems(found)


def test_a_missing_path_is_the_callers_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read([tmp_path / "nothing"])


def test_running_counts_are_not_added_up(tmp_path: Path) -> None:
    life = Process().config().resolve()
    for count in (1, 10, 100, 137):
        life.miss(count=count)
    life.miss(count=5, where={"file": "other.py", "line": 1, "function": "f"})
    life.write(tmp_path)
    found = read([tmp_path])
    assert sorted(found.lives[0].sites.values()) == [5, 137]
    assert found.lives[0].misses == 142


def _same(one: Reading, other: Reading) -> None:
    assert one.lives == other.lives
    assert one.sites == other.sites
    assert problems(one) == problems(other)


def test_sharing_the_work_changes_nothing(tmp_path: Path) -> None:
    for process in world(5):
        process.guarded().miss(where={"file": f"{process.pid}.py", "line": 1, "function": "f"})
        process.write(tmp_path)
    alone, shared = read([tmp_path], jobs=1), read([tmp_path], jobs=2)
    by_site = [
        {(found.sites[s].key, c) for life in found.lives for s, c in life.sites.items()}
        for found in (alone, shared)
    ]
    assert by_site[0] == by_site[1]
    for life in alone.lives + shared.lives:
        life.sites = {}
    assert alone.lives == shared.lives


def test_the_guards_own_lines_take_the_quick_way() -> None:
    """Else the reader is right and slow, and nobody notices."""
    life = Process().config().resolve().miss()
    assert module._Reader()._miss(life.lines[-1].encode())


texts = st.text(max_size=20) | st.sampled_from(
    ['"left_s":1', "\\", "]}", '","count":9', "\x7f", "é"]
)
places = st.fixed_dictionaries(
    {"file": texts, "line": st.integers(-5, 10**20) | st.none(), "function": texts | st.none()}
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    misses=st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "count": st.integers(-3, 10**19) | st.none() | st.booleans(),
                "origin": texts,
                "where": places | st.none(),
                "stack": st.lists(places, max_size=3) | texts,
                "left_at": places | st.none(),
                "left_s": st.floats() | st.none() | st.integers(-3, 10**20),
                "vllm_alone": texts | st.none(),
                "used": texts | st.none(),
            },
        ),
        max_size=4,
    ),
    host=texts,
    rank=st.none() | st.integers(0, 10**19),
)
def test_the_quick_way_and_the_plain_way_agree(
    misses: list[dict[str, object]], host: str, rank: int | None
) -> None:
    life = Process(host=host, rank=rank).config().resolve()
    for fields in misses * 2:
        life.miss(**fields)  # type: ignore[arg-type]
    quick, plain = module._Reader(), module._Reader()
    plain_lives: list[Life] = []
    for line in life.lines:
        assert quick._take(line.encode())
        # A leading blank keeps the line the same JSON and off the quick way.
        assert plain._take(b" " + line.encode())
    quick_lives, plain_lives = list(quick._lives.values()), list(plain._lives.values())
    assert quick_lives == plain_lives
    without_time = [[(s.key, s.left_at, s.used) for s in r.reading.sites] for r in (quick, plain)]
    assert without_time[0] == without_time[1]


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300), at=st.integers(0, 5))
def test_any_bytes_can_be_read(tmp_path: Path, data: bytes, at: int) -> None:
    lines = [line.encode() + b"\n" for line in Process().guarded().lines]
    lines.insert(at, data)
    path = tmp_path / "hisparse-guard-x-1.jsonl"
    path.write_bytes(b"".join(lines))
    found = read([path])
    assert sum(life.lines for life in found.lives) >= 4
    json.dumps([problem.to_json() for problem in found.problems]).encode()


def test_distinct_sites_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SITES", 3)
    life = Process().config().resolve()
    for number in range(10):
        life.miss(where={"file": "f.py", "line": number, "function": "f"})
    life.write(tmp_path)
    found = read([tmp_path])
    assert len(found.sites) == 3
    assert found.lives[0].misses == 10
    assert isinstance(found.sites[0], Site)
