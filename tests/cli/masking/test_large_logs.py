"""Logs of hundreds of megabytes: what of them is kept, and what of that is scanned."""

from __future__ import annotations

from pathlib import Path

import pytest

from hisparse_guard.cli.masking import files
from hisparse_guard.cli.masking.scan import secrets_in
from hisparse_guard.cli.masking.vault import Vault

LOG = Path(__file__).parents[2] / "data" / "logs" / "fixed-ok.log"


def test_of_a_large_log_its_beginning_and_its_end_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOG_BEGINNING", 2_000)
    monkeypatch.setattr(files, "LOG_END", 5_000)
    lines = [f"INFO step {number} is done" for number in range(2_000)]
    (tmp_path / "server.log").write_text("\n".join(lines))
    masked = files.log(tmp_path / "server.log", Vault())
    kept = masked.text.split("\n")
    (gap,) = [number for number, line in enumerate(kept) if line.startswith("[hisparse-guard")]
    beginning, end = kept[:gap], kept[gap + 1 :]
    assert beginning == lines[: len(beginning)] and end == lines[-len(end) :]
    assert sum(map(len, beginning)) <= 2_000 and 4_900 <= sum(map(len, end)) <= 5_000
    left_out = len(lines) - len(beginning) - len(end)
    assert kept[gap] == (
        f"[hisparse-guard left out {left_out} lines between its beginning and its end]"
    )
    assert masked.missing == [f"{left_out} lines between its beginning and its end"]


def test_a_log_that_is_not_large_is_kept_whole() -> None:
    masked = files.log(LOG, Vault())
    assert not masked.missing
    assert masked.text.count("\n") + 1 == len(LOG.read_text().splitlines())


def test_lines_that_differ_in_numbers_only_are_all_scanned_where_one_holds_a_secret() -> None:
    quiet = [f"INFO 12-03 08:00:{number:02d} step {number} is done" for number in range(60)]
    loud = [f'api_key = "abcd-{number}-efgh"' for number in (1234, 5678, 9012)]
    text = "\n".join((*quiet, loud[0], *quiet, loud[1], loud[2]))
    found = secrets_in({"server-logs/1.log": text})
    assert [(name, line) for name, line, _, _ in found] == [
        ("server-logs/1.log", line) for line in (61, 122, 123)
    ]
    assert {value for _, _, _, value in found} == {line.split('"')[1] for line in loud}


def test_lines_are_numbered_by_line_feeds_alone() -> None:
    text = 'one\rtwo\napi_key = "abcd-1234-efgh"\n'
    assert [line for _, line, _, _ in secrets_in({"server-logs/1.log": text})] == [2]
