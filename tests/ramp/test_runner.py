"""The runner with a scripted generator and server: what it makes of every order of events."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hisparse_guard.cli.ramp import runner as module
from hisparse_guard.cli.ramp.load import Level, Load
from hisparse_guard.cli.ramp.result import LevelResult, Result
from hisparse_guard.cli.ramp.runner import GeneratorFailed, Runner
from hisparse_guard.cli.ramp.target import Unhealthy

READY = {"event": "ready", "vllm": "0.32.0", "python": "3.12.1"}


def sent(number: int, at: float = 1.0) -> dict[str, Any]:
    return {"event": "sent", "request": number, "at": at}


def done(number: int, at: float = 2.0) -> dict[str, Any]:
    measured = {"prompt_tokens": 5, "output_tokens": 2, "ttft_s": 0.1, "latency_s": 1.0}
    return {"event": "ended", "request": number, "at": at, "ok": True, "itl_s": [0.1], **measured}


def failed(number: int, kind: str = "http 500", at: float = 2.0) -> dict[str, Any]:
    said = {"kind": kind, "error": f"{kind}: no", "detail": None}
    return {"event": "ended", "request": number, "at": at, "ok": False, **said}


Step = dict[str, Any] | Callable[[], None]
DIES: dict[str, Any] = {"event": "dies"}


class Process:
    def __init__(self) -> None:
        self.killed = False

    def kill(self) -> None:
        self.killed = True

    def poll(self) -> int | None:
        return None


class Scripted:
    """Plays a script a level; a callable in it is called in its place, and None waits for `stop`
    or the kill. A script ends with "finished" unless it says DIES."""

    def __init__(self, scripts: list[list[Step | None]], status: int, log: Path) -> None:
        self._scripts = scripts
        self._status = status
        self._steps: list[Step | None] = []
        self.stopped: str | None = None
        self.process = Process()
        self.closed = False
        log.write_text("a traceback\nRuntimeError: out of luck\n")

    def begin(self, plan: dict[str, Any]) -> None:
        finished = {"event": "finished", "level": plan["level"], "error": None}
        self._steps = [*self._scripts.pop(0), finished]
        self.stopped = None

    def event(self, wait_s: float) -> dict[str, Any] | None:
        if self.process.killed:
            return None
        if self._steps[0] is None:
            if self.stopped is None:
                raise queue.Empty
            self._steps.pop(0)
            return self.event(wait_s)
        step = self._steps.pop(0)
        if callable(step):
            step()
            return {}
        return None if step is DIES else step

    def stop(self, reason: str) -> None:
        self.stopped = self.stopped or reason

    def close(self) -> int:
        self.closed = True
        return self._status


class Server:
    base_url = "http://127.0.0.1:1"
    model = "m"

    def __init__(self) -> None:
        self.health: Unhealthy | None = None
        self.answer: str | None = None
        self.probes = 0

    def tokenize_url(self) -> str:
        return self.base_url + "/tokenize"

    def unhealthy(self) -> Unhealthy | None:
        return self.health

    def probe(self, ids: list[int]) -> str | None:
        self.probes += 1
        return self.answer

    def listed(self) -> bool:
        return self.health is None


class Silent:
    def level_started(self, level: LevelResult) -> None: ...
    def changed(self, level: LevelResult) -> None: ...
    def level_ended(self, level: LevelResult) -> None: ...
    def note(self, text: str) -> None: ...


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BETWEEN_TRIES_S", 0.0)


def ramp(
    tmp_path: Path,
    levels: tuple[Level, ...],
    scripts: list[list[Step | None]],
    server: Server | None = None,
    status: int = 0,
) -> Result:
    started: list[Scripted] = []

    def start(python: Path, environment: Any, log: Path) -> Any:
        started.append(Scripted(scripts, status, log))
        return started[-1]

    found = Runner(
        server or Server(),  # type: ignore[arg-type]
        Load(levels, 5, 2, 1, 60.0),
        pool=range(50),
        server={},
        python=Path("python"),
        environment={},
        insecure=False,
        folder=tmp_path,
        progress=Silent(),
        health_interval_s=0.01,
        start_generator=start,
    ).run()
    assert all(one.closed for one in started)
    for level in found.levels:
        assert level.done + level.failed == level.planned
        assert all(request.settled for request in level.requests)
    return found


def whole(count: int) -> list[Step | None]:
    return [READY, *(sent(n) for n in range(count)), *(done(n) for n in range(count))]


def test_a_healthy_ramp_passes(tmp_path: Path) -> None:
    found = ramp(tmp_path, (Level(1, 2), Level(2, 3)), [whole(2), whole(3)])
    assert (found.verdict, found.done, found.failed) == ("passed", 5, 0)


def test_a_dead_engine_ends_the_ramp_in_its_level(tmp_path: Path) -> None:
    server = Server()

    def die() -> None:
        server.health = Unhealthy("http://127.0.0.1:1/health answers 503")

    script = [READY, *map(sent, range(4)), done(0), die, failed(1), None]
    cut = [failed(2, "cut off"), failed(3, "not sent")]
    found = ramp(
        tmp_path,
        (Level(1, 1), Level(2, 4), Level(4, 8)),
        [whole(1), [*script, *cut]],
        server,
    )
    assert found.verdict == "failed"
    assert [(one.concurrency, one.done, one.failed) for one in found.levels] == [
        (1, 1, 0),
        (2, 1, 3),
    ]
    assert found.levels[1].state == "stopped"
    assert found.not_run == [(4, 8)]
    assert found.engine_dead is not None and "503" in found.engine_dead
    assert found.partial


def test_an_engine_that_answers_errors_behind_a_healthy_front(tmp_path: Path) -> None:
    server = Server()
    server.answer = "the probe request is answered 500"
    script = [READY, *map(sent, range(3)), done(0), failed(1), None, failed(2, "cut off")]
    found = ramp(tmp_path, (Level(3, 3), Level(4, 8)), [script], server)
    assert found.verdict == "failed"
    assert found.engine_dead == server.answer
    assert server.probes >= 3


def test_single_failures_do_not_end_a_ramp(tmp_path: Path) -> None:
    script = [READY, *map(sent, range(3)), done(0), failed(1), done(2)]
    found = ramp(tmp_path, (Level(3, 3), Level(4, 2)), [script, whole(2)])
    assert found.verdict == "failed"
    assert [one.failed for one in found.levels] == [1, 0]
    assert not found.not_run


def test_a_level_without_any_success_ends_it(tmp_path: Path) -> None:
    script = [READY, sent(0), failed(0), sent(1), failed(1)]
    found = ramp(tmp_path, (Level(1, 2), Level(2, 2)), [script])
    assert found.stopped == "no request of level 1 was done"
    assert found.engine_dead is None


def test_a_killed_generator_leaves_nothing_uncounted(tmp_path: Path) -> None:
    script = [READY, sent(0), done(0), sent(1), DIES]
    # The next level gets a new one.
    found = ramp(tmp_path, (Level(1, 3), Level(2, 2)), [script, whole(2)], status=-9)
    assert (found.verdict, found.done, found.failed) == ("inconclusive", 3, 2)
    texts = [request.error for request in found.levels[0].requests]
    assert texts[1] == "the load generator was ended by signal 9 before the answer was whole"
    assert texts[2] == "the load generator was ended by signal 9 before sending it"


def test_a_generator_that_cannot_start_is_no_verdict(tmp_path: Path) -> None:
    with pytest.raises(GeneratorFailed, match=r"ended \(1\).*RuntimeError: out of luck"):
        ramp(tmp_path, (Level(1, 3),), [[DIES]], status=1)


def test_an_event_twice_counts_once(tmp_path: Path) -> None:
    found = ramp(tmp_path, (Level(1, 1),), [[READY, sent(0), done(0), failed(0), done(0)]])
    assert (found.done, found.failed) == (1, 0)


def test_ctrl_c_keeps_what_there_is(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    script = [READY, sent(0), done(0), sent(1), interrupt, None, failed(1, "cut off")]
    found = ramp(tmp_path, (Level(1, 3), Level(2, 2)), [script])
    assert (found.verdict, found.exit_code, found.partial) == ("interrupted", 130, True)
    level = found.levels[0]
    assert (level.done, level.failed, level.state) == (1, 2, "interrupted")
    assert level.requests[2].error == "not sent: ended by the operator"
    assert found.not_run == [(2, 2)]


def test_a_silent_front_end_is_not_called_dead_while_the_engine_answers(tmp_path: Path) -> None:
    server = Server()
    server.health = Unhealthy("http://127.0.0.1:1/health: no answer in time", sure=False)

    def wait() -> None:
        deadline = time.monotonic() + 30
        while server.probes < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        server.health = None

    found = ramp(tmp_path, (Level(1, 1),), [[READY, sent(0), wait, done(0)]], server)
    assert server.probes >= 2
    assert found.verdict == "passed"


def test_a_second_ctrl_c_leaves_counts_that_add_up(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    script = [READY, sent(0), done(0), sent(1), interrupt, sent(2), interrupt, None]
    found = ramp(tmp_path, (Level(1, 4),), [script])
    assert (found.verdict, found.exit_code) == ("interrupted", 130)
    assert (found.done, found.failed) == (1, 3)


def test_ctrl_c_after_the_last_level_is_no_failure_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()

    def interrupt(ids: list[int]) -> str | None:
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "probe", interrupt)
    found = ramp(tmp_path, (Level(1, 1),), [whole(1)], server)
    assert (found.verdict, found.after) == ("interrupted", None)


def test_a_generator_that_fails_in_a_level(tmp_path: Path) -> None:
    error = {"event": "finished", "level": 0, "error": "ValueError: no such thing"}
    found = ramp(tmp_path, (Level(1, 2),), [[READY, sent(0), done(0), error]])
    assert (found.verdict, found.done, found.failed) == ("inconclusive", 1, 1)
    assert found.levels[0].requests[1].error == (
        "the load generator failed (ValueError: no such thing) before sending it"
    )
    with pytest.raises(GeneratorFailed, match=r"failed \(ValueError: no such thing\)"):
        ramp(tmp_path, (Level(1, 2),), [[READY, error]])
