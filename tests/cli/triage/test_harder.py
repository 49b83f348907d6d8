"""Harder logs, in the formats they come in: no server comes out better than it is."""

# Log lines are long.
# ruff: noqa: E501

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hisparse_guard.cli.triage import triage
from tests.cli.logs.formats import compose, cri, docker, kubectl_prefix, stern, vllm_json
from tests.cli.triage.test_servers import A, E, L, U, W, ok, up

DEAD, HEALTHY, NOT_SHOWN = (1, 4), (0,), (4,)
AT = "2026-12-01T09:20:00"


def short_iso(lines: list[str]) -> list[str]:
    """`journalctl -o short-iso`; lines of other units come as they are."""
    return [
        f"{AT}+0100 gpu3 {text[1:] if text.startswith('!') else f'vllm[881]: {text}'}"
        for text in lines
    ]


def journal_json(lines: list[str]) -> list[str]:
    """`journalctl -o json`, the kernel's and systemd's lines among them."""
    out = []
    for text in lines:
        who = text[1:].partition(": ")[0] if text.startswith("!") else "vllm"
        message = text[1:].partition(": ")[2] if text.startswith("!") else text
        known = {"SYSLOG_IDENTIFIER": who.partition("[")[0], "_PID": "881"}
        if who == "kernel":
            known = {"SYSLOG_IDENTIFIER": "kernel", "_TRANSPORT": "kernel"}
        out.append(json.dumps({**known, "MESSAGE": message, "__REALTIME_TIMESTAMP": "1"}))
    return out


def logcli(lines: list[str]) -> list[str]:
    return [
        json.dumps({"labels": {"app": "vllm"}, "line": text, "timestamp": f"{AT}Z"})
        for text in lines
    ]


def stamped(lines: list[str]) -> list[str]:
    return [f"{AT}.123456789Z {text}" for text in lines]


def crlf(lines: list[str]) -> list[str]:
    return [text + "\r" for text in lines]


def structlog(lines: list[str]) -> list[str]:
    """A JSON formatter of VLLM_LOGGING_CONFIG_PATH, which may name its fields as it likes."""
    names = {"asctime": "timestamp", "levelname": "level", "name": "logger", "message": "event"}
    return [
        json.dumps({names.get(key, key): value for key, value in json.loads(text).items()})
        for text in vllm_json(lines)
    ]


LONG = L(
    A,
    "INFO",
    "09:00:01",
    "startup.py:96",
    "non-default args: {'model_tag': 'org/M', 'x': '" + "y" * 40000 + "'}",
)
STATS = "Engine 00{}: Avg prompt throughput: {} tokens/s, Avg generation throughput: {} tokens/s, Running: {} reqs, Waiting: {} reqs, GPU KV cache usage: 4.1%, Prefix cache hit rate: 0.0%"


TOLD = [
    L(A, "INFO", "09:15:00", "launcher.py:256", "[shutdown] API server: shutdown triggered"),
    L(
        E,
        "INFO",
        "09:15:00",
        "core.py:1525",
        "[shutdown] EngineCore: trigger received signal=SIGTERM",
    ),
]
DONE = [U("Shutting down"), U("Application shutdown complete.")]


def stat(minute: int, rank: int, prompt: float, gen: float, run: int, wait: int) -> str:
    return L(
        A, "INFO", f"09:{minute}:00", "loggers.py:335", STATS.format(rank, prompt, gen, run, wait)
    )


def quote(level: str, file: str, *texts: str) -> list[str]:
    """A message with a client's line ends in it."""
    lines = [L(A, level, "09:11:00", file, text) for text in texts]
    return [*(text + "\r" for text in lines[:-1]), lines[-1]]


