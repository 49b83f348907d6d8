"""Progress on standard error: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from hisparse_guard.cli.ramp.result import LevelResult

PLAIN_EVERY_S = 30.0


def _state(level: LevelResult) -> str:
    sent = sum(r.sent is not None for r in level.requests)
    ended = sum(r.settled for r in level.requests)
    flying = sum(r.sent is not None and not r.settled for r in level.requests)
    failed = sum(r.settled and not r.done for r in level.requests)
    return f"{ended}/{level.planned} ended, {flying} of {sent} in flight, {failed} failed"


class PlainProgress:
    """One line when a level begins and ends, and in between every half minute or so."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = 0.0

    def _line(self, text: str) -> None:
        stamp = time.strftime("%H:%M:%S")
        print(f"{stamp} ramp: {text}", file=self._stream, flush=True)
        self._last = time.monotonic()

    def level_started(self, level: LevelResult) -> None:
        self._line(f"level {level.concurrency}: {level.planned} requests")

    def changed(self, level: LevelResult) -> None:
        if time.monotonic() - self._last > PLAIN_EVERY_S:
            self._line(f"level {level.concurrency}: {_state(level)}")

    def level_ended(self, level: LevelResult) -> None:
        self._line(f"level {level.concurrency}: {level.done} done, {level.failed} failed")

    def note(self, text: str) -> None:
        self._line(text)

    def close(self) -> None:
        pass


class LiveProgress:
    """A bar for each level."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("level {task.fields[concurrency]:>3}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks: dict[int, TaskID] = {}
        self._progress.start()

    def level_started(self, level: LevelResult) -> None:
        self._tasks[level.number] = self._progress.add_task(
            "", total=level.planned, concurrency=level.concurrency, state=""
        )

    def _update(self, level: LevelResult, state: str) -> None:
        ended = sum(request.settled for request in level.requests)
        self._progress.update(self._tasks[level.number], completed=ended, state=state)

    def changed(self, level: LevelResult) -> None:
        self._update(level, _state(level))

    def level_ended(self, level: LevelResult) -> None:
        failed = f"[red]{level.failed} failed[/red]" if level.failed else "0 failed"
        self._update(level, f"{level.done} done, {failed}")
        self._progress.stop_task(self._tasks[level.number])

    def note(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._progress.stop()


def progress(stream: TextIO) -> PlainProgress | LiveProgress:
    console = Console(file=stream)
    return LiveProgress(console) if console.is_terminal else PlainProgress(stream)
