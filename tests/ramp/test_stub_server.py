"""Ramps with the real generator against a server that misbehaves."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.ramp.process import Ramp, contents, ramp
from tests.ramp.stub import MODEL, Handler, Stub, stub_server
from tests.support.environments import image_python, vllm_release

pytestmark = pytest.mark.slow

SMALL = ("--isl", "40", "--osl", "6")
TWO_LEVELS = ("--levels", "2,4", "--requests", "4,8", *SMALL)


def test_a_healthy_server_passes(tmp_path: Path) -> None:
    with stub_server(Stub(key="sk-the-right-one")) as stub:
        found = ramp(
            tmp_path, stub.url, MODEL, *TWO_LEVELS, env={"VLLM_API_KEY": "sk-the-right-one"}
        )
    assert found.code == 0, found.err
    assert found.counts == [(2, 4, 0), (4, 8, 0)]
    assert found.document["verdict"] == "passed"
    assert not found.document["partial"]
    assert len(stub.prompts) == 12
    assert {len(prompt) for prompt in stub.prompts} == {40}
    assert len({tuple(prompt[:16]) for prompt in stub.prompts}) == 12
    load = [body for body in stub.bodies if body.get("stream")]
    assert all(body["ignore_eos"] and body["max_tokens"] == 6 for body in load)
    ids = [h.get("x-request-id") for h, b in zip(stub.headers, stub.bodies, strict=True)
           if b.get("stream")]  # fmt: skip
    assert len(set(ids)) == 12
    assert all(h["Authorization"] == "Bearer sk-the-right-one" for h in stub.headers)


@pytest.mark.parametrize("release", ["0.25.1", "0.30.0", "0.33.0"])
def test_the_generator_of_other_releases(tmp_path: Path, release: str) -> None:
    env = {"PYTHONPATH": str(vllm_release(release))}
    words = ("--levels", "2", "--requests", "4", *SMALL)
    with stub_server(Stub()) as stub:
        found = ramp(tmp_path, stub.url, MODEL, *words, env=env, python=image_python())
    assert (found.code, found.counts) == (0, [(2, 4, 0)]), found.err
    assert found.document["generator"]["vllm"].startswith(release)


def test_conversations(tmp_path: Path) -> None:
    words = ("--multi-turn", "--conversations", "3", "--turns", "4", "--levels", "2")
    with stub_server(Stub()) as stub:
        found = ramp(tmp_path, stub.url, MODEL, *words, *SMALL, "--turn-isl", "5")
    assert (found.code, found.counts) == (0, [(2, 12, 0)]), found.err
    # Answers are six times "x", which the server makes six tokens of.
    assert sorted({len(prompt) for prompt in stub.prompts}) == [40, 51, 62, 73]
    last = [prompt for prompt in stub.prompts if len(prompt) == 73]
    assert all(prompt[40:46] == [ord("x")] * 6 for prompt in last)
    assert len({tuple(prompt[:16]) for prompt in stub.prompts}) == 3


def test_errors_from_some_request_on(tmp_path: Path) -> None:
    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        if number < 6:
            return False
        handler.say(500, {"error": {"message": "EngineCore encountered an issue", "code": 500}})
        return True

    with stub_server(Stub(answer=answer)) as stub:
        found = ramp(tmp_path, stub.url, MODEL, "--levels", "2,4,8", "--requests", "4,8,16", *SMALL)
    assert found.code == 1
    assert found.counts == [(2, 4, 0), (4, 2, 6)]
    assert found.document["levels_not_run"] == [{"concurrency": 8, "planned": 16}]
    first = found.document["first_failure"]
    assert first["level"] == 4
    # The two that were done in this level may have ended after it.
    assert 4 <= first["after_done"] <= 6
    assert first["error"] == "HTTP 500: EngineCore encountered an issue"
    assert "answered 500" in found.document["engine_dead"]
    assert found.document["partial"]


def test_a_slow_server_times_out(tmp_path: Path) -> None:
    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        if body.get("stream") and number % 2:
            handler.begin_stream()
            handler.token()
            time.sleep(60)
        return False

    words = ("--levels", "4", "--requests", "8", *SMALL, "--timeout", "2")
    with stub_server(Stub(answer=answer)) as stub:
        found = ramp(tmp_path, stub.url, MODEL, *words)
    assert found.code == 1
    # The engine answers the probe: it is slow, not dead.
    assert found.document["engine_dead"] is None
    ((level, done, failed),) = found.counts
    assert (level, done + failed) == (4, 8)
    assert done and failed
    assert list(found.document["levels"][0]["failures"]) == ["timeout"]
    assert found.document["first_failure"]["error"] == "no complete answer within 2 s"


def test_streams_that_end_half_way(tmp_path: Path) -> None:
    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        if not body.get("stream") or len(stub.prompts) > 3:
            return False
        handler.begin_stream()
        handler.token()
        handler.token()
        how = len(stub.prompts)
        if how == 1:
            handler.hang_up()
        elif how == 2:
            handler.end_stream(40, 2)
        else:
            handler.chunk('data: {"error": {"message": "EngineDeadError", "code": 500}}\n\n')
            handler.chunk("data: [DONE]\n\n")
            handler.wfile.write(b"0\r\n\r\n")
        return True

    archive = tmp_path / "record.tar.gz"
    words = ("--levels", "1", "--requests", "6", *SMALL, "--archive", archive)
    with stub_server(Stub(answer=answer)) as stub:
        found = ramp(tmp_path, stub.url, MODEL, *words)
    assert (found.code, found.counts) == (1, [(1, 3, 3)])
    assert found.document["levels"][0]["failures"] == {"cut stream": 2, "stream error": 1}
    lines = contents(archive)["record/requests.jsonl"].splitlines()
    errors = [json.loads(line)["error"] for line in lines]
    assert errors[0].startswith("the stream ended after about 2 of 6 tokens: ")
    assert errors[1] == "the stream ended after 2 of 6 tokens"
    assert errors[2] == "error in the stream: EngineDeadError"
    assert errors[3:] == [None] * 3


class Gate:
    """Lets `whole` requests through, then holds the others until released."""

    def __init__(self, whole: int) -> None:
        self._whole = whole
        self.reached = threading.Event()
        self.released = threading.Event()

    def __call__(self, handler: Handler, number: int, body: dict[str, Any]) -> bool:
        if body.get("stream") and number >= self._whole:
            handler.begin_stream()
            handler.token()
            self.reached.set()
            self.released.wait(120)
            return True
        return False


def test_a_killed_generator_is_no_verdict_on_the_server(tmp_path: Path) -> None:
    gate = Gate(3)
    with stub_server(Stub(answer=gate)) as stub:
        running = Ramp(tmp_path, stub.url, MODEL, "--levels", "2", "--requests", "8", *SMALL)
        assert gate.reached.wait(120)
        time.sleep(0.5)
        os.kill(running.generator(), signal.SIGKILL)
        found = running.finish()
        gate.released.set()
    assert found.code == 1
    assert found.counts == [(2, 3, 5)]
    assert found.document["verdict"] == "inconclusive"
    assert list(found.document["levels"][0]["failures"]) == ["generator"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_ramp_says_that_it_is_partial(
    tmp_path: Path, number: signal.Signals
) -> None:
    gate = Gate(3)
    with stub_server(Stub(answer=gate)) as stub:
        running = Ramp(tmp_path, stub.url, MODEL, "--levels", "2,4", "--requests", "8", *SMALL)
        assert gate.reached.wait(120)
        time.sleep(0.5)
        generator = running.generator()
        running.signal(number)
        found = running.finish()
        gate.released.set()
    assert found.code == 130
    assert found.counts == [(2, 3, 5)]
    assert (found.document["verdict"], found.document["partial"]) == ("interrupted", True)
    assert found.document["levels"][0]["failures"] == {"cut off": 2, "not sent": 3}
    assert "partial" in found.out
    assert not Path(f"/proc/{generator}").exists()


def test_a_secret_that_the_server_echoes_is_masked(tmp_path: Path) -> None:
    secret = "tsj-4711-quite-unlike-others"

    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        handler.say(401, {"error": f"wrong key: {handler.headers['Authorization']}"})
        return True

    archive = tmp_path / "record.tar.gz"
    words = ("--levels", "1", "--requests", "2", *SMALL, "--archive", archive)
    with stub_server(Stub(answer=answer)) as stub:
        found = ramp(tmp_path, stub.url, MODEL, *words, env={"OPENAI_API_KEY": secret})
    assert (found.code, found.counts) == (1, [(1, 0, 2)])
    assert "HTTP 401: wrong key" in found.document["first_failure"]["error"]
    assert secret not in found.out + found.err + (tmp_path / "ramp.json").read_text()
    assert not [name for name, data in contents(archive).items() if secret.encode() in data]
