"""Servers that look well and are not: garbled under load only, sick with 200, told twice."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hisparse_guard.cli.ramp.api import Api, BadAnswer, tls_context
from hisparse_guard.cli.ramp.server import Server, told_state
from tests.cli.ramp.process import ramp
from tests.cli.ramp.stub import HEAD, Handler, Stub, stub_server
from tests.cli.ramp.test_servers import run, whole_but

# Long enough for one watch and several known answers within a level.
LONG = ("--levels", "2", "--requests", "12", "--osl", "6", "--timeout", "20")


def said(handler: Handler, body: dict[str, Any], numbers: list[int]) -> bool:
    """An answer of these token ids."""
    handler.begin_stream()
    for n, number in enumerate(numbers):
        handler.token("length" if n == len(numbers) - 1 else None, number)
    handler.end_stream(len(body["prompt"]), len(numbers))
    return True


def of_load(body: dict[str, Any]) -> bool:
    return isinstance(body["prompt"], list)


def under_load(wrong: Callable[[int, int], list[int]]) -> Stub:
    """Answers rightly when idle; with a request of the load in flight a known prompt is answered
    with what `wrong` makes of its length and of the number of such questions."""
    running, asked, lock = [0], [0], threading.Lock()

    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        count = body["max_tokens"]
        if of_load(body):
            with lock:
                running[0] += 1
            time.sleep(0.1)
            with lock:
                running[0] -= 1
            return said(handler, body, list(range(count)))
        if running[0] and count == 16:
            asked[0] += 1
            return said(handler, body, wrong(count, asked[0]))
        return said(handler, body, list(range(count)))

    return Stub(answer=answer, every=True)


def test_garbled_under_load_only(tmp_path: Path) -> None:
    found = run(tmp_path, under_load(lambda count, _: [7, *range(count - 1)]), *LONG)
    assert (found.code, found.counts) == (1, [(2, 12, 0)])
    assert found.document["verdict"] == "failed"
    assert "known answers under load are wrong from the start" in found.document["sentence"]


def test_wrong_once_under_load_is_not_passed(tmp_path: Path) -> None:
    right = list(range(16))
    found = run(tmp_path, under_load(lambda _, n: right if n > 1 else [9, *right[1:]]), *LONG)
    assert (found.code, found.document["verdict"]) == (1, "inconclusive")
    assert "(1 of" in found.document["sentence"]


def test_another_end_under_load_is_said(tmp_path: Path) -> None:
    found = run(tmp_path, under_load(lambda count, _: [*range(count - 1), 99]), *LONG)
    assert found.code == 0 and "end otherwise" in found.document["sentence"]


def test_a_known_answer_that_fails_under_load(tmp_path: Path) -> None:
    found = run(tmp_path, under_load(lambda count, _: list(range(count - 1)) * 2), *LONG)
    assert (found.code, found.document["verdict"]) == (1, "failed")
    assert "fails under load" in found.document["sentence"]


def twice(handler: Handler, body: dict[str, Any]) -> None:
    said(handler, body, list(range(2 * body["max_tokens"])))


def each_twice(handler: Handler, body: dict[str, Any]) -> None:
    said(handler, body, [n // 2 for n in range(body["max_tokens"])])


def one_more(handler: Handler, body: dict[str, Any]) -> None:
    said(handler, body, list(range(body["max_tokens"] + 1)))


def after_done(line: str) -> Callable[[Handler, dict[str, Any]], None]:
    def change(handler: Handler, body: dict[str, Any]) -> None:
        handler.begin_stream()
        for n in range(body["max_tokens"]):
            handler.token("length" if n == body["max_tokens"] - 1 else None)
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        handler.event(choices=[], usage=usage)
        handler.chunk("data: [DONE]\n\n" + line)
        handler.wfile.write(b"0\r\n\r\n")

    return change


def trailers(handler: Handler, body: dict[str, Any]) -> None:
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.send_header("Trailer", "X-Error")
    handler.end_headers()
    event = {"choices": [{"index": 0, "text": "x", "token_ids": [1]}]}
    handler.chunk(f"data: {json.dumps(HEAD | event)}\n\ndata: [DONE]\n\n")
    handler.wfile.write(b"0\r\nX-Error: engine died\r\n\r\n")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (twice, "long answer"),
        (one_more, "long answer"),
        (each_twice, "usage"),
        (after_done("event: error\n\n"), "stream error"),
        (after_done('event: error\ndata: {"message": "died"}\n\n'), "stream error"),
        (after_done('data: {"error": {"message": "died"}}\n\n'), "stream error"),
        (after_done("data: [DONE]\n\n"), "stream error"),
        (after_done("error: engine died\n\n"), "stream error"),
        (after_done("id: 7\n\n"), "stream error"),
        (after_done('{"error": 1}'), "cut stream"),
        (trailers, "wrong answer"),
    ],
)
def test_one_answer_is_a_failure(
    tmp_path: Path, change: Callable[[Handler, dict[str, Any]], None], kind: str
) -> None:
    found = run(tmp_path, whole_but(change), "--osl", "16")
    assert (found.code, found.counts) == (1, [(2, 3, 1)])
    assert found.document["levels"][0]["failures"] == {kind: 1}


def test_a_comment_after_done_is_none(tmp_path: Path) -> None:
    assert run(tmp_path, whole_but(after_done(": bye\n\n"))).code == 0


@pytest.mark.parametrize(
    ("body", "state"),
    [
        (b"", None),
        (b"OK", None),
        (b"{}", None),
        pytest.param(b"[" * 100_000, "[[[", id="deep"),
        (b'{"status": "UP", "uptime": 5, "version": "x"}', None),
        (b'{"ok": true}', None),
        (b"Engine is dead", "engine is dead"),
        (b'{"status": "unhealthy"}', "unhealthy"),
        (b'{"healthy": false}', "false"),
        (b'{"status": "ok", "engines": [{"state": "dead"}]}', "dead"),
        (b'"degraded"', "degraded"),
        (b'{"status": "ok", "error": "the engine died"}', "error"),
        (b'{"status": "ok", "errors": []}', None),
        (b'{"healthy": 0}', "0"),
        (b'{"status": 503}', "503"),
        (b'{"status": 200}', None),
        (b"", None),
        # In words that are not known: no health is shown.
        (b'{"success": false}', '{"success": false}'),
        (b'{"message": "EngineDeadError"}', '{"message": '),
        (b'{"engine_dead": true, "uptime": 5}', '{"engine_dead": '),
        (b"unhealthy: " + b"the engine died and is started again " * 9, "unhealthy: "),
    ],
)
def test_what_a_health_body_says(body: bytes, state: str | None) -> None:
    told = told_state(body)
    assert told == state or (told or "").startswith(state or "-")


def test_sick_with_200_after_the_load(tmp_path: Path) -> None:
    stub = Stub()
    stub.get["/health"] = lambda handler: handler.say(
        200, {"status": "unhealthy" if len(stub.load) > 3 else "ok"}
    )
    found = run(tmp_path, stub)
    assert (found.code, found.document["verdict"]) == (1, "failed")
    assert "/health says 'unhealthy'" in found.document["sentence"]


def test_sick_with_200_from_the_start(tmp_path: Path) -> None:
    found = run(tmp_path, Stub(get={"/health": lambda handler: handler.say(200, "unhealthy")}))
    assert (found.code, found.document["verdict"]) == (1, "inconclusive")


def test_an_odd_word_of_health_tells_nothing(tmp_path: Path) -> None:
    found = run(tmp_path, Stub(get={"/health": lambda handler: handler.say(200, "moo")}))
    assert found.code == 0
    assert "the server's own health (/health tells none)" in found.document["not_shown"]


@pytest.mark.parametrize("field", ["created", "version", "started", "root"])
def test_another_server_within_a_level_and_back(tmp_path: Path, field: str) -> None:
    stub = Stub()
    before = getattr(stub, field)
    other = f"{before}x" if isinstance(before, str) else before + 1

    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        setattr(stub, field, other if 1 <= number < 11 else before)
        time.sleep(0.1)
        return False

    stub.answer = answer
    found = run(tmp_path, stub, *LONG)
    assert (found.code, found.document["verdict"]) == (1, "failed")
    assert "another server answers" in found.document["changed"]
    assert found.document["changed"].endswith("seen under load")


def test_a_time_of_creation_that_goes_back(tmp_path: Path) -> None:
    stub = Stub()
    clock = itertools.count(5000)

    def models(handler: Handler) -> None:
        back = 1000 if len(stub.load) > 2 else 0
        created = next(clock) - back
        model = {"id": "stub", "created": created, "root": "/models/stub"}
        handler.say(200, {"data": [model]})

    stub.get["/v1/models"] = models
    found = run(tmp_path, stub)
    assert (found.code, found.document["verdict"]) == (1, "failed")
    assert "went back" in found.document["changed"]


def test_a_time_of_creation_that_jumps_at_the_start(tmp_path: Path) -> None:
    asked = [0]

    def models(handler: Handler) -> None:
        asked[0] += 1
        model = {"id": "stub", "created": 5 + 5000 * (asked[0] % 2), "root": "/models/stub"}
        handler.say(200, {"data": [model]})

    found = run(tmp_path, Stub(get={"/v1/models": models}))
    assert any("several servers answer" in one for one in found.document["not_shown"])


@pytest.mark.parametrize("under_load", [True, False])
def test_the_right_ids_with_another_text(tmp_path: Path, under_load: bool) -> None:
    """Clients read the text: a detokenizer that is broken garbles it with the ids intact."""
    running = [0]

    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        count = body["max_tokens"]
        if of_load(body):
            running[0] += 1
            time.sleep(0.7)
            running[0] -= 1
            return False
        garbled = running[0] > 0 if under_load else number >= 12
        handler.begin_stream()
        for n in range(count):
            end = "length" if n == count - 1 else None
            handler.token(end, n, **({"text": f" ?{n}"} if garbled else {}))
        handler.end_stream(len(body["prompt"]), count)
        return True

    found = run(tmp_path, Stub(answer=answer, every=True), *LONG)
    assert (found.code, found.document["verdict"]) == (1, "failed")
    assert "known answers" in found.document["sentence"]


@pytest.mark.parametrize("plain", [True, False])
def test_a_time_of_creation_that_is_a_constant_shows_no_restart(
    tmp_path: Path, plain: bool
) -> None:
    found = run(tmp_path, Stub(started=None, created=1_677_610_602, plain=plain, text="xy "))
    assert found.code == 0
    assert any("was not restarted" in one for one in found.document["not_shown"])


def test_comments_are_no_progress(tmp_path: Path) -> None:
    """A proxy that keeps the connection open must not hide an engine that stands still."""
    moves: list[None] = []

    def change(handler: Handler, body: dict[str, Any]) -> bool:
        handler.begin_stream()
        for _ in range(5):
            handler.chunk(": ping\n\n")
        handler.wfile.write(b"0\r\n\r\n")
        return True

    async def ask(url: str) -> None:
        api = Api(None, tls_context(None, False))
        try:
            await Server(api, url, "stub", ()).complete(
                [1], 4, deadline_s=5, moved=lambda: moves.append(None)
            )
        finally:
            await api.close()

    with (
        stub_server(Stub(answer=lambda handler, _, body: change(handler, body))) as stub,
        pytest.raises(BadAnswer),
    ):
        asyncio.run(ask(stub.url))
    assert not moves


def test_a_control_that_is_the_server_itself_shows_nothing(tmp_path: Path) -> None:
    stub = Stub()
    with stub_server(stub):
        by_name = stub.url.replace("127.0.0.1", "localhost")
        words = ("--levels", "1", "--requests", "2", "--isl", "8", "--osl", "6")
        for url in (stub.url, by_name):
            found = ramp(tmp_path, stub.url, "stub", *words, "--control-url", url)
            assert any("--control-url is the same" in one for one in found.document["not_shown"])


def test_a_health_without_content(tmp_path: Path) -> None:
    def health(handler: Handler) -> None:
        handler.send_response(204)
        handler.end_headers()

    found = run(tmp_path, Stub(get={"/health": health}))
    assert (found.code, found.document["not_shown"]) == (0, [])


def test_an_answer_that_names_no_model(tmp_path: Path) -> None:
    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        handler.event = lambda **fields: Handler.event(handler, **{**fields, "model": None})  # type: ignore[method-assign]
        return said(handler, body, [*range(number, number + body["max_tokens"])])

    found = run(tmp_path, Stub(answer=answer, every=True))
    assert "the model by its name: it answers as none" in found.document["not_shown"]


def test_a_health_that_fails_and_recovers_is_said(tmp_path: Path) -> None:
    asked = [0]

    def health(handler: Handler) -> None:
        asked[0] += 1
        # The first one is before the load.
        handler.say(503 if asked[0] == 3 else 200, {})

    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        time.sleep(1)
        return False

    found = run(tmp_path, Stub(get={"/health": health}, answer=answer), *LONG)
    assert found.code == 0
    assert any("healthy throughout (1 check" in one for one in found.document["not_shown"])


def test_a_key_that_unseen_characters_part_is_not_shown(tmp_path: Path) -> None:
    def change(handler: Handler, body: dict[str, Any]) -> None:
        handler.say(500, {"error": "Kx7-very\x1b[0m-secret-9Q or Kx7-very-\u200bsecret-9Q"})

    found = run(tmp_path, whole_but(change), env={"OPENAI_API_KEY": "Kx7-very-secret-9Q"})
    assert found.code == 1
    for part in ("Kx7", "secret-9Q"):
        assert part not in found.out + found.err + json.dumps(found.document)


def test_cookies_are_not_kept(tmp_path: Path) -> None:
    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        handler.send_response(200)
        for cookie in ("a=\xff\xfe; Path=/", "b=plain; Path=/"):
            handler.send_header("Set-Cookie", cookie)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for n in range(6):
            handler.token("length" if n == 5 else None, n + number)
        handler.end_stream(len(body["prompt"]), 6)
        return True

    stub = Stub(answer=answer)
    assert run(tmp_path, stub).code == 0
    assert not any("Cookie" in one for one in stub.headers)
