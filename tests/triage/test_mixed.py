"""Several servers in one log, words of clients, and an end that was asked for."""

# Log lines are long.
# ruff: noqa: E501

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from hisparse_guard.cli.triage import Triage, triage
from tests.triage.logs import (
    COPY_FRAMES,
    LAUNCH_FAILURE,
    MIRROR_FRAMES,
    NIXL,
    excerpt,
    line,
    request,
    served,
    start,
    traceback,
    workspace,
)

API = "APIServer pid=588"
FAULTS = (
    "torch.AcceleratorError: CUDA error: unspecified launch failure; Initialized FlashInfer Allreduce "
    "norm fusion workspace with backend=mnnvl; Ninja build failed; CUDA out of memory; Killed process 7"
)


def read(tmp_path: Path, *lines: str, encoding: str = "utf-8") -> Triage:
    path = tmp_path / "vllm.log"
    path.write_text("\n".join(lines) + "\n", encoding=encoding)
    return triage([str(path)])


def healthy(*lines: str) -> list[str]:
    return [start(), workspace("trtllm"), served(), request(), *lines, request()]


def pods(**logs: list[str]) -> list[str]:
    named = [[f"[pod/{name}/vllm] {text}" for text in log] for name, log in logs.items()]
    return [text for row in itertools.zip_longest(*named) for text in row if text]


@pytest.mark.parametrize("begin", [0, 3])
def test_prefill_and_decode_in_one_file(tmp_path: Path, begin: int) -> None:
    # Both containers have the same process ids; with 3 their starts are cut off.
    prefill = [start(connector="'NixlConnector'"), workspace("mnnvl"), served(), *[request()] * 20]
    decode = [start(connector=NIXL), workspace("trtllm"), served(), *[request()] * 5,
              *(traceback(rank, MIRROR_FRAMES, LAUNCH_FAILURE) for rank in range(4))]  # fmt: skip
    both = pods(
        prefill="\n".join(prefill).splitlines()[begin:],
        decode="\n".join(decode).splitlines()[begin:],
    )
    result = read(tmp_path, *both)
    one, other = (judged for _, judged in result.lives)
    assert (one.life.origin, other.life.origin) == ("pod/prefill/vllm", "pod/decode/vllm")
    assert one.verdict == "healthy"
    assert (one.life.requests_done, other.life.requests_done) == (20, 5)
    assert [f.fault.id for f in other.findings] == ["host-mirror-collected"]
    assert other.findings[0].ranks == ("TP0", "TP1", "TP2", "TP3")


def test_ranks_in_another_pod_are_of_the_same_server(tmp_path: Path) -> None:
    head = [start(connector=NIXL, tp=8), workspace("trtllm"), served(), request(),
            *(traceback(rank, MIRROR_FRAMES, LAUNCH_FAILURE) for rank in range(4))]  # fmt: skip
    unranked = line("Worker pid=700", "vLLM is using nccl==2.28.9")
    head.insert(1, unranked)
    rest = [unranked, *(traceback(rank, MIRROR_FRAMES, LAUNCH_FAILURE) for rank in range(4, 8))]
    lines = [f"[pod/head/vllm] {text}" for text in "\n".join(head).splitlines()]
    lines += [f"[pod/rest/vllm] {text}" for text in "\n".join(rest).splitlines()]
    ((_, judged),) = read(tmp_path, *lines).lives
    assert judged.findings[0].ranks == tuple(f"TP{rank}" for rank in range(8))


@pytest.mark.parametrize(
    "text",
    [
        line(API, f"Error with request: body={{'content': {FAULTS!r}}}", "WARNING"),
        line(API, f"ValueError: Unknown part type: {FAULTS}", "ERROR", file="serving_chat.py:232"),
        line(API, f"Generated response: output: {FAULTS!r}", file="logger.py:81"),
        f'{API.join("()")} INFO:     127.0.0.1:1 - "POST /v1/completions?q=CUDA%20error HTTP/1.1" 200 OK',
        line("Worker_TP0 pid=703", "checked: 0 CUDA errors"),
        line(API, "Received request 1: prompt: 'POST /v1/completions HTTP/1.1\" 500 Internal Server Error\\n', params", file="logger.py:43"),
    ],
)  # fmt: skip
def test_words_of_clients_are_no_evidence(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, *healthy(text)).exit_code == 0


