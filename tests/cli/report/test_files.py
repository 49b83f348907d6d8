"""Which files are evidence; what may be some and is not read caps the verdict."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hisparse_guard.cli.report.report import judge
from tests.cli.report.editing import MNNVL, NOT_SAFE, change, of, original, said, write


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
    "an archive that was rotated": (_named("evidence.tar.gz.1", b"x"), "is packed"),
    "packed under any name": (_named("node-b", b"\x1f\x8b\x08"), "is packed"),
    "lines under any name": (_named("node-b.txt", b'{"schema":1,"event":"armed"}'), "holds lines"),
    "lines in a container's log": (
        _named("0.log", json.dumps({"log": '{"schema":1,"event":"armed"}'}).encode()),
        "holds lines",
    ),
    "lines as PowerShell writes them": (
        _named("7.txt", '{"schema":1,"event":"armed"}'.encode("utf-16")),
        "holds lines",
    ),
    "lines behind others": (
        _named("all.log", b"INFO starting\n" * 200 + b'{"schema":1,"event":"armed"}'),
        "holds lines",
    ),
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


def test_a_folder_without_evidence_is_told(tmp_path: Path) -> None:
    """Who names two nodes' folders asks for both."""
    one, none = write(original(), tmp_path / "node-a"), tmp_path / "node-b"
    none.mkdir()
    (none / "vllm.log").write_text("no evidence\n")
    report = judge([one, none])
    assert report.verdict == "unproven" and f"{none}: holds no evidence" in said(report)
    assert judge([none]).verdict == "no evidence"
    assert judge([one, one, *one.iterdir()]).verdict == "safe"
