"""What the archive holds and what it says is left out; what it masks: test_secrets.py."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from tests.cli.ramp.results import archive
from tests.cli.report.samples import world


def test_a_log_that_is_cut_off_or_none(tmp_path: Path) -> None:
    packed = gzip.compress(b"INFO started\nINFO token=zebraMARK\n" * 2000)
    (tmp_path / "a.log").write_bytes(packed[:-200])
    (tmp_path / "b.log").write_bytes(bytes(range(128, 256)) * 99)
    held = archive(tmp_path, server_logs=[tmp_path / "a.log", tmp_path / "b.log"])
    left = json.loads(held["x/record.json"])["left_out"]
    assert "reading stopped early" in left[0] and left[1] == "server-logs/2.log: no text"
    assert "INFO started" in held["x/server-logs/1.log"]


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("a: {{ .Values.x }}\n  b: [\n")
    (tmp_path / "bomb.yaml").write_text(
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(
            f"{new}: &{new} [{','.join(['*' + old] * 9)}]\n"
            for old, new in zip("abcdefgh", "bcdefghi", strict=True)
        )
    )
    held = archive(tmp_path, deployment=[tmp_path / "t.yaml", tmp_path / "bomb.yaml"])
    left = json.loads(held["x/record.json"])["left_out"]
    assert len(left) == 2 and left[0].startswith("deployment/1.yaml")


def test_evidence_that_report_does_not_read_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "evidence"
    world()[0].guarded().write(folder)
    (folder / "hisparse-guard-alice-1.jsonl.gz").write_bytes(b"\x1f\x8b")
    held = archive(tmp_path, evidence=[folder])
    assert [name for name in held if "/evidence/" in name] == ["x/evidence/1.jsonl"]
    assert json.loads(held["x/record.json"])["left_out"] == [
        "evidence: one that is packed and was not read: unpack it"
    ]
