"""Names that the parent and its ranks share."""

from __future__ import annotations

BACKEND = "VLLM_FLASHINFER_ALLREDUCE_BACKEND"
# Left as they are found, and checked to be.
MULTICAST = ("NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS")
# Where FlashInfer keeps what it compiles: in `.cache/flashinfer` of this folder.
KERNELS = "FLASHINFER_WORKSPACE_BASE"
FI = "vllm.distributed.device_communicators.flashinfer_all_reduce"
FUSED = "vllm.compilation.passes.fusion.allreduce_rms_fusion"
EAGER_FUSED = "vllm.models.common.ops.fused_allreduce_rms_norm"
GEMMA = "vllm.model_executor.layers.fused_allreduce_gemma_rms_norm"
REPLY = "\x1dREPLY "
TOKENS = (1, 2, 8, 16, 17, 64, 256, 1024, 2048)
# Largest ||out - reference|| / ||reference|| against a sum in float64. One rounding of the result
# alone is 2**-9 in bfloat16, 2**-12 in float16 and 2**-25 in float32, at most.
LIMITS = {"bfloat16": 4e-3, "float16": 5e-4, "float32": 1e-6}
# The norm multiplies the rounding of the sum: three roundings at most.
FUSED_LIMITS = {"bfloat16": 1e-2, "float16": 1.5e-3}
