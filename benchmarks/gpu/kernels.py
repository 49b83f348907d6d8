"""``python -m benchmarks.gpu.kernels``: compiles FlashInfer's `trtllm` kernels and loads them.

Once a release: FlashInfer keeps the library under the folder in FLASHINFER_WORKSPACE_BASE.
Prints a JSON object.
"""

from __future__ import annotations

import hashlib
import json
import time

from benchmarks.gpu.refusal import Refusal


def main() -> None:
    refusal = Refusal()
    from flashinfer.jit.comm import gen_trtllm_comm_module

    spec = gen_trtllm_comm_module()
    library = spec.get_library_path()
    kept = library.exists()
    started = time.perf_counter()
    module = spec.build_and_load()
    seconds = time.perf_counter() - started
    # One that vLLM's all-reduce calls, and one that fills a workspace's buffers.
    functions = ("trtllm_allreduce_fusion", "trtllm_lamport_initialize")
    missing = [name for name in functions if not hasattr(module, name)]
    refusal.check()
    content = library.read_bytes()
    found = {
        "library": library.name,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "kept from before": kept,
        "seconds": round(seconds, 1),
        "missing functions": missing,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
