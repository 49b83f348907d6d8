"""Log lines, in vLLM's own log."""

import logging
import os
from collections import deque
from contextlib import suppress

LOGGER = "vllm.hisparse_guard"
PREFIX = "hisparse-guard: "

# From 0.31 on vLLM configures its handlers late: until then an INFO line is lost and a WARNING
# comes out bare, so lines wait here. Few are kept by a process that never configures them.
_waiting: deque[tuple[int, str]] = deque(maxlen=500)
_logged: set[str] = set()


def log(level: int, text: str) -> None:
    """Logs a text once a process, now or as soon as vLLM's log has handlers."""
    if text not in _logged:
        _logged.add(text)
        _waiting.append((level, PREFIX + text))
    flush()


def flush(last_chance: bool = False) -> None:
    """Logs what waits, if vLLM's log has handlers by now or this is the last chance."""
    vllm = logging.getLogger("vllm")
    # With VLLM_CONFIGURE_LOGGING=0 the operator's own handlers stand further up.
    own = os.environ.get("VLLM_CONFIGURE_LOGGING", "1") == "0"
    if last_chance or vllm.handlers or (own and vllm.hasHandlers()):
        with suppress(IndexError):  # empty, by this thread or by another one
            while True:
                level, text = _waiting.popleft()
                logging.getLogger(LOGGER).log(level, "%s", text)


def forget() -> None:
    """In a forked child: what waits is the parent's to log, and what was logged was the
    parent's."""
    _waiting.clear()
    _logged.clear()
