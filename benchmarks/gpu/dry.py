"""``--dry``: no GPU, a gloo all-reduce in the place of the kernels. It checks the script."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from benchmarks.gpu.names import EAGER_FUSED, FUSED, GEMMA


class Workspace:
    """What FlashInfer would have made."""

    mc_ptr = 1

    def __init__(self, backend):
        self.backend = backend

    def destroy(self):
        pass

    def is_buffer_size_sufficient(self, **_):
        return True


def stand_in(rank):
    """Puts a gloo all-reduce in the place of the kernels, and a CPU in that of the GPU."""
    fi, dist = rank.fi, rank.dist
    capability = SimpleNamespace(to_int=lambda: 90, major=9, minor=0)
    platform = SimpleNamespace(
        is_cuda=lambda: True,
        get_device_capability=lambda *a, **k: capability,
        has_device_capability=lambda *a, **k: True,
    )
    from vllm.config.compilation import PassConfig

    fi.current_platform = sys.modules[FUSED].current_platform = platform
    PassConfig.default_fi_allreduce_fusion_max_size_mb = staticmethod(lambda: {rank.size: 64})
    fi.TorchDistBackend = lambda group: SimpleNamespace(group=group)

    def all_reduce(*, input, workspace, pattern, **rest):
        total = input.double()
        dist.all_reduce(total, group=rank.tp.cpu_group)
        if pattern == fi.flashinfer_comm.AllReduceFusionPattern.kAllReduce:
            return total.to(input.dtype)
        residual, normed = rank._norm(total, rest["residual_in"], rest["rms_gamma"], 1e-6)
        rest["residual_out"].copy_(residual)
        rest["norm_out"].copy_(normed)
        return rest["norm_out"]

    fi.flashinfer_comm.allreduce_fusion = all_reduce
    gemma = sys.modules[GEMMA]
    real = gemma._can_use_flashinfer
    meta = lambda x: SimpleNamespace(  # noqa: E731
        is_cuda=True,
        dim=x.dim,
        is_contiguous=x.is_contiguous,
        dtype=x.dtype,
        shape=x.shape,
    )
    eager = sys.modules[EAGER_FUSED]
    eager._can_use_flashinfer = lambda x, size: real(meta(x), size)
    eager.flashinfer_trtllm_fused_allreduce_norm = sys.modules[
        FUSED
    ].call_trtllm_fused_allreduce_norm
