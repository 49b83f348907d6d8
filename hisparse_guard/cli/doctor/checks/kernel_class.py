"""FlashInfer's mnnvl kernel: whether it races."""

from __future__ import annotations

from collections.abc import Iterator

from hisparse_guard.cli.doctor.model import Facts, Finding

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


def kernel_class(facts: Facts) -> Iterator[Finding]:
    kernel = facts.kernel
    if kernel is None or not facts.concerned:
        return
    if kernel.label == "races":
        yield Finding("note", "kernel class", f"races: {kernel.reason}: {RACES}")
    elif kernel.label == "waits":
        yield Finding("note", "kernel class", f"waits: {kernel.reason}: {WAITS}")
    else:
        hint = ""
        if kernel.suggestion:
            hint = f"; that package's version suggests '{kernel.suggestion}', which is no proof"
        yield Finding("note", "kernel class", f"unknown: {kernel.reason}{hint}")
