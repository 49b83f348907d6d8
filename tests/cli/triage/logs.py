"""Realistic log lines for the tests, written after vLLM's formats and public reports."""

# Log lines are long.
# ruff: noqa: E501

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from hisparse_guard.cli.triage import Triage, triage
from hisparse_guard.runtime.telemetry import events, messages
from hisparse_guard.runtime.telemetry.log import PREFIX

DATA = Path(__file__).parents[2] / "data" / "logs"


def excerpt(name: str) -> str:
    """A real excerpt, as published."""
    return (DATA / name).read_text(encoding="utf-8")


def read(tmp_path: Path, *lines: str, **options: Any) -> Triage:
    """What triage says of a log of these lines."""
    path = tmp_path / "vllm.log"
    path.write_text("\n".join(lines) + "\n")
    return triage([str(path)], **options)


def line(
    who: str, message: str, level: str = "INFO", at: str = "22:14:04", file: str = "x.py:1"
) -> str:
    return f"({who}) {level} 11-03 {at} [{file}] {message}"


def start(
    version: str = "0.33.0",
    pid: int = 588,
    at: str = "22:00:00",
    connector: str = "'HiSparseConnector'",
    extra: str = "",
    tp: int = 4,
) -> str:
    """A server start as `vllm serve` logs it."""
    api, core = f"APIServer pid={pid}", f"EngineCore_DP0 pid={pid + 60}"
    return "\n".join(
        [
            line(api, f"vLLM server version {version}, serving model zai-org/GLM-5.3", at=at, file="startup.py:38"),
            line(
                api,
                "non-default args: {'model_tag': 'zai-org/GLM-5.3', 'block_size': 64, "
                f"'tensor_parallel_size': {tp}, 'api_key': ['not-to-be-shown'], "
                f"'kv_transfer_config': KVTransferConfig(kv_connector={connector}, "
                f"kv_connector_extra_config={{'host_pool_gib': 128}}){extra}}}",
                at=at,
                file="startup.py:96",
            ),
            line(
                core,
                f"Initializing a V1 LLM engine (v{version}) with config: model='zai-org/GLM-5.3', "
                f"tensor_parallel_size={tp}, enforce_eager=False, compilation_config={{'cudagraph_mode': "
                "<CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>}",
                at=at,
                file="core.py:139",
            ),
        ]
    )  # fmt: skip


def workspace(backend: str, pid: int = 703, at: str = "22:10:15") -> str:
    return line(
        f"Worker_TP0 pid={pid}",
        f"Initialized FlashInfer Allreduce norm fusion workspace with backend={backend}",
        at=at,
        file="flashinfer_all_reduce.py:252",
    )


def started_up(pid: int = 588) -> str:
    return f"(APIServer pid={pid}) INFO:     Application startup complete."


def request(status: int = 200, port: int = 48802) -> str:
    word = {200: "OK", 500: "Internal Server Error"}[status]
    return (
        f"(APIServer pid=588) INFO:     127.0.0.1:{port} - "
        f'"POST /v1/chat/completions HTTP/1.1" {status} {word}'
    )


def stats(
    running: int = 32,
    gen: float = 33.2,
    prompt: float = 16025.3,
    kv: float = 3.2,
    at: str = "22:14:02",
) -> str:
    return line(
        "APIServer pid=588",
        f"Engine 000: Avg prompt throughput: {prompt} tokens/s, Avg generation throughput: {gen} "
        f"tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: {kv}%, "
        "Prefix cache hit rate: 0.0%",
        at=at,
        file="loggers.py:335",
    )  # fmt: skip


HISPARSE_METRICS = line(
    "APIServer pid=588",
    "KV Transfer metrics: HiSparse hot-buffer hits=0, HiSparse hot-buffer misses=0, "
    "HiSparse host-to-device bytes=0, HiSparse host KV cache usage %=76.2",
    at="22:14:02",
    file="metrics.py:108",
)


