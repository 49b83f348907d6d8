"""The deployment checklist of the host-mirror report: what is as there, and what differs."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from hisparse_guard.cli.triage.model import Place
from hisparse_guard.cli.triage.server_run import Run

OK, DIFFERS, UNKNOWN = "ok", "differs", "unknown"


@dataclass(frozen=True)
class Item:
    """One point of the checklist.

    Attributes:
        state: "ok", "differs" or "unknown".
        found: what this log says, or None.
        place: the line that the answer rests on, or None.
    """

    name: str
    expected: str
    state: str
    found: str | None = None
    place: Place | None = None


def checklist(run: Run, present: Set[str]) -> list[Item]:
    """Every point, in a fixed order, for one run of a server."""
    return [
        _yes("HiSparse in use", "yes", "hisparse_on" in present),
        _workspace(present),
        _split(run, present),
        _fact(run, "host_pool_gib", "host_pool_gib", "128", {"128", "128.0"}),
        _fact(run, "block_size", "block size", "64 (128 hits another fault)", {"64"}),
        _fact(run, "nccl_net_plugin", "NCCL_NET_PLUGIN", "none, on both engines", {"none"}),
        _graphs(run),
        _fact(run, "launch_blocking", "CUDA_LAUNCH_BLOCKING", "off", {"0", "none"}),
        _guarded(run),
    ]


def _yes(name: str, expected: str, holds: bool) -> Item:
    return Item(name, expected, OK, "yes") if holds else Item(name, expected, UNKNOWN)


def _fact(run: Run, fact: str, name: str, expected: str, wanted: set[str]) -> Item:
    found = run.facts.values.get(fact)
    if found is None:
        return Item(name, expected, UNKNOWN)
    state = OK if found.value.lower() in wanted else DIFFERS
    return Item(name, expected, state, found.value, found.place)


def _workspace(present: Set[str]) -> Item:
    name = "all-reduce workspace"
    if "trtllm_in_force" in present:
        return Item(name, "trtllm", OK, "trtllm")
    for signal, found in (
        ("mnnvl_in_force", "mnnvl"),
        ("workspaces_mixed", "mnnvl and trtllm"),
        ("workspace_failed", "none could be made"),
    ):
        if signal in present:
            return Item(name, "trtllm", DIFFERS, found)
    return Item(name, "trtllm", UNKNOWN)


def _split(run: Run, present: Set[str]) -> Item:
    name = "prefill/decode split by NIXL"
    wanted = "MultiConnector of NixlConnector and HiSparseConnector"
    connectors = ", ".join(run.facts.connectors)
    if "nixl" in present:
        return Item(name, wanted, OK, connectors or "NIXL")
    return Item(name, wanted, DIFFERS, connectors) if connectors else Item(name, wanted, UNKNOWN)


def _graphs(run: Run) -> Item:
    eager, mode = run.facts.value("enforce_eager"), run.facts.value("cudagraph_mode")
    if eager and eager.lower() in ("true", "--enforce-eager"):
        return Item("CUDA graphs", "on", DIFFERS, "off (eager)")
    if mode:
        return Item("CUDA graphs", "on", DIFFERS if mode == "NONE" else OK, mode)
    if "graph_replay" in run.seen:
        return Item("CUDA graphs", "on", OK, "FULL graph replayed")
    return Item("CUDA graphs", "on", OK if eager else UNKNOWN, "not eager" if eager else None)


def _guarded(run: Run) -> Item:
    name = "guard on every rank, or on none"
    if not run.guard_ranks:
        return Item(name, "all", UNKNOWN)
    missing = run.unguarded_ranks()
    if missing:
        return Item(name, "all", DIFFERS, f"not on {', '.join(missing[:32])}")
    return Item(name, "all", OK, f"on {', '.join([*run.guard_ranks][:32])}")
