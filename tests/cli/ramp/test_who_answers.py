"""Answers that another than the server gave: a cache, a second server, an engine that is not
behind the address; and servers too slow to say who they are."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hisparse_guard.cli import endpoint
from hisparse_guard.cli.ramp import server
from tests.cli.probe.test_probe import probe
from tests.cli.ramp.bad_answers import drip
from tests.cli.ramp.process import ramp_here
from tests.cli.ramp.stub import MODEL, Handler, Stub, stub_server
from tests.cli.ramp.test_servers import WORDS, choice, ends_well_but, run, whole_but


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Cache", "HIT"),
        ("X-Cache", "Hit from cloudfront"),
        ("X-Cache", "MISS, HIT"),
        ("X-Cache", "TCP_HIT"),
        ("CF-Cache-Status", "STALE"),
        ("Cache-Status", "edge; hit; ttl=30"),
        ("x-gateway-cache-hit", "True"),
        ("X-Cache-Hits", "0, 2"),
        ("Age", "30"),
    ],
)
def test_headers_of_caches(name: str, value: str) -> None:
    assert endpoint.cached([("Date", "x"), (name, value)])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Cache", "MISS"),
        ("Cache-Status", "edge; fwd=miss; stored"),
        ("Cache-Control", "no-cache, stale-if-error=5"),
        ("Age", "0"),
        ("X-Cache-Hits", "0"),
        ("x-kv-cache-hit-rate", "0.9"),
        ("x-prefix-cache-hits", "512"),
        ("x-cache-hit", "False"),
    ],
)
def test_headers_of_no_cache(name: str, value: str) -> None:
    assert endpoint.cached([(name, value)]) is None


def with_header(name: str, value: str) -> Callable[[Handler, dict[str, Any]], None]:
    def change(handler: Handler, body: dict[str, Any]) -> None:
        handler.send_response(200)
        handler.send_header(name, value)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for n in range(body["max_tokens"]):
            handler.token("length" if n == body["max_tokens"] - 1 else None, n)
        handler.end_stream(len(body["prompt"]), body["max_tokens"])

    return change


def test_a_cache_answers_a_request_of_the_load(tmp_path: Path) -> None:
    stub = whole_but(with_header("X-Cache", "HIT"))
    found = run(tmp_path, stub)
    assert (found.code, found.document["verdict"]) == (1, "inconclusive")
    assert found.document["levels"][0]["failures"] == {"cached": 1}
    assert all(one["Cache-Control"] == "no-cache" for one in stub.headers)


def test_a_cache_answers_from_the_start(tmp_path: Path) -> None:
    change = with_header("Age", "7")
    stub = Stub(every=True, answer=lambda handler, _, body: change(handler, body) or True)
    found = run(tmp_path, stub)
    assert (found.code, found.document["verdict"]) == (1, "inconclusive")
    assert "answered from a cache (age: 7)" in found.document["stopped"].lower()
    assert not stub.load


@pytest.mark.parametrize("path", ["/health", "/version", "/metrics", "/v1/models"])
def test_a_cache_answers_about_the_server(tmp_path: Path, path: str) -> None:
    def cached(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("X-Cache-Status", "HIT")
        handler.send_header("Content-Length", "2")
        handler.end_headers()
        handler.wfile.write(b"{}")

    found = run(tmp_path, Stub(get={path: cached}))
    assert found.code == 0
    said = {
        "/health": "the server's own health",
        "/version": "the server's version",
        "/metrics": "was not restarted",
        "/v1/models": "lists the model",
    }
    assert said[path] in found.document["sentence"]


def test_a_cache_that_does_not_say_so(tmp_path: Path) -> None:
    """It gives an answer with its old id."""
    numbers = itertools.count()
    held: dict[str, str] = {}

    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        new = f"cmpl-{next(numbers)}"
        name = held.setdefault(str(body["prompt"]), new)
        handler.begin_stream()
        for n in range(body["max_tokens"]):
            end = "length" if n == body["max_tokens"] - 1 else None
            one = {"index": 0, "text": f" w{n}", "token_ids": [n], "finish_reason": end}
            handler.event(id=name, choices=[one])
        handler.event(
            id=name,
            choices=[],
            usage={"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]},
        )
        handler.chunk("data: [DONE]\n\n")
        handler.wfile.write(b"0\r\n\r\n")
        return True

    found = run(tmp_path, Stub(answer=answer, every=True))
    assert "that 4 known answers came from the server" in found.document["sentence"]


def test_a_probe_that_a_cache_answers() -> None:
    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        handler.send_response(200)
        handler.send_header("X-Cache", "HIT")
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return True

    with stub_server(Stub(answer=answer, every=True)) as stub:
        done = probe(stub.url)
    assert done.returncode == 1 and "from a cache" in done.stdout


def test_a_probe_asks_something_else_each_time() -> None:
    with stub_server(Stub()) as stub:
        assert [probe(stub.url).returncode for _ in range(2)] == [0, 0]
    one, two = (body["prompt"] for body in stub.bodies)
    assert one != two


STATES = {
    "failed": ends_well_but(lambda handler: handler.event(choices=[], status="failed")),
    "incomplete": ends_well_but(lambda handler: handler.event(choices=[], status="incomplete")),
    "why": ends_well_but(lambda handler: handler.event(choices=[], incomplete_details={"a": 1})),
    "code": ends_well_but(lambda handler: handler.event(choices=[], code=500)),
    "name": ends_well_but(lambda handler: handler.event(choices=[], error_msg="died")),
    "kind": ends_well_but(lambda handler: handler.event(choices=[], type="error")),
    "object": ends_well_but(lambda handler: handler.event(choices=[], object="response.failed")),
    "of a choice": ends_well_but(choice(status="cancelled")),
    "event": ends_well_but(lambda handler: handler.chunk("event: response.failed\ndata: {}\n\n")),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_in_the_stream_that_is_not_good(tmp_path: Path, name: str) -> None:
    found = run(tmp_path, whole_but(STATES[name]))
    assert found.document["levels"][0]["failures"] == {"stream error": 1}
    assert (found.code, found.document["verdict"]) == (1, "failed")


def test_a_state_in_the_stream_that_is_good(tmp_path: Path) -> None:
    good = ends_well_but(lambda handler: handler.event(choices=[], status="completed"))
    assert run(tmp_path, whole_but(good)).code == 0


def test_two_models_of_one_name(tmp_path: Path) -> None:
    models = [{"id": MODEL, "created": n, "root": f"/m/{n}"} for n in (5, 6)]
    stub = Stub(get={"/v1/models": lambda handler: handler.say(200, {"data": models})})
    found = run(tmp_path, stub)
    assert "which model answers (2 are listed by this name)" in found.document["not_shown"]

    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        models.append(models[0])
        return False

    found = run(tmp_path, Stub(answer=answer, get=stub.get))
    assert (found.code, found.document["changed"]) == (0, None)


@pytest.mark.parametrize(
    ("later", "code"), [("vllm-0.32-b", 1), (None, 1), ("vllm-0.32-a", 0), ("in turn", 0)]
)
def test_a_fingerprint(tmp_path: Path, later: str | None, code: int) -> None:
    """vLLM's is made of its version and configuration."""
    numbers = itertools.count()

    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        idle = not isinstance(body["prompt"], list)
        told: str | None = "vllm-0.32-a" if idle else later
        if later == "in turn":
            told = f"vllm-{next(numbers) % 3}"
        handler.begin_stream()
        for n in range(body["max_tokens"]):
            end = "length" if n == body["max_tokens"] - 1 else None
            one = {"index": 0, "text": f" w{n}", "token_ids": [n], "finish_reason": end}
            handler.event(choices=[one], **({"system_fingerprint": told} if end else {}))
        handler.end_stream(len(body["prompt"]), body["max_tokens"])
        return True

    found = run(tmp_path, Stub(answer=answer, every=True))
    assert (found.code, found.document["verdict"] == "passed") == (code, code == 0)
    if code:
        assert found.document["levels"][0]["failures"] == {"wrong answer": 4}
        assert "another server's fingerprint" in found.document["first_failure"]["error"]
    assert ("several servers answer" in found.document["sentence"]) == (later == "in turn")


