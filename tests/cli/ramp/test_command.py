"""What the command line of a ramp takes and refuses, in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.ramp.process import ramp
from tests.cli.ramp.stub import MODEL, Stub, stub_server
from tests.cli.ramp.test_servers import WORDS, run


def test_the_key_comes_from_a_file_and_is_nowhere_said(tmp_path: Path) -> None:
    key = "Kx7-very-secret-9Q"
    (tmp_path / "key").write_text(key + "\n")
    found = run(tmp_path, Stub(key=key), "--api-key-file", str(tmp_path / "key"))
    assert found.code == 0
    wrong = run(tmp_path, Stub(key="other"), env={"VLLM_API_KEY": key})
    assert wrong.code == 1 and "401" in wrong.document["sentence"]
    assert key not in wrong.out + wrong.err + json.dumps(wrong.document)


@pytest.mark.parametrize(
    "url", ["http://h:1/?token=s3cretvalue", "http://u:s3cretvalue@h/", "ftp://h", "http://h#x"]
)
def test_addresses_that_are_refused(tmp_path: Path, url: str) -> None:
    found = ramp(tmp_path, url, MODEL)
    assert found.code == 2 and found.err.count("\n") == 1
    assert "s3cretvalue" not in found.err


def test_what_cannot_be_written_is_said_before_the_load(tmp_path: Path) -> None:
    stub = Stub()
    with stub_server(stub):
        found = ramp(tmp_path, stub.url, MODEL, *WORDS, "--html", str(tmp_path / "no" / "x.html"))
    assert found.code == 2 and not stub.bodies


def test_no_server(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    found = ramp(tmp_path, "http://127.0.0.1:9", MODEL, *WORDS, "--html", page)
    assert (found.code, found.document["verdict"]) == (1, "inconclusive"), found.err
    assert page.exists()
