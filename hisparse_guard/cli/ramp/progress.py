"""Progress on standard error, from the first second on; nothing where that is no terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from hisparse_guard.cli.ramp.levels import LevelResult

EVERY_S = 0.25


def state(level: LevelResult) -> str:
    """Done and failed requests, tokens per second, time left."""
    done, planned = level.done, level.planned
    failed = sum(r.settled and not r.done for r in level.requests)
    flying = sum(r.sent is not None and not r.settled for r in level.requests)
    passed = max(time.time() - level.started, 1e-3)
    speed = sum(r.output_tokens for r in level.requests) / passed
    ended = done + failed
    left = f", about {passed / ended * (planned - ended):.0f} s left" if ended else ""
    return f"{done}/{planned} done, {failed} failed, {flying} in flight, {speed:.0f} tokens/s{left}"


class Quiet:
    """Says nothing: what there is to be said of a ramp."""

    def note(self, text: str) -> None: ...

    def level_started(self, level: LevelResult) -> None: ...

    def changed(self, level: LevelResult) -> None: ...

    def level_ended(self, level: LevelResult) -> None: ...


class Live(Quiet):
    """A bar for each level. A terminal that is gone costs nothing."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._note = self._progress.add_task("starting", total=None, state="")
        self._tasks: dict[int, TaskID] = {}
        self._last = 0.0

    def start(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._progress.start()

    def stop(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._progress.stop()

    def note(self, text: str) -> None:
        self._update(self._note, description=text)

    def level_started(self, level: LevelResult) -> None:
        self.note(f"level {level.concurrency} of the ramp")
        self._tasks[level.number] = self._progress.add_task(
            f"level {level.concurrency:>3}", total=level.planned, state=""
        )

    def changed(self, level: LevelResult) -> None:
        if time.monotonic() - self._last >= EVERY_S:
            self._last = time.monotonic()
            ended = sum(request.settled for request in level.requests)
            self._update(self._tasks[level.number], completed=ended, state=state(level))

    def level_ended(self, level: LevelResult) -> None:
        task = self._tasks[level.number]
        text = f"{level.done} done, {level.failed} failed"
        self._update(task, completed=level.planned, state=text)
        self._progress.stop_task(task)

    def _update(self, task: TaskID, **fields: object) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._progress.update(task, **fields)  # type: ignore[arg-type]


@contextlib.contextmanager
def progress(stream: TextIO | None) -> Iterator[Quiet]:
    """Live on a terminal, quiet elsewhere."""
    console = Console(file=stream) if stream is not None else None
    if console is None or not console.is_terminal:
        yield Quiet()
        return
    live = Live(console)
    live.start()
    try:
        yield live
    finally:
        live.stop()
