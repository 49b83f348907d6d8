"""Whether the ranks of a server, and of each process group in it, say the same."""

from __future__ import annotations

from collections import defaultdict

from hisparse_guard.cli.report.exit_codes import Finding
from hisparse_guard.cli.report.model import NONE, Group, Process, Standing
from hisparse_guard.cli.report.ranks import ranks
from hisparse_guard.cli.report.servers import MOST_RANKS, Server
from hisparse_guard.cli.report.worker_verdict import serves
from hisparse_guard.runtime.state import ENV_BACKEND

# Variables by which ranks that have different ones go different ways.
_DECIDING = (ENV_BACKEND, "VLLM_ALLREDUCE_USE_FLASHINFER")


def differing(server: Server) -> list[Finding]:
    """Ranks that differ: in HiSparse, in what serves a group, in what was decided for it."""
    found: list[Finding] = []
    seen = [process for process in server.workers if process.hisparse]
    off = [process for process in server.workers if process.hisparse is False]
    if seen and off:
        found.append(
            ("disagreement", f"HiSparse was seen by {ranks(seen)}, and off in {ranks(off)}")
        )
    for name in _DECIDING:
        chosen: dict[str, list[Process]] = defaultdict(list)
        for process in server.workers:
            chosen[process.environment.get(name, "not set")].append(process)
        if len(chosen) > 1:
            said = "; ".join(f"{ranks(who)}: {value}" for value, who in chosen.items())
            found.append(("unproven", f"{name} differs: {said}"))
    groups: dict[tuple[object, ...], list[tuple[Process, Group, Standing]]] = defaultdict(list)
    for process in server.workers:
        for group, standing in process.groups.items():
            groups[_group_key(process, group)].append((process, group, standing))
    for members in groups.values():
        found += _group_members(members)
        found += _group_differs(members)
    return found


def _group_key(process: Process, group: Group) -> tuple[object, ...]:
    """What the ranks of one group have in common: torch's name for it, else its number.

    vLLM numbers tensor parallel groups contiguously.
    """
    if group.name is not None:
        return ("name", group.name)
    if process.rank is None or not group.size or group.rank is None:
        return ("unknown",)
    if process.rank % group.size != group.rank:
        return ("unknown",)
    return ("number", group.size, process.rank // group.size)


def _group_members(members: list[tuple[Process, Group, Standing]]) -> list[Finding]:
    if all(group == (None, None, None) for _, group, _ in members):
        return []
    sizes = {group.size for _, group, _ in members}
    have = sorted(group.rank if group.rank is not None else -1 for _, group, _ in members)
    size = max(size or 0 for size in sizes)
    if len(sizes) == 1 and have == list(range(min(size, MOST_RANKS))):
        return []
    who = ranks([process for process, _, _ in members])
    return [("unproven", f"{who}: not all {size} ranks of the process group are here, once each")]


def _group_differs(members: list[tuple[Process, Group, Standing]]) -> list[Finding]:
    by_backend: dict[str, list[Process]] = defaultdict(list)
    for process, _, standing in members:
        what = serves(process, standing)
        if what is None and standing.present:
            what = standing.backend
        if what is not None:
            by_backend[what].append(process)
    names = {NONE: "no FlashInfer all-reduce", "failed": "workspace failed"}
    if len(by_backend) > 1:
        said = "; ".join(f"{ranks(who)}: {names.get(b, b)}" for b, who in by_backend.items())
        return [("disagreement", f"backends differ: {said}")]
    by_decision: dict[tuple[str | None, ...], list[Process]] = defaultdict(list)
    for process, _, standing in members:
        if standing.used and None not in standing.used:
            by_decision[tuple(sorted(standing.used, key=str))].append(process)
    decided = list(by_decision)
    if any(not set(one) & set(other) for one in decided for other in decided):
        said = "; ".join(
            f"{ranks(who)}: {' and '.join(map(str, used))}" for used, who in by_decision.items()
        )
        return [("disagreement", f"decisions differ: {said}")]
    failed = [process for process, _, _ in members if process.quant_failed]
    if failed and len(failed) < len(members):
        return [("disagreement", f"{ranks(failed)}: quant workspace failed, and not in the others")]
    return []
