"""What FlashInfer itself makes of vLLM's call for a workspace: run as a program, no GPU needed.

Only the two workspace classes are stood in for, since their constructors need a GPU and, for
mnnvl, multicast. FlashInfer's own `create_allreduce_fusion_workspace` runs as it is.
"""

from __future__ import annotations

import json

import flashinfer
import flashinfer.comm.allreduce as allreduce
import torch
import vllm.distributed.device_communicators.flashinfer_all_reduce as fi


def recorder(name: str, made: list[str]) -> type:
    class Recorder:
        mc_ptr = 1

        def __init__(self, **options: object) -> None:
            made.append(name)

    return Recorder


def main() -> None:
    made: list[str] = []
    for name in ("TRTLLMAllReduceFusionWorkspace", "MNNVLAllReduceFusionWorkspace"):
        setattr(allreduce, name, recorder(name, made))
    available = fi.fi_ar_available
    fi.TorchDistBackend = lambda group: group
    for backend in ("trtllm", "mnnvl"):
        # World size, rank, tokens, hidden size, type, group.
        assert fi._create_workspace(backend, 2, 0, 16, 64, torch.bfloat16, object()), backend
    print(json.dumps({"version": flashinfer.__version__, "available": available, "made": made}))


if __name__ == "__main__":
    main()