def test_stopped_from_outside(tmp_path: Path) -> None:
    dead = line("EngineCore_DP0 pid=648", "Worker proc VllmWorker-2 died unexpectedly (exit code: -9), shutting down executor.", "ERROR")  # fmt: skip
    stop = f"({API}) INFO:     Shutting down"
    # Far from the top and from the error, where not every line is looked at.
    other = ["2026-11-03 gateway[1] route=chat"] * 500
    result = read(tmp_path, *healthy(*other), stop, *other, dead)
    assert result.exit_code == 0
    assert result.lives[0][1].life.ended_by is not None
    # The other way round it is why the server stopped.
    assert read(tmp_path, *healthy(), dead, stop).exit_code == 1


def test_asked_for_trtllm(tmp_path: Path) -> None:
    crash = [start(), served(), traceback(2, COPY_FRAMES, LAUNCH_FAILURE)]
    for asked, fault in ((None, "hisparse-mnnvl"), ("trtllm", "host-mirror-collected")):
        env = [f"export VLLM_FLASHINFER_ALLREDUCE_BACKEND={asked}"] if asked else []
        findings = read(tmp_path, *env, *crash).lives[0][1].findings
        assert findings[0].fault.id == fault


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    result = read(tmp_path, excerpt("main-crash.log").rstrip("\n"), encoding=encoding)
    ((_, judged),) = result.lives
    assert [(f.fault.id, f.certainty) for f in judged.findings] == [("hisparse-mnnvl", "proven")]
    assert result.files[0].lines == excerpt("main-crash.log").count("\n")


@pytest.mark.parametrize("name", ["RayWorkerWrapper", "Worker", "VllmWorkerProcess"])
def test_workers_that_share_one_name_are_one_server(tmp_path: Path, name: str) -> None:
    lines = [start(), workspace("mnnvl"), served(), request()]
    for rank in range(4):
        crash = traceback(rank, COPY_FRAMES, LAUNCH_FAILURE)
        lines.append(crash.replace(f"Worker_TP{rank} pid", f"{name} pid"))
    ((_, judged),) = read(tmp_path, *lines).lives
    assert [(f.fault.id, f.certainty) for f in judged.findings] == [("hisparse-mnnvl", "proven")]
    assert judged.life.count("launch_failure") == 4


def test_guard_names_the_rank_where_the_process_does_not(tmp_path: Path) -> None:
    def armed(ranks: int) -> list[str]:
        return [
            line(f"RayWorkerWrapper pid={703 + rank}", f"hisparse-guard: armed by sitecustomize: guard 0.1.0, mode enforce, rank {rank} of 2")
            for rank in range(ranks)
        ]  # fmt: skip

    seen = [
        line(f"Worker_TP{rank} pid={703 + rank}", "Model loading took 74 GiB") for rank in (0, 1)
    ]
    assert read(tmp_path, *healthy(*armed(2), *seen)).exit_code == 0
    (_, judged), *_ = read(tmp_path, *healthy(*armed(1), *seen)).lives
    assert [(f.fault.id, f.ranks) for f in judged.findings] == [("group-guarded-in-part", ("TP1",))]


def test_log_of_one_node_of_two_is_no_group_guarded_in_part(tmp_path: Path) -> None:
    nodes = line("EngineCore_DP0 pid=648", "Detected 2 nodes in the distributed environment")
    armed = [
        line(f"Worker_TP{rank} pid={703 + rank}", f"hisparse-guard: armed by sitecustomize: guard 0.1.0, rank {rank} of 4")
        for rank in range(2)
    ]  # fmt: skip
    other = ["2026-11-03 gateway[1] route=chat"] * 500
    assert read(tmp_path, *healthy(*other, nodes, *other, *armed)).exit_code == 0
