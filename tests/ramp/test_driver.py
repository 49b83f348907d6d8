"""The part of the driver that is ours, without vLLM: its request function is stood in for."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from hisparse_guard.cli.ramp.bench_driver import Prompts, Recorder, arguments

PLAN: dict[str, Any] = {
    "base_url": "http://127.0.0.1:1",
    "tokenize_url": "http://127.0.0.1:1/tokenize",
    "model": "m",
    "requests": 6,
    "concurrency": 2,
    "conversations": 0,
    "turns": 1,
    "isl": 20,
    "turn_isl": 3,
    "osl": 4,
    "seed": "1/0",
    "pool": list(range(100, 200)),
    "timeout_s": 5.0,
    "insecure": False,
    "request_id": "ramp-x-2",
}


@dataclass
class Output:
    generated_text: str = ""
    success: bool = False
    latency: float = 0.0
    output_tokens: int = 0
    ttft: float = 0.0
    itl: list[float] = field(default_factory=list)
    prompt_len: int = 0
    error: str = ""


@dataclass
class Input:
    prompt: list[int]
    prompt_len: int = 0
    expected_output_len: int = 0
    request_id: str = ""


class NoSession:
    def post(self, *_: Any, **__: Any) -> Any:
        raise OSError("nobody there")


def run(
    answer: Callable[[Input], Awaitable[Output]],
    stop: Callable[[Recorder], None] | None = None,
    **changes: Any,
) -> list[dict[str, Any]]:
    plan = PLAN | changes
    events: list[dict[str, Any]] = []

    async def request(request_func_input: Input, session: Any) -> Output:
        return await answer(request_func_input)

    recorder = Recorder(plan, events.append, request, Output)
    samples = recorder.samples(Input)

    async def benchmark() -> None:
        limit = asyncio.Semaphore(plan["concurrency"])

        async def limited(sample: Input) -> None:
            async with limit:
                await recorder(request_func_input=sample, session=NoSession())

        tasks = [asyncio.create_task(limited(sample)) for sample in samples]
        if stop is not None:
            await asyncio.sleep(0.05)
            # As in use: from another thread.
            threading.Thread(target=stop, args=(recorder,)).start()
        await asyncio.gather(*tasks)

    asyncio.run(benchmark())
    ended = [event["request"] for event in events if event["event"] == "ended"]
    assert sorted(ended) == list(range(plan["requests"])), "every request ends exactly once"
    return events


async def whole(request: Input) -> Output:
    return Output("text", True, 0.1, 4, 0.01, [0.01] * 3, len(request.prompt))


def test_every_request_is_written_down() -> None:
    events = run(whole)
    assert all(event["ok"] for event in events if event["event"] == "ended")
    assert sum(event["event"] == "sent" for event in events) == 6


def test_prompts_are_exact_and_never_begin_alike() -> None:
    seen: list[list[int]] = []

    async def answer(request: Input) -> Output:
        seen.append(request.prompt)
        return await whole(request)

    run(answer)
    assert {len(prompt) for prompt in seen} == {20}
    assert len({tuple(prompt[:16]) for prompt in seen}) == 6
    again = list(seen)
    seen.clear()
    run(answer)
    assert seen == again, "the same seed, the same prompts"
    seen.clear()
    run(answer, seed="1/1")
    assert not {tuple(prompt[:16]) for prompt in seen} & {tuple(prompt[:16]) for prompt in again}


def test_a_stream_that_is_too_short_has_failed() -> None:
    async def answer(request: Input) -> Output:
        return Output("te", True, 0.1, 2, 0.01, [0.01], 20)

    ended = [event for event in run(answer) if event["event"] == "ended"]
    assert {event["kind"] for event in ended} == {"connection"}


def test_a_time_out_ends_a_request() -> None:
    async def answer(request: Input) -> Output:
        await asyncio.sleep(60)
        return Output()

    ended = [event for event in run(answer, timeout_s=0.05) if event["event"] == "ended"]
    assert {event["kind"] for event in ended} == {"timeout"}


def test_stopping_cuts_off_and_sends_no_more() -> None:
    async def answer(request: Input) -> Output:
        await asyncio.sleep(60)
        return Output()

    events = run(answer, stop=lambda recorder: recorder.stop("engine dead"))
    kinds = [event["kind"] for event in events if event["event"] == "ended"]
    assert sorted(kinds) == ["cut off"] * 2 + ["not sent"] * 4
    assert sum(event["event"] == "sent" for event in events) == 2


def test_conversations_grow_and_take_turns() -> None:
    asked: list[list[int]] = []
    running = peak = 0

    async def answer(request: Input) -> Output:
        nonlocal running, peak
        asked.append(request.prompt)
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.001)
        running -= 1
        return await whole(request)

    run(answer, conversations=4, turns=5, requests=20, concurrency=3)
    assert len(asked) == 20
    assert peak == 3
    # The first turn is isl long; each later one adds the answer (osl) and a question.
    lengths = sorted(len(prompt) for prompt in asked)
    assert lengths == sorted([20, 27, 34, 41, 48] * 4)
    beginnings = {tuple(prompt[:20]) for prompt in asked}
    assert len(beginnings) == 4, "each turn begins with all that was said before"
    for beginning in beginnings:
        own = sorted((p for p in asked if tuple(p[:20]) == beginning), key=len)
        for shorter, longer in itertools.pairwise(own):
            assert longer[: len(shorter)] == shorter


def test_conversations_outlast_failures_and_stop() -> None:
    async def failing(request: Input) -> Output:
        return Output(error="boom")

    run(failing, conversations=2, turns=3, requests=6, concurrency=2)

    async def hanging(request: Input) -> Output:
        await asyncio.sleep(60)
        return Output()

    # Four at a time of two conversations: two wait for one, and must be let go too.
    events = run(
        hanging,
        stop=lambda recorder: recorder.stop("engine dead"),
        conversations=2,
        turns=3,
        requests=6,
        concurrency=4,
    )
    kinds = [event["kind"] for event in events if event["event"] == "ended"]
    assert sorted(kinds) == ["cut off"] * 2 + ["not sent"] * 4


def test_no_secret_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-anyone-else")
    words = arguments(PLAN)
    assert not any("sk-" in word for word in words)
    assert "--insecure" not in words
    assert "--insecure" in arguments(PLAN | {"insecure": True})


def test_prompts_of_one_name_are_one() -> None:
    prompts = Prompts(PLAN)
    assert prompts.draw("3", 50) == prompts.draw("3", 50)
    assert prompts.draw("3", 50) != prompts.draw("4", 50)
