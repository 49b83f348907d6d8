"""The HTTP client of a ramp: a cancellation always ends what waits for an answer."""

from __future__ import annotations

import asyncio

import pytest

from hisparse_guard.cli.ramp.api import Api, BadAnswer, tls_context


def test_a_cancellation_that_comes_with_the_answer_ends_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ramp watches a server in a loop and ends that task once; it would never end."""
    ended = asyncio.run(_watched(monkeypatch))
    assert ended


async def _watched(monkeypatch: pytest.MonkeyPatch) -> bool:
    api = Api(None, tls_context(None, insecure=False))

    async def watch() -> None:
        while True:
            await api.get("http://127.0.0.1:9/health", deadline_s=5)
            await asyncio.sleep(0.001)

    task = asyncio.ensure_future(watch())
    asked = 0

    async def answer(*_: object) -> int:
        nonlocal asked
        asked += 1
        if asked == 3:
            # Delivered once the answer is there, and before the one who waits for it goes on.
            asyncio.get_running_loop().call_soon(task.cancel)
        return 200

    monkeypatch.setattr(api, "_read", answer)
    done, _ = await asyncio.wait((task,), timeout=5)
    task.cancel()
    await asyncio.wait((task,))
    await api.close()
    return bool(done)


def test_an_answer_that_does_not_come_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(*_: object) -> int:
        await asyncio.sleep(60)
        return 200

    async def ask() -> None:
        api = Api(None, tls_context(None, insecure=False))
        monkeypatch.setattr(api, "_read", silent)
        try:
            await api.get("http://127.0.0.1:9/", deadline_s=0.05)
        finally:
            await api.close()

    with pytest.raises(BadAnswer, match=r"no complete answer within 0\.05 s"):
        asyncio.run(ask())