def traceback(
    rank: int,
    frames: list[tuple[str, int, str, str]],
    error: str,
    pid: int = 703,
    at: str = "22:14:04",
    prefix: str = "all",
) -> str:
    """A worker's traceback.

    Args:
        prefix: "all" as vLLM logs it, "first" as a plain formatter does, "tag" with the
            process tag alone, "none" for a bare one.
    """
    who = f"Worker_TP{rank} pid={pid + rank}"
    body = ["WorkerProc hit an exception.", "Traceback (most recent call last):"]
    for file, number, function, code in frames:
        body += [f'  File "{file}", line {number}, in {function}', f"    {code}"]
    body.append(error)
    if prefix == "all":
        return "\n".join(
            line(who, text, "ERROR", at, "multiproc_executor.py:1189") for text in body
        )
    if prefix == "first":
        first = line(who, body[0], "ERROR", at, "multiproc_executor.py:1189")
        return "\n".join([first, *body[1:]])
    if prefix == "tag":
        return "\n".join(f"({who}) {text}" for text in body)
    return "\n".join(body[1:])


MIRROR_FRAMES = [
    ("vllm/v1/worker/gpu/model_runner.py", 1928, "execute_model", "self.kv_connector.finish_forward()"),
    ("vllm/distributed/kv_transfer/kv_connector/v1/hisparse/worker.py", 831, "finish_forward",
     "self._finish_mirror_phase(self._forward_ready_event)"),
    ("vllm/distributed/kv_transfer/kv_connector/v1/hisparse/worker.py", 823, "_finish_mirror_phase",
     "state.event.synchronize()"),
]  # fmt: skip
REPLAY_FRAMES = [
    ("vllm/v1/worker/gpu/model_runner.py", 1887, "execute_model",
     "model_output = self.cudagraph_manager.run_fullgraph(batch_desc)"),
    ("vllm/v1/worker/gpu/cudagraph_utils.py", 486, "run_fullgraph", "self.graphs[desc].replay()"),
]  # fmt: skip
COPY_FRAMES = [
    ("vllm/v1/worker/gpu/async_utils.py", 175, "get_output", "self.copy_event.synchronize()"),
    ("torch/cuda/streams.py", 254, "synchronize", "super().synchronize()"),
]
LAUNCH_FAILURE = "torch.AcceleratorError: CUDA error: unspecified launch failure"
ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"

NIXL = (
    "'MultiConnector', kv_connector_extra_config={'connectors': [{'kv_connector': "
    "'NixlConnector'}, {'kv_connector': 'HiSparseConnector'}]}"
)
OFFLOADING = (
    "'MultiConnector', kv_connector_extra_config={'connectors': [{'kv_connector': "
    "'OffloadingConnector'}, {'kv_connector': 'HiSparseConnector'}]}"
)
PLAIN = "None"


def shm_wait(times: int = 3) -> str:
    return "\n".join(
        line(
            "EngineCore_DP0 pid=648",
            "No available shared memory broadcast block found in 60 seconds. This typically happens "
            "when some processes are hanging or doing some time-consuming work (e.g. compilation, "
            "weight/kv cache quantization).",
            at=f"22:{11 + minute}:03",
            file="shm_broadcast.py:802",
        )
        for minute in range(times)
    )  # fmt: skip


def armed(rank: int, pid: int = 703) -> str:
    """By the guard's own words, as all that it says here."""
    settings = {"mode": "enforce", "backend": "auto"}
    versions = ("0.2.0", "0.33.0", "0.7.2.post1", "3.12.3", "unguarded")
    event = events.Armed("sitecustomize", *versions, 1, "vllm", settings, {}, "races")
    _, said = messages.armed(event, rank, 4)
    return _guard(said, rank, pid, "22:05:00")


def guard_workspace(
    state: str, backend: str, expected: str = "trtllm", mode: str = "enforce", rank: int = 0
) -> str:
    """What the guard says of a workspace that a getter gave out."""
    event = events.Workspace(
        state, backend, expected, "primary", rank, 4, None, True, None, mode=mode, creation=1
    )
    told = messages.workspace(event)
    assert told is not None
    level, said = told
    return _guard(said, rank, 703, "22:10:16", logging.getLevelName(level))


def _guard(said: str, rank: int, pid: int, at: str, level: str = "INFO") -> str:
    who = f"Worker_TP{rank} pid={pid + rank}"
    return line(who, PREFIX + said, level, at=at, file="log.py:10")
