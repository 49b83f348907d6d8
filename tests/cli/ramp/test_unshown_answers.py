"""Answers that end well and are not shown to be the model's own to what was asked."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.ramp.bad_answers import ids_alone
from tests.cli.ramp.stub import Handler, Stub
from tests.cli.ramp.test_servers import run, whole_but

Token = tuple[int, str]


def words(count: int, seed: object = 0) -> list[Token]:
    numbers = random.Random(str(seed)).sample(range(10, 30_000), count)
    return [(number, f" w{number}") for number in numbers]


def said(handler: Handler, body: dict[str, Any], tokens: list[Token], **first: Any) -> bool:
    """A whole answer of these tokens; `first` goes into the first event's choice."""
    handler.begin_stream()
    for n, (number, text) in enumerate(tokens):
        end = "length" if n == len(tokens) - 1 else None
        handler.token(end, number, text=text, **({} if n else first))
    handler.end_stream(len(body["prompt"]), len(tokens))
    return True


def always(tokens: Callable[[int, list[int]], list[Token]]) -> Stub:
    """Answers every request of the load with what `tokens` makes of its length and prompt."""
    return Stub(
        answer=lambda handler, _, body: said(
            handler, body, tokens(body["max_tokens"], body["prompt"])
        )
    )


def of_no_text(text: str) -> Stub:
    return always(lambda count, prompt: [(number, text) for number, _ in words(count, prompt)])


UNSHOWN = {
    "one answer for all": (always(lambda count, _: words(count)), "as to another prompt"),
    "one text for all": (
        always(lambda count, prompt: [(n, " good day") for n, _ in words(count, prompt)]),
        "as to another prompt",
    ),
    "two answers for all": (
        Stub(answer=lambda handler, n, body: said(handler, body, words(8, n % 2))),
        "as to another prompt",
    ),
    "the prompt given back": (
        always(lambda count, prompt: [(n, f" w{n}{k}") for k, n in enumerate(prompt[:count])]),
        "its own prompt",
    ),
    "one token for each prompt": (
        always(lambda count, prompt: [(sum(prompt), f" w{sum(prompt)}")] * count),
        "repeated",
    ),
    "two tokens in turn": (
        always(lambda count, prompt: (words(2, prompt) * count)[:count]),
        "repeated",
    ),
    "impossible ids": (
        always(lambda count, prompt: [(10**9 + n, t) for n, t in words(count, prompt)]),
        "no vocabulary",
    ),
    "a book in a token": (
        always(lambda count, prompt: [(n, f" w{n}" * 9999) for n, _ in words(count, prompt)]),
        "more text than its tokens",
    ),
    "first token alone with text": (
        always(
            lambda count, prompt: [
                (n, "" if k else f" w{n}") for k, (n, _) in enumerate(words(count, prompt))
            ]
        ),
        "no text that can be read",
    ),
}


@pytest.mark.parametrize("name", UNSHOWN)
def test_answers_that_show_nothing_are_counted(tmp_path: Path, name: str) -> None:
    stub, why = UNSHOWN[name]
    found = run(tmp_path, stub, "--osl", "8", "--requests", "8")
    assert found.counts == [(2, 8, 0)], "such answers have not failed"
    (told,) = found.document["not_shown"]
    assert told.startswith("that 8 answers of the load are no garbage") and why in told
    # Only text can be judged so far that a ramp without any is not passed.
    passed = "no text" not in why
    assert (found.code, found.document["verdict"] == "passed") == (1 - passed, passed)
    assert told in found.document["sentence"]


@pytest.mark.parametrize("text", [" ", "\n", "\x00", "\u200b", "\u3164", "\ufffd"])
def test_answers_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    found = run(tmp_path, of_no_text(text))
    assert (found.code, found.document["verdict"]) == (1, "inconclusive")
    assert "4 answers of the load are no garbage" in found.document["sentence"]


def test_some_alike_answers_are_counted_and_no_failure(tmp_path: Path) -> None:
    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        return number < 2 and said(handler, body, words(6))

    found = run(tmp_path, Stub(answer=answer))
    assert (found.code, found.counts) == (0, [(2, 4, 0)])
    (told,) = found.document["not_shown"]
    assert "that 2 answers of the load" in told


def test_known_answers_that_show_nothing(tmp_path: Path) -> None:
    """A server that says one thing to everything, from the start."""
    stub = Stub(
        answer=lambda handler, _, body: said(handler, body, [(7, "!")] * body["max_tokens"]),
        every=True,
    )
    found = run(tmp_path, stub)
    assert found.code == 0
    assert any("4 known answers are no garbage" in one for one in found.document["not_shown"])


@pytest.mark.parametrize("ids", [[1] * 8, [1], [], "all but the last"])
def test_an_answer_to_another_prompt_is_a_failure(tmp_path: Path, ids: Any) -> None:
    def change(handler: Handler, body: dict[str, Any]) -> None:
        sent = body["prompt"]
        told = sent[:-1] if isinstance(ids, str) else ids
        said(handler, body, words(6), prompt_token_ids=told)

    found = run(tmp_path, whole_but(change))
    assert (found.code, found.counts) == (1, [(2, 3, 1)])
    assert found.document["levels"][0]["failures"] == {"wrong answer": 1}
    assert "another prompt" in found.document["first_failure"]["error"]


def test_prompt_ids_of_a_wrong_type(tmp_path: Path) -> None:
    def change(handler: Handler, body: dict[str, Any]) -> None:
        said(handler, body, words(6), prompt_token_ids={"x": 1})

    found = run(tmp_path, whole_but(change))
    assert found.document["levels"][0]["failures"] == {"stream error": 1}


def test_prompt_ids_that_are_no_longer_told(tmp_path: Path) -> None:
    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        idle = not isinstance(body["prompt"], list)
        first = {"prompt_token_ids": [1, 2, 3]} if idle else {}
        return said(handler, body, words(body["max_tokens"], body["prompt"]), **first)

    found = run(tmp_path, Stub(answer=answer, every=True))
    assert found.code == 0
    (told,) = found.document["not_shown"]
    assert "4 answers of the load" in told and "prompt" in told


def test_the_prompt_that_was_sent_is_well(tmp_path: Path) -> None:
    def answer(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        return said(handler, body, words(6, body["prompt"]), prompt_token_ids=body["prompt"])

    found = run(tmp_path, Stub(answer=answer))
    assert (found.code, found.document["not_shown"]) == (0, [])


def test_token_ids_without_text_are_no_shown_answer(tmp_path: Path) -> None:
    found = run(tmp_path, whole_but(ids_alone))
    assert found.code == 0 and "1 answer of the load" in found.document["not_shown"][0]

    def every(handler: Handler, number: int, body: dict[str, Any]) -> bool:
        ids_alone(handler, body)
        return True

    found = run(tmp_path, Stub(answer=every))
    assert (found.code, found.counts) == (1, [(2, 4, 0)])
    assert found.document["verdict"] == "inconclusive"
    assert "4 answers without text that can be read" in found.document["sentence"]
    # A server without a detokenizer never sends text; its ids are compared before and after.
    found = run(tmp_path, Stub(text=""))
    assert found.code == 0 and any("are text" in one for one in found.document["not_shown"])
