"""What a client sends and vLLM prints is never believed, in any format of the log."""

# Log lines are long.
# ruff: noqa: E501

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hisparse_guard.cli.triage import triage
from hisparse_guard.cli.triage.catalogue import load
from tests.cli.logs.formats import FORMATS, PART
from tests.cli.triage.logs import line, request, start, started_up, stats, workspace
from tests.cli.triage.test_inputs import lead

API, WORKER = "APIServer pid=588", "Worker_TP0 pid=703"


@cache
def words() -> list[str]:
    """For each way to say each signal, a text that says it, made from its pattern."""
    found: list[str] = []
    for signal in load().signals.values():
        for says in signal.says:
            found.append(_text_for(says.pattern))
    # What would be trouble of any kind, a start, health and an end.
    return [
        *found,
        "Traceback (most recent call last):",
        "(Worker_TP2 pid=705) ERROR 11-03 22:14:04 [x.py:1] EngineCore encountered a fatal error.",
        "vLLM server version 0.33.0, serving model m",
        '127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error',
        "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, "
        "Running: 9 reqs, Waiting: 9 reqs, GPU KV cache usage: 0.0%",
        "(core dumped) Killed process 705 died unexpectedly exit code: -9",
    ]


def _text_for(pattern: str) -> str:
    """The first text that hypothesis finds for a pattern, without line ends."""
    texts: list[str] = []
    plain = pattern.replace("[^\\n]", "[a-z ]").replace(".{1,4}", " ")

    @settings(
        max_examples=1, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(
        st.from_regex(
            re.compile(plain), alphabet=st.characters(min_codepoint=32, max_codepoint=126)
        )
    )
    def take(text: str) -> None:
        texts.append(text)

    take()
    return texts[0].strip("\n")


def model_name(text: str) -> list[str]:
    message = f"The model `{text}` does not exist."
    return [line(API, f"Error with model error=ErrorInfo(message={message!r}, type='NotFoundError', param='model', code=404)", "ERROR", file="serving.py:280")]  # fmt: skip


def request_id(text: str) -> list[str]:
    return [
        line(API, f"Added request {text}.", file="async_llm.py:311"),
        line(WORKER, f"Releasing expired KV blocks for request cmpl-{text}-0 which were retrieved by 0 decode worker(s) within 480 seconds.", "WARNING", file="base_worker.py:3371"),
    ]  # fmt: skip


def url(text: str) -> list[str]:
    # uvicorn quotes what is no part of a URL; a client can send what needs no quoting.
    quoted = urllib.parse.quote(text, safe="/:?=&()[]{}'!*+,;@_.-")
    return [f'({API}) INFO:     10.0.0.9:4711 - "GET /{text_} HTTP/1.1" 404 Not Found' for text_ in (quoted, text.replace('"', ""))]  # fmt: skip


def prompt(text: str) -> list[str]:
    return [line(API, f"Received request cmpl-1: prompt: {text!r}, params: SamplingParams(n=1, stop=[{text!r}]), lora_request: None.", file="request_logger.py:67")]  # fmt: skip


def long_prompt(text: str) -> list[str]:
    """The client's words stand where a runtime begins another part of the line."""
    head = line(
        API, "Received request cmpl-1: params: SamplingParams(stop=['", file="request_logger.py:67"
    )
    return [head + "a" * (PART - len(head)) + text + "']), lora_request: None."]


def header(text: str) -> list[str]:
    return [line(API, f"Unsupported value of header X-Data-Parallel-Rank: {text}", "WARNING", file="utils.py:1")]  # fmt: skip


CARRIERS: list[Callable[[str], list[str]]] = [
    model_name, request_id, url, prompt, long_prompt, header,
]  # fmt: skip
DIED = line(
    "EngineCore_DP0 pid=648",
    "Worker proc VllmWorker-2 died unexpectedly (exit code: None), shutting down executor.",
    "ERROR",
    file="multiproc_executor.py:380",
)
HEALTHY = [
    *start(connector="None").splitlines(),
    workspace("trtllm"),
    started_up(),
    stats(),
    request(),
]


def judged(tmp_path: Path, name: str, lines: list[str]) -> tuple[int, list[tuple[str, str]], int]:
    path = tmp_path / "vllm.log"
    path.write_text("\n".join(FORMATS[name](lines)) + "\n")
    result = triage([str(path)])
    return result.exit_code, lead(result), len(result.runs)


@pytest.mark.parametrize("carrier", CARRIERS, ids=lambda carrier: carrier.__name__)
@pytest.mark.parametrize("name", FORMATS)
def test_no_client_forges_or_hides_anything(
    tmp_path: Path, name: str, carrier: Callable[[str], list[str]]
) -> None:
    forged = [text for word in words() for text in carrier(word)]
    assert judged(tmp_path, name, [*HEALTHY, *forged]) == (0, [], 1)
    dead = (1, [("worker-died", "unconfirmed")], 1)
    assert judged(tmp_path, name, [*HEALTHY, *forged, DIED, *forged]) == dead


@pytest.mark.parametrize("name", FORMATS)
def test_no_client_fakes_health(tmp_path: Path, name: str) -> None:
    silent = start(connector="None").splitlines()
    forged = [text for carrier in CARRIERS for word in words() for text in carrier(word)]
    assert judged(tmp_path, name, [*silent, *forged])[0] == 4


def test_the_words_are_the_signals_own() -> None:
    catalogue = load()
    patterns = [says.pattern for signal in catalogue.signals.values() for says in signal.says]
    assert len(words()) > len(patterns)
    assert all(re.match(pattern, word) for pattern, word in zip(patterns, words(), strict=False))


@pytest.mark.parametrize("ending", ["\r", "\r\n"])
def test_a_line_end_in_a_request_id_begins_no_line(tmp_path: Path, ending: str) -> None:
    """The id may come in the body of a request, where a client can put line ends into it."""
    head = line(API, "", file="async_llm.py:321") if "\n" in ending else ""
    answer = '(APIServer pid=588) INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK'
    log = tmp_path / "vllm.log"

    def forged(*texts: str) -> str:
        parts = "".join(f"{ending}{head}{text}" for text in texts)
        return line(API, f"Added request cmpl-a{parts}{ending}{head}-0.", file="async_llm.py:321")

    faults = forged("Fatal Python error: Aborted", "Segmentation fault", "Shutting down")
    log.write_bytes("\n".join([start(), started_up(), request(), faults, request(), ""]).encode())
    found = triage([str(log)])
    assert (found.verdict, found.runs[0].run.shutdown) == ("healthy", None)
    health = forged("Application startup complete.", answer)
    log.write_bytes("\n".join([start(), health, ""]).encode())
    found = triage([str(log)])
    assert (found.verdict, found.runs[0].run.up) == ("inconclusive", False)


def forged_lines(level: str, file: str, first: str, *texts: str) -> str:
    """A message with line ends in it, as vLLM writes it: the head before each of its lines."""
    return "\r\n".join(line(API, text, level, file=file) for text in (first, *texts))


FAULTS = [
    "Fatal Python error: Aborted", "Segmentation fault (core dumped)", "Timeout (0:00:30)!",
    "Worker VllmWorkerProcess pid 705 died, exit code: -9", "vLLM server version 0.33.0",
    "hisparse-guard: armed", "[shutdown] API server: shutdown triggered", "Shutting down",
    "Traceback (most recent call last):", '  File "/opt/vllm/v1/engine/core.py", line 9, in run',
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
]  # fmt: skip
# What vLLM 0.30 to 0.34 log as it came, line ends included: request ids from a request's body,
# and texts of errors that quote a request.
QUOTES = [
    ("INFO", "async_llm.py:601", "Added request cmpl-"),
    ("INFO", "request_logger.py:66", "Received request cmpl-"),
    ("INFO", "async_llm.py:840", "Request cmpl-1 failed (bad request): "),
    ("WARNING", "hf.py:934", "Chat template rejected the request: "),
    ("WARNING", "harmony.py:287", "Invalid JSON in browser tool call, using error placeholder: "),
    ("WARNING", "hy_v3_tool_parser.py:97", "No tool named '"),
    ("ERROR", "http.py:18", "HTTPException caught. Request id: chatcmpl-"),
    ("ERROR", "validation.py:151", "RequestValidationError caught. Request id: chatcmpl-"),
]


@pytest.mark.parametrize(("level", "file", "first"), QUOTES)
@pytest.mark.parametrize("name", [name for name in FORMATS if "json" not in name])
def test_a_later_line_of_a_quote_says_nothing(
    tmp_path: Path, name: str, level: str, file: str, first: str
) -> None:
    forged = forged_lines(level, file, first, *FAULTS).split("\n")
    assert judged(tmp_path, name, [*HEALTHY, *forged, request()]) == (0, [], 1)
    silent = start(connector="None").splitlines()
    health = forged_lines(level, file, first, "Application startup complete.")
    assert judged(tmp_path, name, [*silent, *health.split("\n")])[0] == 4
    dead = [*HEALTHY, *forged, DIED, *forged]
    assert judged(tmp_path, name, dead) == (1, [("worker-died", "unconfirmed")], 1)
