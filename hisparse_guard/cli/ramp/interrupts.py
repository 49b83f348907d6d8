"""What ends a ramp from outside: signals, a closed terminal, a parent that is gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator

from hisparse_guard.cli.exit_codes import Exit

# Within 5 s of the first signal no process of ours is left.
LAST_S = 4.0
PARENT_EVERY_S = 0.5


class Interrupts:
    """Holds the handlers from the first moment to the last.

    Args:
        parent: the process that started this one.

    Attributes:
        seen: something asked for the end.
    """

    def __init__(self, parent: int) -> None:
        self.seen = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._finishing = False
        self._parent = parent
        # `nohup`: the ramp is to outlive its terminal and its parent.
        self._detached = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN or self._parent <= 1

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if not self._detached:
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, self._signalled) for number in numbers}
        over = threading.Event()
        threading.Thread(target=self._watch_parent, args=(over,), daemon=True).start()
        try:
            yield
        finally:
            over.set()
            for number, handler in before.items():
                # A signal more must not change the exit code that the first one led to.
                signal.signal(number, signal.SIG_IGN if self.seen else handler)

    def _signalled(self, number: int, frame: object) -> None:
        first = not self.seen
        self._end()
        if first and self._finishing:
            raise KeyboardInterrupt

    def _end(self) -> None:
        if not self.seen:
            self.seen = True
            last = threading.Timer(LAST_S, _give_up)
            last.daemon = True
            last.start()
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)

    def _watch_parent(self, over: threading.Event) -> None:
        while not self._detached and not over.wait(PARENT_EVERY_S):
            if os.getppid() != self._parent:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    def event(self) -> asyncio.Event:
        """An event of the running loop, set when the end is asked for."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        if self.seen:
            self._stop.set()
        return self._stop

    @contextlib.contextmanager
    def finishing(self) -> Iterator[None]:
        """Long work outside the loop, which the end breaks off as `KeyboardInterrupt`."""
        self._finishing = True
        try:
            if self.seen:
                raise KeyboardInterrupt
            yield
        finally:
            self._finishing = False


def _give_up() -> None:
    with contextlib.suppress(OSError):
        os.write(2, b"hisparse-guard ramp: interrupted before all that was asked for was written\n")
    os._exit(Exit.INTERRUPTED)
