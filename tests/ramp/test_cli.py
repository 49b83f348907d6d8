"""Wrong usage, told in one line before any load is made."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from hisparse_guard.cli.app import run_app
from tests.ramp.stub import MODEL, Stub, stub_server

HERE = ("--vllm-python", sys.executable)


def usage(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    assert run_app(["ramp", *map(str, words)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, "one line"
    return error


def at(url: str, *words: str | Path, model: str = MODEL) -> tuple[str | Path, ...]:
    return ("--base-url", url, "--model", model, *HERE, *words)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://127.0.0.1", "is not an address like"),
        ("127.0.0.1:8000", "is not an address"),
        ("http://user:hunter2secret@127.0.0.1", "OPENAI_API_KEY"),
        ("http://127.0.0.1:9", "does not answer"),
    ],
)
def test_addresses(capsys: pytest.CaptureFixture[str], url: str, says: str) -> None:
    error = usage(capsys, *at(url))
    assert says in error
    assert "hunter2secret" not in error


def test_a_server_that_does_not_serve_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    with stub_server(Stub()) as stub:
        assert "it lists stub" in usage(capsys, *at(stub.url, model="other"))


def test_a_server_that_wants_a_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with stub_server(Stub(key="right")) as stub:
        assert "put it into OPENAI_API_KEY" in usage(capsys, *at(stub.url))


def test_a_server_that_is_not_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    with stub_server(Stub(health=503)) as stub:
        assert "answers 503" in usage(capsys, *at(stub.url))


def test_requests_longer_than_the_server_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with stub_server(Stub()) as stub:
        error = usage(capsys, *at(stub.url, "--isl", "99000"))
        assert "needs 101000 tokens and the server takes 100000" in error
        assert not stub.bodies


def test_no_vllm_to_make_the_load_with(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    error = usage(capsys, "--base-url", "http://127.0.0.1:9", "--model", "m")
    assert "--vllm-python" in error


def test_the_interpreter_of_the_vllm_on_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from hisparse_guard.cli.ramp.generator import find_vllm_python

    script = tmp_path / "vllm"
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_vllm_python(None) == Path(sys.executable)


def test_an_interpreter_without_vllm_is_no_verdict(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    document = tmp_path / "ramp.json"
    with stub_server(Stub()) as stub:
        words = at(stub.url, "--levels", "1", "--isl", "20", "--osl", "2", "--json", document)
        assert run_app(["ramp", *map(str, words)]) == 2
    assert "No module named 'vllm'" in capsys.readouterr().err
    assert not document.exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--server-log", "/dev/null"), "goes with --archive"),
        (("--archive", "a.tar.gz", "--server-log", "/nowhere/x.log"), "no such file"),
        (("--json", "/nowhere/x.json"), "cannot be written"),
        (("--levels", "1,x"), "--levels"),
        (("--token-ids", "5-9"), "at least 16 ids"),
    ],
)
def test_options(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: tuple[str, ...],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in usage(capsys, *at("http://127.0.0.1:9", *words))
