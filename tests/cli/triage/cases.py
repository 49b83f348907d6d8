"""For each entry of the catalogue a log with the lines of its public report."""

from __future__ import annotations

from tests.cli.triage.logs import (
    COPY_FRAMES,
    HISPARSE_METRICS,
    ILLEGAL,
    LAUNCH_FAILURE,
    MIRROR_FRAMES,
    NIXL,
    OFFLOADING,
    PLAIN,
    REPLAY_FRAMES,
    armed,
    line,
    request,
    shm_wait,
    start,
    started_up,
    stats,
    traceback,
    workspace,
)

WARN = "WARNING"
W0, W8 = "Worker_TP0 pid=703", "Worker_TP8_EP8 pid=2019"
MNNVL_FRAME = (
    "/usr/local/lib/python3.12/dist-packages/flashinfer/comm/trtllm_mnnvl_ar.py",
    544,
    "trtllm_mnnvl_fused_allreduce_add_rmsnorm",
    "raise ValueError(",
)


def lines(*parts: str) -> str:
    return "\n".join(parts) + "\n"


def all_ranks(frames: list[tuple[str, int, str, str]], error: str) -> str:
    return lines(*(traceback(rank, frames, error) for rank in range(4)))


DIED = line(
    "EngineCore_DP0 pid=648",
    "Worker proc VllmWorker-2 died unexpectedly (exit code: {}), shutting down executor.",
    "ERROR",
    file="multiproc_executor.py:380",
)
NCCL = (
    "[rank1]:[E1103 22:31:22.267261276 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=203441, OpType=ALLREDUCE, NumelIn=32064, NumelOut=32064, "
    "Timeout(ms)=600000) ran for 600020 milliseconds before timing out."
)
GLOO = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out "
    "waiting 1800000ms for recv operation to complete"
)
GLOO_FRAME = (
    "vllm/distributed/parallel_state.py", 2210, "in_the_same_node_as", "torch.distributed.barrier(group)"
)  # fmt: skip

