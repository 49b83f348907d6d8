"""Log lines, in vLLM's own log."""

from __future__ import annotations

import logging
import os
from collections import deque

NAME = "vllm.hisparse_guard"

# From 0.31 on vLLM configures its handlers late. Until then an INFO line is lost and a WARNING
# comes out bare, so lines wait here. Bounded: a process that never configures them keeps few.
_waiting: deque[tuple[int, str]] = deque(maxlen=500)
_said: set[str] = set()


def _ready() -> bool:
    if logging.getLogger("vllm").handlers:
        return True
    # Told to leave logging alone: whatever the operator has set up above is meant to be used.
    return (
        os.environ.get("VLLM_CONFIGURE_LOGGING", "1") == "0"
        and logging.getLogger("vllm").hasHandlers()
    )


def shown(value: object) -> str:
    """A value in words, whatever its own ``__repr__`` does."""
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


def say(level: int, text: str, once: str | None = None) -> None:
    """Logs ``hisparse-guard: text``, now or as soon as vLLM's log has handlers.

    Args:
        once: a key; a second line with the same key is dropped.
    """
    if once is not None:
        if once in _said:
            return
        _said.add(once)
    _waiting.append((level, "hisparse-guard: " + text))
    flush()


def flush(last: bool = False) -> None:
    """Logs what waits, if vLLM's log has handlers by now or this is the `last` chance."""
    try:
        if not last and not _ready():
            return
        while _waiting:
            level, text = _waiting.popleft()
            logging.getLogger(NAME).log(level, "%s", text)
    except Exception:
        # A filter, handler or logger of someone's own raises; or another thread took the line.
        pass


def forget() -> None:
    """In a forked child: what waits is the parent's to say, what was said was the parent's."""
    _waiting.clear()
    _said.clear()
