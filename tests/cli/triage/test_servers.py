"""Logs of dead, healthy and lied-about servers: none comes out better than it is."""

# Log lines are long.
# ruff: noqa: E501, RUF005

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hisparse_guard.cli.triage import triage

A = "(APIServer pid=1) "
E = "(EngineCore_DP0 pid=210) "


def W(rank: int) -> str:
    return f"(Worker_TP{rank} pid={300 + rank}) "


def U(text: str) -> str:
    return f"{A}INFO:     {text}"


def L(who: str, level: str, time: str, file: str, text: str) -> str:
    return f"{who}{level} 12-01 {time} [{file}] {text}"


up = [
    L(A, "INFO", "09:00:00", "startup.py:38", "vLLM server version 0.33.0, serving model org/M"),
    L(
        A,
        "INFO",
        "09:00:01",
        "startup.py:96",
        "non-default args: {'model_tag': 'org/M', 'tensor_parallel_size': 4}",
    ),
    L(
        E,
        "INFO",
        "09:00:20",
        "core.py:140",
        "Initializing a V1 LLM engine (v0.33.0) with config: model='org/M', tensor_parallel_size=4",
    ),
    U("Started server process [1]"),
    U("Waiting for application startup."),
    U("Application startup complete."),
]
ok = [
    U('10.1.0.4:5123 - "POST /v1/chat/completions HTTP/1.1" 200 OK'),
    L(
        A,
        "INFO",
        "09:10:00",
        "loggers.py:335",
        "Engine 000: Avg prompt throughput: 120.0 tokens/s, Avg generation throughput: 80.5 tokens/s, Running: 3 reqs, Waiting: 0 reqs, GPU KV cache usage: 4.1%, Prefix cache hit rate: 0.0%",
    ),
]
logs: dict[str, tuple[str, list[str]]] = {}
# dead ones
logs["d01_oom_kill_pod"] = (
    "dead",
    up + ok + ["/bin/bash: line 1:    17 Killed                  vllm serve org/M"],
)
logs["d02_cuda_device_assert"] = (
    "dead",
    up
    + ok
    + [
        "../aten/src/ATen/native/cuda/IndexKernel.cu:93: operator(): block: [12,0,0], thread: [3,0,0] Assertion `-sizes[i] <= index && index < sizes[i]` failed."
    ]
    + [
        L(W(1), "ERROR", "09:11:00", "multiproc_executor.py:1189", x)
        for x in (
            "WorkerProc hit an exception.",
            "Traceback (most recent call last):",
            '  File "/opt/vllm/v1/worker/gpu/model_runner.py", line 1900, in execute_model',
            "    out = f()",
            "torch.AcceleratorError: CUDA error: device-side assert triggered",
        )
    ],
)
logs["d03_api_gone_sigterm_less"] = (
    "dead",
    up
    + ok
    + [
        L(A, "ERROR", "09:11:00", "async_llm.py:943", "AsyncLLM output_handler failed."),
        A + "Traceback (most recent call last):",
        A + '  File "/opt/vllm/v1/engine/async_llm.py", line 900, in output_handler',
        A
        + "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
    ],
)
logs["d04_warning_only"] = (
    "dead",
    up
    + ok
    + [
        L(
            A,
            "WARNING",
            "09:12:00",
            "core_client.py:840",
            "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup",
        ),
        U("Shutting down"),
        U("Application shutdown complete."),
        U("Finished server process [1]"),
    ],
)
logs["d05_bus_error_shm"] = ("dead", up + ok + ["Bus error (core dumped)"])
logs["d06_queue_grows"] = (
    "dead",
    up
    + ok
    + [
        L(
            A,
            "INFO",
            f"09:{20 + i}:00",
            "loggers.py:335",
            f"Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: {i + 3} reqs, Deferred: {i} reqs, GPU KV cache usage: 0.0%, Prefix cache hit rate: 0.0%",
        )
        for i in range(8)
    ]
    + [U('10.1.0.1:1 - "GET /health HTTP/1.1" 200 OK')],
)
logs["d07_systemd"] = (
    "dead",
    ["Dec 01 09:00:00 gpu3 vllm[881]: " + x for x in up + ok]
    + [
        "Dec 01 09:20:00 gpu3 systemd[1]: vllm.service: Main process exited, code=killed, status=9/KILL",
        "Dec 01 09:20:00 gpu3 systemd[1]: vllm.service: Failed with result 'signal'.",
    ],
)
logs["d08_ray_actor"] = (
    "dead",
    up
    + ok
    + [
        "(EngineCore_DP0 pid=210) Traceback (most recent call last):",
        '(EngineCore_DP0 pid=210)   File "/opt/vllm/v1/executor/ray_executor.py", line 400, in _run',
        "(EngineCore_DP0 pid=210) ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    ],
)
logs["d09_json_fatal"] = (
    "dead",
    [
        json.dumps(
            {
                "asctime": "2026-12-01 09:00:00,1",
                "levelname": "INFO",
                "name": "vllm.entrypoints.common.startup",
                "processName": "MainProcess",
                "process": 1,
                "message": "vLLM server version 0.33.0, serving model org/M",
            }
        ),
        json.dumps(
            {
                "asctime": "2026-12-01 09:02:00,1",
                "levelname": "INFO",
                "name": "uvicorn.error",
                "processName": "MainProcess",
                "process": 1,
                "message": "Application startup complete.",
            }
        ),
        json.dumps(
            {
                "asctime": "2026-12-01 09:03:00,1",
                "levelname": "INFO",
                "name": "uvicorn.access",
                "processName": "MainProcess",
                "process": 1,
                "message": '10.1.0.4:5123 - "POST /v1/completions HTTP/1.1" 200',
            }
        ),
        json.dumps(
            {
                "asctime": "2026-12-01 09:09:00,1",
                "levelname": "ERROR",
                "name": "vllm.v1.engine.core",
                "processName": "EngineCore_DP0",
                "process": 210,
                "message": "EngineCore encountered a fatal error.",
                "exc_info": 'Traceback (most recent call last):\n  File "/opt/vllm/v1/engine/core.py", line 1580, in run_engine_core\n    x()\nRuntimeError: Triton Error [CUDA]: an illegal memory access was encountered',
            }
        ),
    ],
)
logs["d10_nvlink_xid"] = (
    "dead",
    up
    + ok
    + [
        "[88211.100] NVRM: Xid (PCI:0000:1b:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 3",
        L(
            W(0),
            "ERROR",
            "09:13:01",
            "multiproc_executor.py:1189",
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited or there was a network error",
        ),
    ],
)
logs["d11_docker_compose_exit"] = (
    "dead",
    ["vllm-1  | " + x for x in up + ok] + ["vllm-1 exited with code 139"],
)
logs["d12_stop_in_start"] = (
    "dead",
    up[:3]
    + [L(W(2), "INFO", "09:01:00", "gpu_model_runner.py:10", "Starting to load model org/M...")],
)
logs["d13_glibc"] = ("dead", up + ok + ["malloc(): unaligned tcache chunk detected"])
logs["d14_stats_stop"] = (
    "dead",
    up
    + ok[:1]
    + [
        L(
            A,
            "INFO",
            "09:10:00",
            "loggers.py:335",
            "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 9 reqs, Waiting: 40 reqs, GPU KV cache usage: 99.9%, Prefix cache hit rate: 0.0%",
        )
    ]
    * 1
    + [
        L(
            E,
            "INFO",
            "09:25:00",
            "shm_broadcast.py:802",
            "No available shared memory broadcast block found in 60 seconds.",
        )
    ],
)
# forged on healthy
evil = "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor."
logs["f15_model_name"] = (
    "healthy",
    up
    + ok
    + [
        L(
            A,
            "ERROR",
            "09:11:00",
            "serving.py:280",
            f"Error with model error=ErrorInfo(message='The model `{evil}` does not exist.', type='NotFoundError', param='model', code=404)",
        ),
        U('10.1.0.4:5123 - "POST /v1/chat/completions HTTP/1.1" 404 Not Found'),
    ]
    + ok,
)
logs["f16_reqid"] = (
    "healthy",
    up
    + ok
    + [
        L(
            A,
            "INFO",
            "09:11:00",
            "async_llm.py:311",
            "Added request NVRM: Xid (PCI:0000:1b:00): 79.",
        ),
        L(
            W(0),
            "WARNING",
            "09:11:09",
            "base_worker.py:3371",
            "Releasing expired KV blocks for request EngineCore encountered a fatal error. Killed process 3 died unexpectedly which were retrieved by 0 decode worker(s) within 480 seconds.",
        ),
    ]
    + ok,
)
logs["f17_url"] = (
    "healthy",
    up
    + ok
    + [
        U(
            '10.9.9.9:1 - "GET /?x=Segmentation%20fault%20(core%20dumped)&HTTP/1.1%22%20500 HTTP/1.1" 404 Not Found'
        )
    ],
)
# forged: hides death
logs["f18_hide"] = (
    "dead",
    up
    + ok
    + [
        L(E, "ERROR", "09:11:00", "core.py:1586", "EngineCore encountered a fatal error."),
        L(
            A,
            "ERROR",
            "09:11:00",
            "serving.py:280",
            "Error with model error=ErrorInfo(message='The model `[shutdown] API server: shutdown triggered` does not exist.', type='NotFoundError', param='model', code=404)",
        ),
        U("Shutting down"),
        U("Application shutdown complete."),
    ],
)
logs["f19_fake_health"] = (
    "notshown",
    [
        L(
            A,
            "INFO",
            "09:00:00",
            "startup.py:38",
            "vLLM server version 0.33.0, serving model org/M",
        ),
        L(
            A,
            "INFO",
            "09:11:00",
            "request_logger.py:67",
            "Received request a: prompt: 'INFO:     Application startup complete.', params: SamplingParams(stop=['INFO:     1.1.1.1:1 - \"POST /v1/completions HTTP/1.1\" 200 OK'])",
        ),
    ],
)
# healthy
logs["h20_ok"] = (
    "healthy",
    up
    + ok * 3
    + [
        L(A, "INFO", "09:30:00", "launcher.py:256", "[shutdown] API server: shutdown triggered"),
        U("Shutting down"),
        U("Application shutdown complete."),
        U("Finished server process [1]"),
    ],
)
logs["h21_tool_err"] = (
    "healthy",
    up
    + ok
    + [
        L(
            A,
            "ERROR",
            "09:11:00",
            "hermes_tool_parser.py:120",
            "Error in extracting tool call from response.",
        ),
        *[
            L(A, "ERROR", "09:11:00", "hermes_tool_parser.py:120", x)
            for x in (
                "Traceback (most recent call last):",
                '  File "/opt/vllm/tool_parsers/hermes.py", line 100, in extract',
                "json.decoder.JSONDecodeError: Expecting value: line 1",
            )
        ],
    ]
    + ok,
)


CODES = {"dead": (1, 4), "healthy": (0,), "notshown": (4,)}


@pytest.mark.parametrize("name", logs)
def test_no_server_comes_out_better_than_it_is(tmp_path: Path, name: str) -> None:
    expected, lines = logs[name]
    path = tmp_path / "vllm.log"
    path.write_text("\n".join(lines) + "\n")
    assert triage([str(path)]).exit_code in CODES[expected]
