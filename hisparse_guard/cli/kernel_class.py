"""What FlashInfer's kernel class means to an operator: for every command that shows one."""

from __future__ import annotations

RACES = (
    "in FlashInfer's mnnvl one-shot all-reduce + residual + RMSNorm kernel "
    "(trtllm_mnnvl_allreduce.cuh) only one warp of a cluster waits before blocks write into each "
    "other's shared memory; a driver or a change of load cannot cure that, it only shifts the "
    "timing; from FlashInfer 0.7.4 on the cluster waits, which is likely the upstream fix (not "
    "confirmed)"
)
WAITS = (
    "the mnnvl kernel's clusters wait before blocks write into each other's shared memory, so the "
    "reason for the guard is likely gone in this image; likely, since it is not confirmed that "
    "this is the upstream fix. The guard's rule holds all the same, as vLLM keeps its own"
)
UNKNOWN = (
    "FlashInfer's source is not there, is of another shape, or only a compiled copy is used; "
    "`hisparse-guard doctor` in the image says which"
)


def meaning(kernel_class: str) -> str:
    """What a recorded class means; one that this version does not know is unknown."""
    return {"races": RACES, "waits": WAITS}.get(kernel_class, UNKNOWN)