def counting(stub: Stub, rise: float) -> Stub:
    """Its /metrics counts so much of each token that the load asked for, and none of other
    requests, whose number is a matter of time."""

    def metrics(handler: Handler) -> None:
        asked = sum(20 for body in stub.bodies if body["max_tokens"] == 20)
        handler.text(
            "process_start_time_seconds 1000.5\n"
            f'vllm:generation_tokens_total{{engine="0"}} {7 + rise * asked}\n'
            'vllm:generation_tokens_total{engine="1"} 5.0\n'
        )

    stub.get["/metrics"] = metrics
    return stub


@pytest.mark.parametrize(("rise", "code"), [(1, 0), (0, 1), (0.5, 1)])
def test_tokens_that_the_server_did_not_count(tmp_path: Path, rise: float, code: int) -> None:
    words = ("--requests", "12", "--osl", "20")
    found = run(tmp_path, counting(Stub(), rise), *words)
    assert found.code == code
    assert ("that the load reached" in found.document["sentence"]) == bool(code)
    assert found.document["verdict"] == ("inconclusive" if code else "passed")


def engine(tmp_path: Path, *engines: Stub) -> Any:
    with stub_server(Stub(started=None, version=None)) as router:
        words = [word for one in engines for word in ("--engine-url", one.url)]
        return ramp_here(tmp_path, router.url, MODEL, *WORDS, *words)


def test_an_engine_that_has_nothing_to_do_with_the_address(tmp_path: Path) -> None:
    with stub_server(counting(Stub(), 1)) as idle, stub_server(Stub()) as silent:
        found = engine(tmp_path, idle)
        assert (found.code, found.document["verdict"]) == (1, "inconclusive")
        assert "counts none of its tokens" in found.document["sentence"]
        # It counts nothing: then its health is not shown to be that of the server.
        found = engine(tmp_path, silent)
        assert f"that the load was on {silent.url}" in found.document["sentence"]
        found = engine(tmp_path, idle, silent)
        assert f"that the load was on {idle.url}" in found.document["sentence"]


@pytest.mark.parametrize("path", ["/v1/models", "/version", "/metrics"])
def test_a_server_too_slow_to_say_who_it_is(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ASK_S", 0.5)
    stub = Stub()

    def slow(handler: Handler) -> None:
        if stub.load:
            return drip(handler)
        handler.stub.get.pop(path)
        try:
            handler.do_GET()
        finally:
            handler.stub.get[path] = slow

    stub.get[path] = slow
    found = run(tmp_path, stub)
    assert "another server answers" not in found.document["sentence"]
    assert "no longer listed" not in found.document["sentence"]
    assert f"it is the same server at the end ({path}: no complete answer" in found.out
    assert found.code == 0
