"""What others than vLLM say of a server's death: shells, schedulers, runtimes, the kernel, Ray."""

# Log lines are long.
# ruff: noqa: E501

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hisparse_guard.cli.triage import Triage
from tests.cli.logs.formats import FORMATS
from tests.cli.triage.logs import line, read, request, start, started_up, stats
from tests.cli.triage.test_inputs import lead

UP = [*start(connector="None").splitlines(), started_up(), stats(), request()]
# More than is read of the end of a log without a search.
ON = [stats(at=f"22:15:{second}") for second in range(10, 40)]
ANYBODY = [
    "srun: Force Terminated job 9",
    "/entrypoint.sh: Zeile 12:    41 Get\u00f6tet                vllm serve",
    "The node was low on resource: ephemeral-storage. Container vllm was using 212Gi",
    "I1103 22:14:40.112233    1822 eviction_manager.go:629] pod is gone",
    "instance will be terminated at 2026-11-03T22:20:00Z",
    "s6-supervise vllm: warning: unable to spawn ./run - waiting 10 seconds",
    "Failed to initialize NVML: Driver/library version mismatch",
    "Terminated",
]
ORDINARY = [
    ["/usr/lib/python3.12/site-packages/x/y.py:12: UserWarning: this is slow", "  warnings.warn("],
    ['10.0.0.9 - - [03/Nov/2026:22:14:59 +0000] "GET /v1/models HTTP/1.1" 200 512 "-" "curl/8"'],
    ["Capturing CUDA graphs (decode, FULL):  41%|####      | 14/35 [00:01<00:02,  9.12it/s]"],
    ["node7:301:999 [0] NCCL INFO comm 0x55 rank 0 nranks 2 - Init COMPLETE"],
    ["^C"],
    ["(APISer"],
]
WORDS = [
    "Exit Code: 137, Exit Message: oops", "exit_code=255", "exit status 139", "PANICKED", "OOM_KILL",
    "mlx5: node7: got completion with error:", "vllm entered FATAL state", "the pod was Evicted", "Dead", "JOB CANCELLED DUE TO TIME LIMIT",
]  # fmt: skip
ERRORS = {
    "glog": "E1103 22:14:33.123456   301 nixl_agent.cpp:123] transfer request could not be posted",
    "klog": "E1103 22:14:33.123456    1822 kubelet.go:629] pod sandbox changed",
    "PyTorch": "[rank1]:E1103 22:14:33.123000 301 torch/_inductor/runtime/heuristics.py:612] Triton compilation went wrong",
    "PyTorch, tagged": "(Worker_TP1 pid=704) E1103 22:14:33.123000 301 torch/_inductor/x.py:612] Triton compilation went wrong",
    "Ray": "[2026-11-03 22:14:33,123 E 301 999] task_manager.cc:1000: the owner is gone",
    "raylet": "(raylet) [2026-11-03 22:14:33,123 E 301 999] (raylet) agent_manager.cc:86: agent exits",
    "UCX": "[1764735213.123456] [node7:301  :0]  ib_mlx5_log.c:177  UCX  ERROR Transport retry count exceeded",
    "spdlog": "[2026-11-03 22:14:33.123] [error] could not pin memory",
    "TensorRT-LLM": "[TensorRT-LLM][ERROR] workspace too small (/src/x.cpp:12)",
    "JSON": '{"level":"error","ts":1764735213.1,"msg":"engine core lost"}',
    "logfmt": 'time="2026-11-03T22:14:33Z" level=error msg="engine core lost"',
    "nginx": "2026/11/03 22:14:33 [error] 29#29: *12 upstream timed out (110: Connection timed out) while reading response header from upstream",
    "its name": "srun: error: node7: task 0: x",
}
NAMED = {
    "/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:111: operator(): block: [12,0,0], thread: [64,0,0] Assertion `index < sizes[i]` failed.": "cuda-error",
    "python: /build/pool.cc:12: void put(int): Assertion `block != nullptr' failed.": "process-crashed",
    "(raylet) The node with node id: 7f3c1a and address: 10.0.0.4 and node name: 10.0.0.4 has been marked dead because the detector has missed too many heartbeats from it.": "worker-died",
}
KERNEL = [
    "INFO: task {0}:{1} blocked for more than 120 seconds.",
    "watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [{0}:{1}]",
]
MACHINE = [
    "rcu: INFO: rcu_sched self-detected stall on CPU",
    "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5",
    "EXT4-fs (nvme0n1p1): Remounting filesystem read-only",
    "nfs: server models.example not responding, still trying",
]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("text", ANYBODY)
def test_an_unknown_line_behind_the_last_one_is_no_health(
    tmp_path: Path, form: str, text: str
) -> None:
    """Who started the server says in any words that it is gone."""
    wrapped = FORMATS[form](UP)
    assert read(tmp_path, *wrapped).exit_code == 0
    assert read(tmp_path, *wrapped, text).exit_code in (1, 4)
    assert read(tmp_path, *wrapped, text, *FORMATS[form](ON)).exit_code == 0


@pytest.mark.parametrize("tail", ORDINARY)
def test_an_ordinary_line_at_the_end_is_no_death(tmp_path: Path, tail: list[str]) -> None:
    assert read(tmp_path, *UP, *tail).exit_code == 0


