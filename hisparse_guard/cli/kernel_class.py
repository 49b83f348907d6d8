"""What FlashInfer's kernel class means to an operator: for every command that shows one."""

from __future__ import annotations

MEANING: dict[str, str] = {
    "waits": "FlashInfer's mnnvl all-reduce kernel waits for all blocks of a cluster before it "
    "writes into their shared memory: the known race is not in it. That this is the upstream fix "
    "is likely and not confirmed; the guard's rule holds until vLLM drops its own",
    "races": "FlashInfer's mnnvl all-reduce kernel writes into the shared memory of blocks that "
    "may not run yet: only one warp of a cluster waits (FlashInfer 0.6.13 to 0.7.2.post1). No "
    "driver and no change of load cures that; FlashInfer from 0.7.4 on waits",
    "unknown": "FlashInfer's mnnvl all-reduce kernel could not be classified: its source is not "
    "there, is of another shape, or only a compiled copy is used",
}


def meaning(kernel_class: str | None) -> str | None:
    """None where no kernel class was recorded (older guards)."""
    return None if kernel_class is None else MEANING.get(kernel_class, MEANING["unknown"])
