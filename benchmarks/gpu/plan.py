"""What a run will do and what it cannot show, said before it starts and kept with its result."""

from __future__ import annotations

from pathlib import Path

from benchmarks.gpu.machine import Machine

# What a run shows, by its mode: "dry" without a GPU, "one" with two ranks on one GPU, "two".
NOT_SHOWN = {
    "dry": (
        "anything about FlashInfer's kernels: gloo stands in for them",
        "times",
    ),
    "one": (
        "memory of a peer GPU, NVLink: both ranks use the memory of one GPU",
        "NCCL: it refuses two ranks on one GPU; gloo's sum in float64 is the reference",
        "times of the kernels, eager or replayed: the two ranks take turns on the GPU; only the "
        "Python of an eager all-reduce is timed",
    ),
    "two": ("that vLLM's own mnnvl choice crashes: it is stopped before a workspace is made",),
}
DOES = {
    "dry": "two ranks on the CPU, gloo in the place of the kernels; it checks this script",
    "one": "two ranks share the one GPU, which serves them in turns; gloo carries what NCCL would",
    "two": "two ranks, each with a GPU of its own, NCCL",
}


def mode(gpus: int, dry: bool) -> str:
    """How far `gpus` GPUs go.

    Raises:
        ValueError: There is none; one line that says what to do.
    """
    if dry:
        return "dry"
    if gpus == 0:
        raise ValueError(
            "0 NVIDIA GPUs here: this needs two, or one for a part of it; --dry runs without any, "
            "and checks this script only"
        )
    return "two" if gpus > 1 else "one"


def intent(
    found: str, machine: Machine, fetches: str, out: Path, results: Path, limit: float
) -> list[str]:
    """What will be done, one line each; `limit` in seconds, for all.

    Args:
        fetches: what comes from the network first; empty for nothing.
    """
    names = ", ".join(machine.gpus) or "none"
    said = [
        f"GPUs: {len(machine.gpus)} ({names}); driver {machine.driver or 'not found'}",
        f"Runs: {DOES[found]}",
    ]
    if fetches:
        said.append(f"Fetches first: {fetches}")
    if found != "dry":
        compiler = machine.nvcc or "no nvcc found: without it only kernels kept before are used"
        said += [
            f"Compiles: FlashInfer's trtllm_comm for this GPU, once a release ({compiler}); about "
            "5 minutes and 12 MB each",
            f"Keeps them in: {machine.kernels}/.cache/flashinfer",
        ]
    said += [
        f"Takes: about 10 minutes a release with kernels kept, at most {limit / 60:.0f} in all",
        "Never makes an mnnvl workspace or an NVLink multicast object: each rank replaces the "
        "ways to one by functions that raise, and checks that they do, before its first CUDA call",
        f"Writes: logs and evidence in {out}; figures and table in {results}",
        *(f"Does not show: {what}" for what in NOT_SHOWN[found]),
    ]
    return said


def packages(machine: Machine) -> str:
    """The releases that one run imports."""
    return ", ".join(f"{name} {found or 'MISSING'}" for name, found in machine.versions().items())
