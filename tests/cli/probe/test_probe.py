"""`hisparse-guard probe` as Kubernetes starts it: a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.ramp.bad_answers import (
    bomb,
    continued,
    deep,
    drip,
    endless_headers,
    no_http,
    page,
    redirect,
)
from tests.cli.ramp.stub import MODEL, Handler, Stub, stub_server
from tests.startup.sandbox import ROOT
from tests.support.bundles import bundled


def probe(
    url: str, *words: str, where: Path = ROOT, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs it without any installed package (`-S`)."""
    command = [sys.executable, "-S", "-m", "hisparse_guard", "probe", "--base-url", url, *words]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(where), **env}
    return subprocess.run(
        command, env=environment, cwd="/", capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("plain", [False, True])
def test_a_server_that_answers(plain: bool) -> None:
    with stub_server(Stub(plain=plain, prefix="/llm")) as stub:
        done = probe(f"{stub.url}/llm")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("hisparse-guard probe: answered") and done.stdout.count("\n") == 1


@pytest.mark.parametrize("kind", ["dir", "zip"])
def test_from_a_bundle(kind: str, tmp_path: Path) -> None:
    place = bundled(tmp_path / ("g.zip" if kind == "zip" else "g"))
    with stub_server(Stub()) as stub:
        done = probe(stub.url, "--model", MODEL, where=place)
    assert done.returncode == 0, done


def still(handler: Handler, body: dict[str, Any]) -> None:
    time.sleep(20)


def empty(handler: Handler, body: dict[str, Any]) -> None:
    handler.say(200, {"choices": [{"text": "", "finish_reason": "length"}]})


def aborted(handler: Handler, body: dict[str, Any]) -> None:
    handler.say(200, {"choices": [{"text": "x", "finish_reason": "abort"}]})


def wrong(handler: Handler, body: dict[str, Any]) -> None:
    handler.say(200, [1])


def refused(handler: Handler, body: dict[str, Any]) -> None:
    handler.say(500, {"error": "EngineCore"})


def no_tokens(handler: Handler, body: dict[str, Any]) -> None:
    handler.say(200, {"choices": [{"token_ids": [None], "finish_reason": "length"}]})


def another_model(handler: Handler, body: dict[str, Any]) -> None:
    choices = [{"text": "x", "finish_reason": "length"}]
    handler.say(200, {"model": "another", "choices": choices})


def test_an_answer_that_adds_the_revision() -> None:
    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        choices = [{"index": 0, "text": "x", "finish_reason": "length"}]
        handler.say(200, {"model": f"{MODEL}@main", "choices": choices})
        return True

    with stub_server(Stub(answer=answer, every=True)) as stub:
        assert probe(stub.url, "--model", MODEL).returncode == 0


@pytest.mark.parametrize("bad", [no_tokens, another_model])
def test_an_answer_that_is_none(bad: Any) -> None:
    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        bad(handler, body)
        return True

    with stub_server(Stub(answer=answer, every=True)) as stub:
        done = probe(stub.url, "--model", MODEL)
    assert done.returncode == 1 and "not answered" in done.stdout


@pytest.mark.parametrize(
    "bad",
    [
        still,
        empty,
        aborted,
        wrong,
        refused,
        redirect,
        drip,
        deep,
        bomb,
        page,
        endless_headers,
        continued,
        no_http,
    ],
)
def test_a_server_that_does_not(bad: Any) -> None:
    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        bad(handler, body)
        return True

    with stub_server(Stub(answer=answer, every=True)) as stub:
        done = probe(stub.url, "--timeout", "2")
    assert (done.returncode, done.stderr) == (1, ""), done
    assert "not answered" in done.stdout and done.stdout.count("\n") == 1


def test_no_server() -> None:
    done = probe("http://127.0.0.1:9")
    assert done.returncode == 1 and "not answered" in done.stdout


def test_the_key_is_never_said(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k3y-of-the-server\n")
    with stub_server(Stub(key="k3y-of-the-server")) as stub:
        assert probe(stub.url, "--api-key-file", str(tmp_path / "key")).returncode == 0
        done = probe(stub.url, VLLM_API_KEY="an0ther-key")
    assert done.returncode == 1 and "an0ther-key" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["http://h?x=s3cret"],
        ["h:80"],
        ["http://h", "--tokens", "0"],
        ["http://h", "--ca-file", "/no"],
    ],
)
def test_wrong_usage_is_one_line(words: list[str]) -> None:
    done = probe(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "s3cret" not in done.stderr


def test_what_it_imports() -> None:
    """A start below 0.3 s: nothing but the standard library, and not much of that."""
    program = (
        "import sys; sys.argv = ['x', 'probe', '--base-url', 'http://127.0.0.1:9'];"
        "from hisparse_guard.__main__ import main; main();"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stderr.split())
    assert "hisparse_guard.cli.probe.ask" in loaded
    assert not {"typer", "httpx", "rich", "asyncio", "hisparse_guard.cli.app"} & loaded
