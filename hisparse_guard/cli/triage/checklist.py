"""The deployment checklist of the host-mirror report: what is as there, and what differs."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from hisparse_guard.cli.triage.life import Life
from hisparse_guard.cli.triage.lines import Line

OK, DIFFERS, UNKNOWN = "ok", "differs", "unknown"


@dataclass(frozen=True)
class Item:
    """One point of the checklist.

    Attributes:
        name: what is asked.
        expected: as in the report.
        state: "ok", "differs" or "unknown".
        found: what this log says, or None.
        line: the line that the answer rests on, or None.
    """

    name: str
    expected: str
    state: str
    found: str | None = None
    line: Line | None = None


def _fact(life: Life, name: str, title: str, expected: str, wanted: set[str]) -> Item:
    fact = life.facts.get(name)
    if fact is None:
        return Item(title, expected, UNKNOWN)
    return Item(
        title, expected, OK if fact.value.lower() in wanted else DIFFERS, fact.value, fact.line
    )


def _seen(life: Life, name: str) -> Line | None:
    seen = life.seen.get(name)
    return seen.lines[0] if seen and seen.lines else None


def checklist(life: Life, known: Set[str] = frozenset()) -> list[Item]:
    """Every point, in a fixed order, for one life of a server.

    Args:
        known: signals that the guard's evidence vouches for.
    """
    items: list[Item] = []
    present = life.present() | known
    connectors = life.connectors

    line = _seen(life, "hisparse") or next(
        (at for name, at in connectors.items() if "HiSparse" in name), None
    )
    if line or "hisparse" in known:
        items.append(Item("HiSparse in use", "yes", OK, "yes", line))
    else:
        items.append(Item("HiSparse in use", "yes", UNKNOWN))

    backend = "all-reduce workspace"
    mnnvl, trtllm = _seen(life, "workspace_mnnvl"), _seen(life, "workspace_trtllm")
    verified = _seen(life, "guard_verified_trtllm")
    if mnnvl:
        items.append(Item(backend, "trtllm", DIFFERS, "mnnvl", mnnvl))
    elif trtllm or verified:
        items.append(Item(backend, "trtllm", OK, "trtllm", trtllm or verified))
    elif "workspace_mnnvl" in known:
        items.append(Item(backend, "trtllm", DIFFERS, "mnnvl, by the guard's evidence"))
    elif "guard_verified_trtllm" in known:
        items.append(Item(backend, "trtllm", OK, "trtllm, by the guard's evidence"))
    elif failed := _seen(life, "workspace_failed"):
        items.append(Item(backend, "trtllm", DIFFERS, "none could be made", failed))
    else:
        items.append(Item(backend, "trtllm", UNKNOWN))

    split = "prefill/decode split by NIXL"
    wanted = "MultiConnector of NixlConnector and HiSparseConnector"
    nixl = next((at for name, at in connectors.items() if name.startswith("Nixl")), None)
    if nixl is None and "nixl" in present:
        nixl = _seen(life, "nixl")
    if nixl:
        items.append(Item(split, wanted, OK, ", ".join(connectors) or "NIXL", nixl))
    elif connectors:
        at = next(iter(connectors.values()))
        items.append(Item(split, wanted, DIFFERS, ", ".join(connectors), at))
    else:
        items.append(Item(split, wanted, UNKNOWN))

    pool = life.facts.get("host_pool_gib")
    if pool is None:
        items.append(Item("host_pool_gib", "128", UNKNOWN))
    else:
        try:
            same = float(pool.value) == 128
        except ValueError:
            same = False
        items.append(Item("host_pool_gib", "128", OK if same else DIFFERS, pool.value, pool.line))

    items.append(_fact(life, "block_size", "block size", "64 (128 hits another fault)", {"64"}))
    items.append(
        _fact(life, "nccl_net_plugin", "NCCL_NET_PLUGIN", "none, on both engines", {"none"})
    )

    eager, mode = life.facts.get("enforce_eager"), life.facts.get("cudagraph_mode")
    graphs = "CUDA graphs"
    if eager and eager.value.lower() in ("true", "--enforce-eager"):
        items.append(Item(graphs, "on", DIFFERS, "off (eager)", eager.line))
    elif mode:
        state = DIFFERS if mode.value == "NONE" else OK
        items.append(Item(graphs, "on", state, mode.value, mode.line))
    elif eager:
        items.append(Item(graphs, "on", OK, "not eager", eager.line))
    elif replay := _seen(life, "graph_replay"):
        items.append(Item(graphs, "on", OK, "FULL graph replayed", replay))
    else:
        items.append(Item(graphs, "on", UNKNOWN))

    blocking = life.facts.get("launch_blocking")
    title, expected = "CUDA_LAUNCH_BLOCKING", "off, but for finding the call that faults"
    if blocking is None:
        items.append(Item(title, expected, UNKNOWN))
    else:
        on = blocking.value not in ("0", "None", "")
        items.append(Item(title, expected, DIFFERS if on else OK, blocking.value, blocking.line))

    guarded = "guard on every rank, or on none"
    if life.guard_ranks:
        missing = life.unguarded_ranks()
        at = next(iter(life.guard_ranks.values()))
        if missing:
            items.append(Item(guarded, "all", DIFFERS, f"not on {', '.join(missing)}", at))
        else:
            items.append(Item(guarded, "all", OK, f"on {', '.join(life.guard_ranks)}", at))
    else:
        items.append(Item(guarded, "all", UNKNOWN))
    return items