# (fault, certainty, log): the first fault named, with this certainty.
# ruff: noqa: E501
CASES: list[tuple[str, str, str]] = [
    ("hisparse-mnnvl", "proven", lines(start(), workspace("mnnvl"), started_up(), HISPARSE_METRICS, stats(), traceback(2, COPY_FRAMES, LAUNCH_FAILURE), DIED.format(1))),
    ("hisparse-mnnvl", "likely", lines(start(), started_up(), HISPARSE_METRICS, traceback(2, COPY_FRAMES, LAUNCH_FAILURE))),
    ("hisparse-mnnvl", "likely", lines(start(), line(W0, "Auto-selected flashinfer allreduce backend: mnnvl", "DEBUG"), started_up(), traceback(0, COPY_FRAMES, LAUNCH_FAILURE))),
    ("hisparse-mnnvl-waiting", "proven", lines(start(), workspace("mnnvl"), started_up(), HISPARSE_METRICS, request())),
    ("host-mirror-collected", "likely", lines(start(connector=NIXL), workspace("trtllm"), started_up(), all_ranks(MIRROR_FRAMES, LAUNCH_FAILURE))),
    ("host-mirror-collected", "likely", lines(start(connector=NIXL), workspace("trtllm"), started_up(), all_ranks(COPY_FRAMES, LAUNCH_FAILURE))),
    ("host-mirror-collected", "unconfirmed", lines(start(), workspace("trtllm"), started_up(), HISPARSE_METRICS, traceback(1, COPY_FRAMES, LAUNCH_FAILURE))),
    ("host-mirror-replay", "likely", lines("export CUDA_LAUNCH_BLOCKING=1", start(connector=NIXL), workspace("trtllm"), started_up(), all_ranks(REPLAY_FRAMES, LAUNCH_FAILURE))),
    ("hisparse-offloading", "unconfirmed", lines(start(connector=OFFLOADING), workspace("trtllm"), started_up(), all_ranks(MIRROR_FRAMES, LAUNCH_FAILURE))),
    ("shutdown-stuck", "likely", lines(start(connector=PLAIN), started_up(), request(), line("APIServer pid=588", "[shutdown] API server: shutdown triggered", file="launcher.py:256"), shm_wait())),
    ("mnnvl-illegal-access", "likely", lines(start(connector=PLAIN), workspace("mnnvl"), all_ranks([MNNVL_FRAME], ILLEGAL))),
    ("mnnvl-misaligned-address", "likely", lines(start(connector=PLAIN), workspace("mnnvl"), all_ranks([MNNVL_FRAME], "torch.AcceleratorError: CUDA error: misaligned address"))),
    ("multicast-unavailable", "likely", lines(start(connector=PLAIN), line(W0, "Failed to initialize FlashInfer All Reduce workspace: CUDA error 801: operation not supported.", WARN, file="flashinfer_all_reduce.py:85"), traceback(0, REPLAY_FRAMES[:1], "RuntimeError: CUDA error: operation failed due to a previous error during capture"))),
    ("multicast-unavailable", "proven", lines(start(connector=PLAIN), traceback(0, [("flashinfer/comm/trtllm_ar.py", 554, "trtllm_create_ipc_workspace_for_all_reduce_fusion", "SymmDeviceMemory(")], "RuntimeError: [SymmDeviceMemory] Device does not support multicasting."))),
    ("mnnvl-buffer-too-small", "proven", lines(start(connector=PLAIN), workspace("mnnvl"), all_ranks([MNNVL_FRAME], "ValueError: The buffer size in the given workspace is insufficient for the given problem size. Buffer: 698368 bytes, required: 2097152 bytes."))),
    ("mnnvl-hang-at-capture", "likely", lines(start(connector=PLAIN), workspace("mnnvl"), "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  12%|█▏        | 6/51 [00:01<00:09,  4.7it/s]", shm_wait(5))),
    ("mnnvl-multi-node-timeout", "proven", lines(start(connector=PLAIN, tp=16), line(W8, "Failed to initialize FlashInfer All Reduce workspace: [fd_exchange] timed out connecting to /tmp/cuda_fd_xchg_2226_0_2unnfod0/fd.sock.", WARN, file="flashinfer_all_reduce.py:85"), shm_wait(5))),
    ("trtllm-across-nodes", "proven", lines(start(connector=PLAIN, tp=16), traceback(0, [("vllm/distributed/device_communicators/flashinfer_all_reduce.py", 196, "get_fi_ar_workspace", "raise ValueError(")], "ValueError: Flashinfer allreduce is not supported for multi-node allreduce with 'trtllm' backend. Please use 'mnnvl' backend instead."))),
    ("trtllm-across-nodes", "likely", lines(start(connector=PLAIN, tp=16), traceback(0, [("flashinfer/comm/trtllm_ar.py", 554, "trtllm_create_ipc_workspace_for_all_reduce_fusion", "ipc_handles.append(create_shared_buffer(aligned_size, group))")], "RuntimeError: CUDART error: invalid resource handle"))),
    ("trtllm-slow-on-bridged-nvlink", "likely", lines(start(), line(W0, "FlashInfer mnnvl allreduce workspace unavailable (likely no NVSwitch multicast support); falling back to trtllm backend for single node.", WARN), workspace("trtllm"), started_up(), *(stats(running=32, gen=120.0, prompt=0.0) for _ in range(4)))),
    ("hisparse-garbled-output", "likely", lines(start(), workspace("trtllm"), started_up(), HISPARSE_METRICS, stats().replace("Prefix cache hit", "Corrupted: 3 reqs, Prefix cache hit"))),
    ("gpu-out-of-memory", "proven", lines(start(connector=PLAIN), traceback(0, [("vllm/model_executor/models/llama.py", 321, "__init__", "make_layers(")], "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 350.00 MiB. GPU 0 has a total capacity of 23.68 GiB of which 212.81 MiB is free."))),
    ("hisparse-host-pool", "proven", lines(start(), traceback(0, [("vllm/v1/hisparse/runtime.py", 199, "check_hisparse_host_memory", "raise ValueError(")], "ValueError: HiSparse pinned host pool needs ~640 GiB but only 480 GiB of RAM is available. Lower the HiSparseConnector host_pool_gib or leave headroom for co-tenants."))),
    ("hisparse-refused", "proven", lines(start(), line("APIServer pid=588", "ValueError: HiSparse does not support pipeline parallelism.", "ERROR"))),
    ("hisparse-capture-invalid-argument", "likely", lines(start(), traceback(0, [("vllm/model_executor/layers/sparse_attn_indexer.py", 80, "forward", "logical_topk_ready.wait()")], "torch.AcceleratorError: CUDA error: invalid argument"))),
    ("hisparse-nixl-geometry", "proven", lines(start(connector=NIXL), traceback(0, [("vllm/distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py", 900, "register_kv_caches", "adapter.register_region(")], "ValueError: HiSparse host page is smaller than its transfer region: layer=model.layers.0.self_attn.attn.hisparse_resident, host_stride=73728, region_block_len=294912"))),
    ("group-guarded-in-part", "likely", lines(start(), armed(0), armed(1), line("Worker_TP2 pid=705", "Model loading took 74.08 GiB"), line("Worker_TP3 pid=706", "Model loading took 74.08 GiB"), shm_wait(4), traceback(0, [GLOO_FRAME], GLOO))),
    ("nccl-timeout", "proven", lines(start(connector=PLAIN), started_up(), stats(), NCCL)),
    ("gloo-timeout", "proven", lines(start(connector=PLAIN), traceback(1, [GLOO_FRAME], GLOO))),
    ("engine-rpc-timeout", "proven", lines(start(connector=PLAIN), started_up(), stats(), shm_wait(5), line("EngineCore_DP0 pid=648", "TimeoutError: RPC call to sample_tokens timed out.", "ERROR", file="core.py:1586"))),
    ("kernel-compile-failed", "proven", lines(start(connector=PLAIN), traceback(0, [("flashinfer/jit/cpp_ext.py", 300, "run_ninja", "raise RuntimeError(msg) from e")], "RuntimeError: Ninja build failed. Ninja output:"), "/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found", "ninja: build stopped: subcommand failed.")),
    ("startup-waits-for-kernels", "unconfirmed", lines(start(connector=PLAIN), shm_wait(3))),
    ("worker-killed", "proven", lines(start(), started_up(), stats(), DIED.format(-9))),
    ("worker-killed", "proven", lines(start(), workspace("trtllm"), started_up(), "Nov 03 22:14:04 node7 kernel: Memory cgroup out of memory: Killed process 703 (VLLM::Worker_TP) total-vm:1234kB, anon-rss:1kB", DIED.format("None"))),
    ("worker-died", "unconfirmed", lines(start(connector=PLAIN), started_up(), DIED.format("None"))),
    ("gpu-hardware", "likely", lines(start(connector=PLAIN), started_up(), "Nov 03 22:14:03 node7 kernel: NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", traceback(2, COPY_FRAMES, LAUNCH_FAILURE))),
    ("cuda-error", "proven", lines(start(connector=PLAIN), started_up(), request(), traceback(1, [("vllm/v1/worker/gpu/model_runner.py", 900, "execute_model", "x")], "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"))),
    ("process-crashed", "proven", lines(start(connector=PLAIN), started_up(), request(), "!!!!!!! Segfault encountered !!!!!!!", DIED.format(-11))),
    ("process-crashed", "proven", lines(start(connector=PLAIN), started_up(), request(), "double free or corruption (!prev)", "Aborted (core dumped)")),
    ("gpu-library-error", "proven", lines(start(connector=PLAIN), started_up(), request(), traceback(1, [("vllm/model_executor/layers/linear.py", 900, "forward", "x")], "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"))),
    ("gpu-library-error", "proven", lines(start(connector=PLAIN), started_up(), request(), traceback(1, [("torch/nn/modules/conv.py", 900, "forward", "x")], "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"))),
    ("nccl-error", "proven", lines(start(connector=PLAIN), started_up(), request(), "terminate called after throwing an instance of 'c10::DistBackendError'", "  what():  [PG ID 2 PG GUID 3 Rank 1] Process group watchdog thread terminated with exception: NCCL error: remote process exited")),
    ("nccl-timeout", "proven", lines(start(connector=PLAIN), started_up(), request(), "terminate called after throwing an instance of 'c10::DistBackendError'", "  what():  [PG ID 2 PG GUID 3 Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1")),
    ("kv-transfer-failed", "proven", lines(start(), workspace("trtllm"), started_up(), line(W0, "NIXL transfer failure: transfer_failed | Context: {}", "ERROR", file="base_worker.py:1198"), request())),
    ("arguments-refused", "proven", lines("usage: vllm serve [model_tag] [options]", "vllm serve: error: unrecognized arguments: --tensor-paralel-size 4")),
    ("arguments-refused", "proven", lines("usage: api_server.py [-h]", "api_server.py: error: argument --port: invalid int value: 'http'")),
    ("port-in-use", "proven", lines(start(connector=PLAIN).splitlines()[0], *(f"(APIServer pid=588) {text}" for text in ("Traceback (most recent call last):", '  File "vllm/entrypoints/launchers/utils/server_utils.py", line 60, in create_server_socket', "    sock.bind(addr)", "OSError: [Errno 98] Address already in use")))),
    ("disk-full", "proven", lines(start(connector=PLAIN), traceback(0, [("vllm/compilation/backends.py", 412, "save", "f.write(data)")], "OSError: [Errno 28] No space left on device: '/root/.cache/vllm/x'"))),
    ("weights-unavailable", "proven", lines(start(connector=PLAIN), traceback(0, [("huggingface_hub/file_download.py", 501, "http_get", "raise")], "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the files on the Hub"))),
    ("weights-unavailable", "proven", lines(start(connector=PLAIN), traceback(0, [("transformers/utils/hub.py", 543, "cached_files", "raise OSError(")], "OSError: You are trying to access a gated repo."))),
    ("gpu-unusable", "proven", lines(start(connector=PLAIN), traceback(0, [("torch/cuda/__init__.py", 412, "_lazy_init", "torch._C._cuda_init()")], "RuntimeError: The NVIDIA driver on your system is too old (found version 12040)."))),
    ("worker-killed", "proven", lines(start(connector=PLAIN), started_up(), "(raylet) node_manager.cc:3069: 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: 31fd)", line("EngineCore_DP0 pid=648", "RayWorkerProc rank=[3] died unexpectedly, shutting down executor.", "ERROR", file="ray_executor_v2.py:522"))),
]  # fmt: skip