logs: dict[str, tuple[tuple[int, ...], list[str]]] = {
    # Dead servers.
    "docker: the engine's death in a storm of tracebacks": (DEAD, docker([
        *up, *ok, L(E, "ERROR", "09:11:00", "core.py:1586", "EngineCore encountered a fatal error.") + "\r",
        L(E, "ERROR", "09:11:00", "core.py:1586", "Traceback (most recent call last):") + "\r",
        L(E, "ERROR", "09:11:00", "core.py:1586", "RuntimeError: Executor failed."),
        U("Shutting down"), U("Application shutdown complete.")])),
    "cri: a watchdog of NCCL behind a line in parts": (DEAD, cri([
        up[0], LONG, *up[2:], *ok,
        "[rank3]:[E1201 09:20:00.123 ProcessGroupNCCL.cpp:1895] [PG ID 2 PG GUID 3 Rank 3] Process group watchdog thread terminated with exception: CUDA error: unspecified launch failure"])),
    "journald: killed by systemd's time-out": (DEAD, short_iso([
        *up, *ok, "!systemd[1]: Stopping vllm.service - vLLM...", *TOLD[:1],
        "!systemd[1]: vllm.service: State 'stop-sigterm' timed out. Killing.",
        "!systemd[1]: vllm.service: Killing process 881 (vllm) with signal SIGKILL."])),
    "journald json: out of memory": (DEAD, journal_json([
        *up, *ok, "!kernel: oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=VLLM::EngineCor,pid=99,uid=0",
        "!kernel: Out of memory: Killed process 99 (VLLM::EngineCor) total-vm:1kB"])),
    "stern: of two pods the second stands still": (DEAD, [
        *stern([*up, *ok]),
        *(f"vllm-decode-1 vllm {text}" for text in [*up, *ok, *(stat(m, 0, 0.0, 0.0, 4, m) for m in range(20, 26))]),
        *stern(ok)]),
    "loki: one of two data-parallel engines died": (DEAD, logcli([
        *up, *ok, L(A, "ERROR", "09:20:00", "core_client.py:712", "Engine core proc EngineCore_DP1 died unexpectedly, shutting down client."), stat(21, 0, 1.0, 1.0, 1, 0)])),
    "json: critical in a logger that nobody knows": (DEAD, [
        *vllm_json([*up, *ok]),
        json.dumps({"asctime": AT, "levelname": "CRITICAL", "name": "acme.sidecar", "message": "model server lost"})]),
    "json: names of fields that structlog gives": (DEAD, structlog([
        *up, *ok, L(W(1), "ERROR", "09:11:00", "multiproc_executor.py:1189", "WorkerProc hit an exception.")])),
    "kubectl --timestamps: a Ray worker on another node": (DEAD, stamped([
        *up, *ok, "(EngineCore_DP0 pid=210) (RayWorkerWrapper pid=4711, ip=10.0.0.7) ERROR 12-01 09:20:00 [worker_base.py:300] Error executing method 'execute_model'. This might cause deadlock in distributed execution. [repeated 3x across cluster]"])),
    "ray: an actor that is unavailable": (DEAD, stamped([
        *up, *ok, f"{E}Traceback (most recent call last):", f'{E}  File "/opt/vllm/v1/executor/ray_executor.py", line 400, in execute_model',
        f"{E}ray.exceptions.RayChannelTimeoutError: System error: Timed out waiting for object available to read."])),
    "headless node: its workers died and nobody answers here": (DEAD, kubectl_prefix([
        L("(Main pid=7) ", "INFO", "09:00:00", "serve.py:239", "Launching 4 data parallel engine(s) in headless mode, with head node address 10.0.0.1."),
        *up[2:3], L("(EngineCore_DP4 pid=211) ", "ERROR", "09:12:00", "multiproc_executor.py:380", "Worker proc VllmWorker-6 died unexpectedly (exit code: -9), shutting down executor.")])),
    "several API servers: one of them was killed": (DEAD, [
        *(text.replace("APIServer", "ApiServer_0") for text in [*up, *ok]), *(text.replace("APIServer pid=1)", "ApiServer_1 pid=2)") for text in ok),
        L("(MainProcess pid=9) ", "ERROR", "09:20:00", "utils.py:600", "Exception occurred while running API servers: Process ApiServer_1 (PID: 2) died with exit code -9"),
        L("(MainProcess pid=9) ", "INFO", "09:20:00", "serve.py:396", "Waiting up to 0 seconds for processes to exit")]),
    "workers whose engine is gone": (DEAD, crlf([
        *up, *ok, L(W(0), "INFO", "09:10:20", "multiproc_executor.py:843", "Parent process exited, terminating worker queues")])),
    "kubelet: the probe failed before the stop": (DEAD, [
        *kubectl_prefix([*up, *ok]), 'Warning  Unhealthy  pod/vllm-decode-0  Liveness probe failed: Get "http://10.0.0.3:8000/health": context deadline exceeded (Client.Timeout exceeded while awaiting headers)',
        *kubectl_prefix([*TOLD, *DONE])]),
    "compose: only one of two data-parallel ranks makes tokens": (DEAD, compose([
        *up, *ok, *(text for m in range(20, 26) for text in (stat(m, 0, 10.0, 80.0, 3, 0), stat(m, 1, 0.0, 0.0, 5, 2)))])),
    "supervisor: it was killed and started again": (DEAD, [
        *up, *ok, "2026-12-01 09:20:00,123 INFO exited: vllm (terminated by SIGKILL; not expected)",
        "2026-12-01 09:20:01,123 INFO spawned: 'vllm' with pid 77", *(text.replace("pid=1)", "pid=77)") for text in [*up, *ok]), *TOLD, *DONE]),
    # Lines that a client wrote.
    "docker: a request id that ends a stuck shutdown": (NOT_SHOWN, docker([
        *up, *ok, *TOLD, *quote("INFO", "async_llm.py:601", "Added request cmpl-", "Application shutdown complete.", "Finished server process [1]", "-0.")])),
    "json: a model that is a whole line of another process": (HEALTHY, vllm_json([
        *up, *ok, L(A, "ERROR", "09:11:00", "serving.py:280", "Error with model error=ErrorInfo(message='The model `" + json.dumps({"levelname": "ERROR", "name": "vllm.v1.engine.core", "processName": "EngineCore_DP0", "message": "EngineCore encountered a fatal error."}) + "` does not exist.', type='NotFoundError', param='model', code=404)"), *ok])),
    "kubectl: a tool's name with line ends": (HEALTHY, kubectl_prefix([
        *up, *ok, *quote("WARNING", "hy_v3_tool_parser.py:97", "No tool named 'x", "Worker VllmWorkerProcess pid 7 died, exit code: -9", "Fatal Python error: Aborted", "'."), *ok])),
    "cri: an adapter's name says that it was killed": (HEALTHY, cri([
        *up, *ok, L(A, "INFO", "09:11:00", "serving.py:229", "Loaded new LoRA adapter: name 'Killed by signal 9, exitcode=-9 SIGKILL', path '/a'"), *ok])),
    "short-iso: a request id that speaks for the kernel": (HEALTHY, short_iso([
        *up, *ok, *quote("INFO", "request_logger.py:66", "Received request x", "NVRM: Xid (PCI:0000:1b:00): 79, pid=301, name=VLLM::Worker", "Memory cgroup out of memory: Killed process 301 (VLLM::Worker_TP)", ": params: SamplingParams(n=1), lora_request: None."), *ok])),
    "a forged restart hides a death": (DEAD, [
        *up, *ok, L(E, "ERROR", "09:10:30", "core.py:1586", "EngineCore encountered a fatal error."),
        *quote("INFO", "async_llm.py:601", "Added request cmpl-", "vLLM server version 0.33.0, serving model org/M", "non-default args: {}", "-0."), *ok]),
    # Healthy servers.
    "short-iso: another unit failed before": (HEALTHY, short_iso([
        *up, "!systemd[1]: node_exporter.service: Main process exited, code=exited, status=1/FAILURE", "!kernel: java[4711]: segfault at 0 ip 00007f3c2a sp 00007ffd error 4 in libjvm.so[7f3c2a000000+195000]", *ok])),
    "loki: told to stop and stopped": (HEALTHY, logcli([*up, *ok, *TOLD, *DONE])),
    "CRLF: an ordinary log": (HEALTHY, crlf([*up, *ok * 3])),
}  # fmt: skip


@pytest.mark.parametrize("name", logs)
def test_no_server_comes_out_better_than_it_is(tmp_path: Path, name: str) -> None:
    expected, lines = logs[name]
    path = tmp_path / "vllm.log"
    path.write_text("\n".join(lines) + "\n", newline="")
    result = triage([str(path)])
    assert result.exit_code in expected, result.reasons or [run.reasons for run in result.runs]
