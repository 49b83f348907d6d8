"""What holds for a run that no single line says: `catalogue.DERIVED`, filled in."""

from __future__ import annotations

from collections.abc import Callable, Set

from hisparse_guard.cli.triage.server_run import Run
from hisparse_guard.cli.triage.standstill import STANDS_SECONDS, seconds

_WAITS = {"rpc_timeout", "nccl_timeout", "gloo_timeout", "gloo_peer_closed"}
# Fatal, and no crash by themselves: they follow from one, or from a time-out.
_FOLLOW = _WAITS | {
    "engine_fatal", "worker_died", "server_error", "engine_died", "start_failed", "process_exit",
    "stack_dump", "leaked_at_exit", "shutdown_forced", "parent_gone", "probe_failed",
    "kv_transfer_failed", "input_dumped",
}  # fmt: skip
_CUDA = ("launch_failure", "illegal_access", "cuda_error", "misaligned_address")
# Tokens this long after an error are from a server that went on.
_SERVED_ON_SECONDS = 30


def present(
    run: Run, symptoms: Set[str] = frozenset(), vouched: Set[str] = frozenset()
) -> set[str]:
    """All signals that hold for this run, derived ones among them.

    Args:
        symptoms: what the operator saw: "garbled", "slow", "hang".
        vouched: signals that the guard's evidence vouches for.
    """
    names = {*run.seen, *vouched}
    names |= {f"symptom_{symptom}" for symptom in symptoms}
    names |= {name for name, holds in _BY_RUN.items() if holds(run)}
    names |= _workspaces(run, vouched)
    if names & {"hisparse_metrics", "hisparse_connector_created", "hisparse_frame"}:
        names.add("hisparse_on")
    if any("HiSparse" in name for name in run.facts.connectors) or run.facts.value(
        "hisparse_config"
    ):
        names.add("hisparse_on")
    for name, signal, prefix in (
        ("nixl", "nixl_frame", "Nixl"),
        ("offloading", "offloading_frame", "OffloadingConnector"),
    ):
        if signal in names or any(key.startswith(prefix) for key in run.facts.connectors):
            names.add(name)
    if names & _WAITS or stands_still(run) or (run.wait_in_startup and not run.up):
        names.add("hang")
    if stands_still(run):
        names.add("stands_still")
    if names & (run.catalogue.fatal - _FOLLOW):
        names.add("crash")
    return names


def _served(run: Run) -> bool:
    trouble = run.first_trouble()
    if run.answered is None:
        return False
    return trouble is None or run.answered.order < trouble.place.order


def _in_startup(run: Run) -> bool:
    trouble = run.first_trouble()
    if trouble is None:
        return run.wait_in_startup is not None and not run.up
    begun = min(
        (place.order for place in (run.came_up, run.answered) if place is not None),
        default=None,
    )
    if begun is None:
        return not run.engines
    return trouble.place.order < begun


def _served_on(run: Run) -> bool:
    """Tokens again, well after a CUDA error: a dead CUDA context makes none."""
    errors = [run.seen[name].places[0] for name in _CUDA if name in run.seen]
    if not errors:
        return False
    error = min(errors, key=lambda place: place.order)
    begin = seconds(error.time)
    for engine in run.engines.values():
        if engine.moved is not None and engine.moved.order > error.order:
            end = seconds(engine.moved.time)
            if begin is not None and end is not None and end - begin >= _SERVED_ON_SECONDS:
                return True
    return False


def _hardware_before(run: Run) -> bool:
    xid = run.seen.get("hardware_xid")
    if xid is None:
        return False
    errors = [run.seen[name].places[0].order for name in _CUDA if name in run.seen]
    return not errors or xid.places[0].order < min(errors)


def _launch_blocking(run: Run) -> bool:
    return (run.facts.value("launch_blocking") or "0") not in ("0", "None", "False", "false")


def _start_ends(run: Run) -> bool:
    return bool(run.markers) and bool(run.troubles) and not run.up


def _engine_raised(run: Run) -> bool:
    return any("engine_fatal" in one.signals and one.frame for one in run.troubles)


def shutdown_stuck(run: Run) -> bool:
    """True where it was told to stop, no end is shown, and it waited or went on for long."""
    told = run.shutdown
    if told is None or run.shutdown_done is not None:
        return False
    if any(one.current and one.current.until.order > told.order for one in run.engines.values()):
        return True
    moved = [one.moved for one in run.engines.values() if one.moved]
    if any(place.order > told.order for place in moved):
        # Requests in flight are served to their end.
        return False
    for length, time in run.told_at.items():
        begin, end = seconds(time), seconds(run.times.get(length))
        if begin is not None and end is not None and end - begin >= STANDS_SECONDS:
            return True
    return False


_BY_RUN: dict[str, Callable[[Run], bool]] = {
    "served": _served,
    "in_startup": _in_startup,
    "start_ends": _start_ends,
    "engine_raised": _engine_raised,
    "waited_then_served": lambda run: run.wait_in_startup is not None and run.up,
    "guard_part": lambda run: bool(run.unguarded_ranks()),
    "served_on": _served_on,
    "hardware_before": _hardware_before,
    "shutdown_stuck": shutdown_stuck,
    "slow_decode": lambda run: run.slow_lines >= 3,
    "corrupted": lambda run: run.corrupted is not None,
    "trtllm_asked": lambda run: run.facts.value("allreduce_backend_env") == "trtllm",
    "launch_blocking": _launch_blocking,
    "multi_node": lambda run: run.over_nodes,
}


def _workspaces(run: Run, vouched: Set[str]) -> set[str]:
    """Which workspace was in force when the first trouble came."""
    trouble = run.first_trouble()
    end = trouble.place.order if trouble else None

    def orders(*names: str) -> list[int]:
        found = [place for name in names if name in run.seen for place in run.seen[name].places]
        return [place.order for place in found if end is None or place.order < end]

    mnnvl = orders("workspace_mnnvl", "guard_says_mnnvl")
    trtllm = orders("workspace_trtllm", "guard_verified_trtllm")
    if not mnnvl and not trtllm:
        mnnvl = [0] if "workspace_mnnvl" in vouched else []
        trtllm = [0] if "guard_verified_trtllm" in vouched else []
    if mnnvl and trtllm:
        return {"trtllm_in_force"} if min(trtllm) > max(mnnvl) else {"workspaces_mixed"}
    return {"mnnvl_in_force"} if mnnvl else {"trtllm_in_force"} if trtllm else set()


def stands_still(run: Run) -> bool:
    """True where an engine of a server that was up stood still to the end of the log."""
    if run.shutdown is not None:
        return False
    return any(one.current and one.current.stands for one in run.engines.values()) or _stopped(run)


def _stopped(run: Run) -> bool:
    """True where requests ran, and the statistics came to an end long before the log."""
    stats = run.last_stats()
    if stats is None or not stats.running or run.troubles:
        return False
    time = stats.place.time or ""
    begin, end = seconds(time), seconds(run.times.get(len(time)))
    return begin is not None and end is not None and end - begin >= 180
