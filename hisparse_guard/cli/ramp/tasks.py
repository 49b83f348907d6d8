"""Tasks that end when they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancels all and waits for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def until_stopped(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
    """Runs `work`, and cancels it once `stop` is set."""
    running = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        await end(running, waiting)
