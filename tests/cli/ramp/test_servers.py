"""Ramps against servers that misbehave: each is a finding, with its exit code and its result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hisparse_guard.cli.ramp import server
from tests.cli.ramp.bad_answers import (
    aborted,
    bomb,
    continued,
    cut,
    deep,
    drip,
    endless,
    endless_headers,
    error_event,
    huge_usage,
    named_error_event,
    no_done,
    no_end,
    no_http,
    no_ids,
    no_text,
    no_usage,
    of_two,
    other_model,
    page,
    redirect,
    short,
    usage_alone,
    wrong_types,
)
from tests.cli.ramp.process import Finished, ramp_here
from tests.cli.ramp.stub import HEAD, MODEL, Handler, Stub, stub_server

WORDS = ("--levels", "2", "--requests", "4", "--isl", "8", "--osl", "6", "--timeout", "3")
WORDS = (*WORDS, "--probe-timeout", "3")


def run(folder: Path, stub: Stub, *words: str, **how: Any) -> Finished:
    with stub_server(stub):
        found = ramp_here(folder, stub.url + stub.prefix, MODEL, *WORDS, *words, **how)
    assert "Traceback" not in found.err
    assert found.document, found.err
    return found


def test_a_good_server_passes(tmp_path: Path) -> None:
    found = run(tmp_path, Stub())
    assert (found.code, found.counts) == (0, [(2, 4, 0)])
    assert found.document["verdict"] == "passed" and found.document["not_shown"] == []
    assert found.err == "", "quiet where there is no terminal"


def whole_but(change: Callable[[Handler, dict[str, Any]], None]) -> Stub:
    """A server whose first answer of the load is another."""

    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        if number:
            return False
        change(handler, body)
        return True

    return Stub(answer=answer)


def ends_well_but(odd: Callable[[Handler], None], prompt_tokens: int = 8) -> Any:
    """A whole answer with something odd after its last token."""

    def change(handler: Handler, body: dict[str, Any]) -> None:
        handler.begin_stream()
        for n in range(6):
            handler.token("length" if n == 5 else None)
        odd(handler)
        handler.end_stream(prompt_tokens, 6)

    return change


def choice(**fields: Any) -> Callable[[Handler], None]:
    return lambda handler: handler.event(choices=[{"index": 0, "text": "", **fields}])


ODD = {
    "another prompt": (ends_well_but(lambda handler: None, prompt_tokens=1), "usage"),
    "two usage records": (
        ends_well_but(
            lambda handler: handler.event(
                choices=[], usage={"prompt_tokens": 8, "completion_tokens": 600}
            )
        ),
        "usage",
    ),
    "two ends": (ends_well_but(choice(finish_reason="abort")), "stream error"),
    "no event": (
        ends_well_but(lambda handler: handler.chunk("Internal Server Error\n\n")),
        "stream error",
    ),
    "an empty error": (
        ends_well_but(lambda handler: handler.chunk('data: {"error": {}}\n\n')),
        "stream error",
    ),
    "an event that is none of a completion": (
        ends_well_but(lambda handler: handler.chunk('data: {"code": 500, "message": "died"}\n\n')),
        "stream error",
    ),
    "a detail beside choices": (
        ends_well_but(lambda handler: handler.event(choices=[], detail="died")),
        "stream error",
    ),
    "a message beside choices": (
        ends_well_but(lambda handler: handler.event(choices=[], code=500, message="died")),
        "stream error",
    ),
    "an error in a delta": (ends_well_but(choice(delta={"error": "died"})), "stream error"),
    "a key twice": (
        ends_well_but(lambda handler: handler.chunk('data: {"error": 1, "error": null}\n\n')),
        "wrong answer",
    ),
    "an error event without words": (
        ends_well_but(lambda handler: handler.chunk("event: error\ndata: [DONE]\n\n")),
        "stream error",
    ),
    "negative token": (ends_well_but(choice(token_ids=[-1])), "stream error"),
    "an error in a choice": (ends_well_but(choice(error={"message": "boom"})), "stream error"),
    "another choice": (ends_well_but(choice(index=3)), "stream error"),
    "a model that is no name": (
        ends_well_but(lambda handler: handler.event(model=5, choices=[])),
        "stream error",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_a_whole_answer_with_something_odd_is_a_failure(tmp_path: Path, name: str) -> None:
    change, kind = ODD[name]
    found = run(tmp_path, whole_but(change))
    assert found.document["levels"][0]["failures"] == {kind: 1}
    assert (found.code, found.document["verdict"]) == (1, "failed")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (redirect, "redirect"),
        (error_event, "stream error"),
        (named_error_event, "stream error"),
        (no_end, "cut stream"),
        (no_done, "cut stream"),
        (short, "short answer"),
        (usage_alone, "usage"),
        (no_text, "no text"),
        (no_ids, "usage"),
        (other_model, "wrong answer"),
        (aborted, "stream error"),
        (cut, "connection"),
        (drip, "timeout"),
        (deep, "wrong answer"),
        (wrong_types, "stream error"),
        (huge_usage, "wrong answer"),
        (endless, "wrong answer"),
        (bomb, "wrong answer"),
        (of_two, "wrong answer"),
        (no_usage, "usage"),
        (page, "cut stream"),
        (endless_headers, "connection"),
        (continued, "timeout"),
        (no_http, "connection"),
    ],
)
def test_one_bad_answer_is_a_failure(
    tmp_path: Path, change: Callable[[Handler, dict[str, Any]], None], kind: str
) -> None:
    found = run(tmp_path, whole_but(change))
    assert (found.code, found.counts) == (1, [(2, 3, 1)])
    assert found.document["levels"][0]["failures"] == {kind: 1}
    assert found.document["verdict"] == "failed"


@pytest.mark.parametrize("path", ["/health", "/version", "/metrics", "/v1/models"])
@pytest.mark.parametrize("bad", [redirect, bomb, deep])
def test_bad_answers_about_itself(
    tmp_path: Path, path: str, bad: Callable[[Handler], None]
) -> None:
    found = run(tmp_path, Stub(get={path: bad}))
    if path == "/v1/models" or (path == "/health" and bad is not deep):
        assert found.code == 1 and found.document["verdict"] == "inconclusive"
    else:
        # All else is well, and what could not be told is said.
        assert found.code == 0
        said = {
            "/version": "the server's version",
            "/health": "the server's own health (/health tells none)",
        }
        assert path not in said or said[path] in found.document["not_shown"]


@pytest.mark.parametrize(("name", "limit"), [("\ud800\x1b[2J", 100_000), ("x", -5)])
def test_lists_of_models_with_odd_values(tmp_path: Path, name: str, limit: int) -> None:
    models = [{"id": MODEL, "max_model_len": limit}, {"id": name}]
    stub = Stub(get={"/v1/models": lambda handler: handler.say(200, {"data": models})})
    found = run(tmp_path, stub, "--archive", str(tmp_path / "x.tar.gz"))
    assert found.code == 0, found.err


@pytest.mark.parametrize(
    "models",
    [[], {"data": 5}, {"data": [5, {"id": 5}]}, "x", None],
)
def test_lists_of_models_of_a_wrong_shape(tmp_path: Path, models: Any) -> None:
    found = run(tmp_path, Stub(get={"/v1/models": lambda handler: handler.say(200, models)}))
    assert (found.code, found.document["verdict"]) == (1, "inconclusive")


def test_a_health_that_drips_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ASK_S", 1.0)
    found = run(tmp_path, Stub(get={"/health": drip}))
    assert found.code == 1 and found.document["stopped"].startswith("the server is not healthy")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("started", 2000.0),
        ("started", 1.0),
        ("version", "0.33.0"),
        ("created", 6),
        ("root", "/another"),
        ("max_model_len", 90_000),
    ],
)
def test_a_restart_in_the_middle_is_seen(tmp_path: Path, field: str, value: Any) -> None:
    stub = Stub()

    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        if number == 2:
            setattr(stub, field, value)
        return False

    stub.answer = answer
    found = run(tmp_path, stub, "--levels", "1,1", "--requests", "3,3")
    assert (found.code, found.document["verdict"]) == (1, "failed")
    assert "another server answers" in found.document["changed"]
    assert found.document["levels_not_run"]


def test_a_page_is_no_health(tmp_path: Path) -> None:
    found = run(tmp_path, Stub(get={"/health": page}))
    assert (
        found.code == 0
        and "the server's own health (/health tells none)" in found.document["not_shown"]
    )


def test_a_stream_with_comments_other_line_ends_and_no_length(tmp_path: Path) -> None:
    def change(handler: Handler, body: dict[str, Any]) -> None:
        handler.close_connection = True
        handler.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        choices = [{"index": 0, "text": "x", "token_ids": [1]}] * 5
        choices.append(choices[0] | {"finish_reason": "length"})
        events = [HEAD | {"choices": [one]} for one in choices]
        events.append(HEAD | {"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 6}})
        for one in [*map(json.dumps, events), "[DONE]"]:
            handler.wfile.write(f": ping\r\n\r\ndata:{one}\r\n\r\n".encode())

    assert run(tmp_path, whole_but(change)).code == 0


def test_one_token_repeated_is_said(tmp_path: Path) -> None:
    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        handler.begin_stream()
        count = body["max_tokens"]
        for n in range(count):
            of_load = isinstance(body["prompt"], list)
            handler.token("length" if n == count - 1 else None, 0 if of_load else n + 1)
        handler.end_stream(len(body["prompt"]), count)
        return True

    found = run(tmp_path, Stub(answer=answer, every=True), "--osl", "20")
    assert found.code == 0
    assert any("4 answers of the load are no garbage" in one for one in found.document["not_shown"])


def test_a_death_after_the_last_request_is_seen(tmp_path: Path) -> None:
    stub = Stub()

    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        if number == 3:
            stub.health = 503
        return False

    stub.answer = answer
    found = run(tmp_path, stub)
    assert (found.code, found.counts) == (1, [(2, 4, 0)])
    assert "does not serve afterwards" in found.document["sentence"]


def test_a_dead_engine_ends_the_ramp(tmp_path: Path) -> None:
    stub = Stub(every=True)

    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        if number < 2:
            return False
        stub.health = 503
        handler.begin_stream()
        handler.token()
        time.sleep(60)
        return True

    stub.answer = answer
    words = ("--levels", "2,4", "--requests", "20,4", "--timeout", "60")
    found = run(tmp_path, stub, *words)
    assert found.code == 1 and found.document["engine_dead"]
    assert found.document["levels_not_run"] == [{"concurrency": 4, "planned": 4}]


def test_garbled_output_is_not_done(tmp_path: Path) -> None:
    stub = Stub()

    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        stub.text = "!"
        return False

    def token(self: Handler, finish: str | None = None, number: int = 1, **fields: Any) -> None:
        number = 7 if self.stub.text == "!" else 1
        choice = {"index": 0, "text": self.stub.text, "finish_reason": finish}
        self.event(choices=[choice | {"token_ids": [number]}])

    stub.answer = answer
    original, Handler.token = Handler.token, token  # type: ignore[method-assign]
    try:
        found = run(tmp_path, stub)
    finally:
        Handler.token = original  # type: ignore[method-assign]
    assert (found.code, found.counts) == (1, [(2, 4, 0)])
    assert "known answers differ from those before" in found.document["sentence"]


def test_a_control_server_that_answers_otherwise(tmp_path: Path) -> None:
    control = Stub(plain=False, text="y")
    original = Handler.token

    def token(self: Handler, finish: str | None = None, number: int = 1, **fields: Any) -> None:
        original(self, finish, 9 if self.stub is control else 1, **fields)

    Handler.token = token  # type: ignore[method-assign]
    try:
        with stub_server(control):
            found = run(tmp_path, Stub(), "--control-url", control.url)
    finally:
        Handler.token = original  # type: ignore[method-assign]
    assert found.code == 1
    assert "differ from those of the control server" in found.document["sentence"]


def test_a_server_that_is_not_vllm_behind_a_prefix(tmp_path: Path) -> None:
    stub = Stub(plain=True, health=None, version=None, started=None, prefix="/llm/a", text="xy ")
    found = run(tmp_path, stub)
    assert found.code == 0, found.out + found.err
    said = found.document["sentence"]
    for words in ("version", "health", "number of tokens", "no ignore_eos", "sent as words"):
        assert words in said
    assert all(path.startswith("/llm/a/") for path in stub.paths)


def test_a_fault_in_the_log_is_no_pass(tmp_path: Path) -> None:
    log = Path(__file__).parents[2] / "data" / "logs" / "main-crash.log"
    found = run(tmp_path, Stub(), "--server-log", str(log))
    assert (found.code, found.document["verdict"]) == (1, "failed")
    assert "triage says" in found.document["sentence"]