def test_of_a_whole_journal_only_words_tell(tmp_path: Path) -> None:
    node = [f"Nov 03 22:14:04 node7 vllm[588]: {text}" for text in UP]
    other = "Nov 03 22:14:09 node7 CRON[912]: (root) CMD (run-parts /etc/cron.hourly)"
    restarts = "Nov 03 22:14:09 node7 systemd[1]: vllm.service: Scheduled restart job, restart counter is at 3."
    assert read(tmp_path, *node, other).exit_code == 0
    assert read(tmp_path, *node, restarts, *(node[-1:] * 20)).exit_code == 4


def test_a_name_behind_a_time_is_not_yet_the_journal(tmp_path: Path) -> None:
    stamped = [f"2026-11-03T22:14:04Z {text}" for text in (*UP, "Exit Code: 137", *ON)]
    assert read(tmp_path, *stamped).exit_code == 4


@pytest.mark.parametrize("word", WORDS)
def test_every_word_for_a_death_is_searched_for(tmp_path: Path, word: str) -> None:
    assert read(tmp_path, *UP, f"note: {word}", *ON).exit_code in (1, 4)


@pytest.mark.parametrize("text", ERRORS.values(), ids=ERRORS)
def test_an_error_of_another_logger_is_trouble(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, *UP, text, *ON).verdict == "unknown fault"


def test_an_error_that_is_none(tmp_path: Path) -> None:
    """TensorFlow's, where it is installed; and a collector's word for what came by stderr."""
    factory = "E0000 00:00:1796279360.983969   23220 cuda_dnn.cc:8310] Unable to register cuDNN factory: Attempting to register"
    assert read(tmp_path, *UP, factory, *ON).exit_code == 0
    stderr = [json.dumps({"textPayload": text, "severity": "ERROR"}) for text in (*UP, *ON)]
    assert read(tmp_path, *stderr).exit_code == 0


@pytest.mark.parametrize("text", NAMED)
def test_what_kernels_libraries_and_ray_write_is_named(tmp_path: Path, text: str) -> None:
    assert [fault for fault, _ in lead(read(tmp_path, *UP, text, *ON))] == [NAMED[text]]


def test_a_panic_in_rust_is_trouble(tmp_path: Path) -> None:
    panic = "(APIServer pid=588) thread '<unnamed>' panicked at src/tokenizer/encoding.rs:312:37:"
    assert read(tmp_path, *UP, panic, *ON).verdict == "unknown fault"


def test_corrupted_requests_are_trouble_without_hisparse_too(tmp_path: Path) -> None:
    corrupted = stats(at="22:15:09") + ", Corrupted: 3 reqs"
    found = read(tmp_path, *UP, corrupted, *ON)
    assert (found.verdict, lead(found)) == ("unknown fault", [])


@pytest.mark.parametrize("text", KERNEL)
def test_a_task_that_the_kernel_calls_hung_is_the_servers_or_not(tmp_path: Path, text: str) -> None:
    def said(name: str) -> Triage:
        return read(tmp_path, *UP, "[88211.100123] " + text.format(name, 703), *ON)

    assert said("VLLM::Worker_TP").exit_code == 4
    assert said("rsync").exit_code == 0


@pytest.mark.parametrize("text", MACHINE)
def test_what_the_kernel_says_of_the_machine_is_trouble(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, *UP, f"[88211.100123] {text}", *ON).verdict == "unknown fault"


def test_a_proxy_that_got_no_answer_is_trouble(tmp_path: Path) -> None:
    failed = (
        '10.0.0.9 - - [03/Nov/2026:22:14:59 +0000] "POST /v1/completions HTTP/1.1" 502 157 "-" "x"'
    )
    assert read(tmp_path, *UP, failed, *ON).exit_code == 4
    quoted = failed.replace(" 502 ", " 200 ").replace('"x"', '" 502 "')
    assert read(tmp_path, *UP, quoted, *ON).exit_code == 0


def test_compose_tells_the_containers_apart_by_its_bar(tmp_path: Path) -> None:
    proxy = 'nginx-1 | 10.0.0.9 - - [03/Nov/2026:22:14:59 +0000] "GET / HTTP/1.1" 200 1 "-" "x"'
    lines = [f"vllm-1  | {text}" for text in UP]
    assert read(tmp_path, "Attaching to nginx-1, vllm-1", *lines, proxy).exit_code == 0
    assert read(tmp_path, *lines, proxy, "Killed").exit_code in (1, 4)


def test_words_for_no_pod_count_where_there_are_several(tmp_path: Path) -> None:
    pods = [f"[pod/vllm-{pod}/vllm] {text}" for pod in (0, 1) for text in UP]
    assert read(tmp_path, *pods).exit_code == 0
    assert read(tmp_path, *pods, "srun: error: n1: task 0: Out Of Memory").exit_code == 4


def test_a_request_that_is_aborted_is_no_death(tmp_path: Path) -> None:
    aborted = line("APIServer pid=588", "Request cmpl-1 aborted.", file="async_llm.py:760")
    assert read(tmp_path, *UP, aborted, *ON).exit_code == 0
