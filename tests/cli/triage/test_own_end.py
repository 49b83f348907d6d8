"""An engine that leaves alone, and what no client can have caused."""

from __future__ import annotations

from pathlib import Path

import pytest

from hisparse_guard.cli.triage import triage
from tests.cli.triage.logs import line, request, start, started_up, stats

UP = [*start(connector="None").splitlines(), started_up(), stats(), request()]
# After what is told, the server still answers.
ON = [request()]
API, ENGINE, WORKER = "APIServer pid=588", "EngineCore pid=648", "Worker_TP1 pid=704"
REFUSED = ["Error in preprocessing prompt inputs", "Error in applying chat template from request"]
SERVERS = [
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
    "OSError: [Errno 24] Too many open files",
    "RuntimeError: can't start new thread",
    "MemoryError",
]
CLIENTS = ["ValueError: The prompt is too long", "jinja2.exceptions.TemplateError: roles differ"]


def code(lines: list[str], tmp_path: Path) -> int:
    log = tmp_path / "vllm.log"
    log.write_text("".join(f"{one}\n" for one in lines))
    return int(triage([log]).exit_code)


def refused(message: str, exception: str) -> list[str]:
    frame = '  File "/usr/lib/python3.12/site-packages/vllm/entrypoints/serving.py", line 395, in x'
    told = [message, "Traceback (most recent call last):", frame, "    await self.y()", exception]
    return [line(API, text, "ERROR", "22:15:01", "serving.py:402") for text in told]


@pytest.mark.parametrize("exception", SERVERS)
@pytest.mark.parametrize("message", REFUSED)
def test_a_refusal_does_not_excuse_what_no_client_causes(
    message: str, exception: str, tmp_path: Path
) -> None:
    assert code([*UP, *refused(message, exception), *ON], tmp_path) != 0


@pytest.mark.parametrize("exception", CLIENTS)
@pytest.mark.parametrize("message", REFUSED)
def test_a_refusal_excuses_what_a_client_causes(
    message: str, exception: str, tmp_path: Path
) -> None:
    assert code([*UP, *refused(message, exception), *ON], tmp_path) == 0


@pytest.mark.parametrize(
    ("who", "source", "text"),
    [
        (ENGINE, "core.py:1326", "[shutdown] EngineCore: exiting busy loop"),
        (WORKER, "multiproc_executor.py:905", "[shutdown] WorkerProc: terminated by shutdown"),
    ],
)
def test_an_engine_that_leaves_alone_is_no_health(
    who: str, source: str, text: str, tmp_path: Path
) -> None:
    assert code([*UP, line(who, text, "INFO", "22:15:01", source)], tmp_path) == 4


def test_one_token_of_many_requests_is_no_progress(tmp_path: Path) -> None:
    slow = [
        stats(gen=0.1, prompt=0.0, running=60, at=f"22:{minute}:05") for minute in range(15, 20)
    ]
    assert code([*UP, *slow], tmp_path) == 1


def test_a_pool_whose_process_is_gone(tmp_path: Path) -> None:
    gone = f"({ENGINE}) concurrent.futures.process.BrokenProcessPool: a child was terminated"
    assert code([*UP, gone], tmp_path) != 0
