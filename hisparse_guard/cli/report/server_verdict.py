"""The verdict on a server: pure, by an allow-list.

What is not shown to be safe is not safe; what shows it is in docs/evidence.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from hisparse_guard.cli.report.exit_codes import Finding, Verdict, severity, worst
from hisparse_guard.cli.report.group_verdict import differing
from hisparse_guard.cli.report.model import Process
from hisparse_guard.cli.report.problems import Problem
from hisparse_guard.cli.report.ranks import named, ranks
from hisparse_guard.cli.report.servers import MOST_RANKS, Server
from hisparse_guard.cli.report.worker_verdict import judge_process, one_rank
from hisparse_guard.runtime.state import ENV_BACKEND

_MOST_DOUBTS = 20


@dataclass(slots=True)
class Judgement:
    """A server's verdict, what it rests on (the worst first), and that on each of its workers."""

    verdict: Verdict
    reasons: list[str]
    advice: str | None
    workers: list[Verdict] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)


def judge_server(server: Server, problems: Sequence[Problem]) -> Judgement:
    """The verdict on one server run.

    Args:
        problems: reading problems that belong to no process.
    """
    hisparse = server.hisparse
    by_worker = [judge_process(process, hisparse) for process in server.workers]
    found: list[Finding] = []
    grouped: dict[Finding, list[Process]] = defaultdict(list)
    for process, findings in zip(server.workers, by_worker, strict=True):
        for finding in findings:
            grouped[finding].append(process)
    found += [(verdict, f"{ranks(who)}: {what}") for (verdict, what), who in grouped.items() if who]
    if not server.workers:
        found += _without_workers(server)
    if hisparse is not False:
        found += differing(server)
    found += _incomplete(server)
    found += _doubts(server, problems)
    found.sort(key=lambda one: severity(one[0]))
    verdict = found[0][0]
    return Judgement(
        verdict,
        list(dict.fromkeys(what for _, what in found)),
        _advice(verdict, server),
        [worst(verdict for verdict, _ in findings) for findings in by_worker],
        server.missing,
    )


def _without_workers(server: Server) -> list[Finding]:
    if server.hisparse is None:
        return [("unproven", f"{ranks(server.others)}: no config was seen")]
    if server.hisparse is False:
        return [("not HiSparse", "every config that was seen had HiSparse off")]
    if all(one_rank(process) for process in server.others):
        return [("safe", "tensor parallel size 1: there is no all-reduce")]
    count = len(server.others)
    return [
        (
            "unproven",
            f"HiSparse was seen by {count} process{'es' if count > 1 else ''}, and no worker "
            "decided on a backend yet",
        )
    ]


def _incomplete(server: Server) -> list[Finding]:
    """Whether the workers are the ranks of the world, each once."""
    if not server.workers:
        return []
    world = server.world_size
    if world is None or world < 1:
        return [("unproven", "the size of the world is not known")]
    found: list[Finding] = []
    have = Counter(process.rank for process in server.workers)
    odd = [p for p in server.workers if p.rank is None or not 0 <= p.rank < world]
    odd += [p for p in server.workers if p.rank is not None and have[p.rank] > 1]
    if odd:
        found.append(("unproven", f"{ranks(odd)}: not a rank of 0 to {world - 1}, or there twice"))
    # One whose size is not known has two ranks at least, else there is no all-reduce.
    sizes = {group.size or 2 for p in server.workers for group in p.groups}
    sizes.update(size or 0 for p in server.processes for size in p.tensor_parallel_sizes)
    largest = max(sizes, default=0)
    if largest > world:
        found.append(("unproven", f"a process group of {largest} ranks in a world of {world}"))
    replicas = max((p.largest_config for p in server.workers), default=0)
    if replicas > world:
        what = f"its config is for {replicas} ranks (tensor times data parallel size), and its "
        found.append(("unproven", f"{what}world has {world}"))
    if server.short_of is not None:
        wanted, reported = server.short_of
        what = (
            f"its launcher's config is for {wanted} ranks (tensor times data parallel size), and "
        )
        found.append(("unproven", f"{what}{reported} are in the worlds that are here"))
    if server.idle:
        what = (
            "saw HiSparse and started none of the workers that are here; workers that it started "
            "elsewhere may be unguarded"
        )
        found.append(("unproven", f"{ranks(server.idle)}: {what}"))
    models = sorted({process.model for process in server.workers if process.model})
    if len(models) > 1:
        found.append(("unproven", f"its ranks serve different models: {', '.join(models)}"))
    missing = server.missing
    if missing:
        what = (
            f"{min(world, MOST_RANKS) - len(missing)} of {world} ranks reported; no evidence from "
        )
        what += named(missing)
        if all(process.mode == "observe" for process in server.workers):
            what += " (mode observe changes no decision, so this cannot hang; nothing is proven)"
        # A process whose rank is not right may be the one that is missing; and without an
        # all-reduce (data parallelism alone) no rank waits for another, nor says where they met.
        shown = server.hisparse is not False and len(missing) > len(odd)
        shown = shown and not all(one_rank(process) for process in server.workers)
        found.append(("partly guarded" if shown else "unproven", what))
    return found


def _doubts(server: Server, problems: Sequence[Problem]) -> list[Finding]:
    """What caps the verdict: problems of reading, and errors of the guard."""
    said: dict[str, list[Process]] = defaultdict(list)
    for process in server.processes:
        for doubt in process.doubts:
            said[doubt].append(process)
        for error in process.errors:
            said[f"error: {error}"].append(process)
    found: list[Finding] = [("unproven", f"{ranks(who)}: {what}") for what, who in said.items()]
    hosts = set(server.hosts)
    found += [
        ("unproven", f"{problem}: it may belong to this server")
        for problem in problems
        if problem.host is None or problem.host in hosts
    ]
    if len(found) > _MOST_DOUBTS:
        more = len(found) - _MOST_DOUBTS
        found = [*found[:_MOST_DOUBTS], ("unproven", f"and {more} more (--json has all)")]
    return found


def _advice(verdict: Verdict, server: Server) -> str | None:
    workers = server.workers
    if verdict == "unsafe":
        if any(ENV_BACKEND in p.environment for p in workers):
            return f"unset {ENV_BACKEND} on all ranks, and restart"
        if any(process.mode == "observe" for process in workers):
            return "set HISPARSE_GUARD_MODE=enforce on all ranks, and restart"
        if any(process.rule == "multinode" for process in workers):
            return "unset HISPARSE_GUARD_MULTINODE=keep on all ranks, and restart"
        return "look at the errors of these ranks, and stop the server: it will crash under load"
    if verdict == "disagreement":
        return "give all ranks the same image, guard and settings, and restart"
    if verdict == "partly guarded":
        return (
            "give all ranks the guard, or none, and all evidence folders to this command "
            "(a node's folder may be missing here, or clocks of nodes differ)"
        )
    if verdict == "failed":
        return (
            "run `hisparse-guard doctor` in the image: it tells whether the trtllm kernel is there"
        )
    if verdict != "unproven":
        return None
    if any(process.doubts or process.errors for process in server.processes):
        return "resolve what is said above of the evidence and the errors, then run `report` again"
    if any(process.mode == "strict" for process in workers):
        return f"unset {ENV_BACKEND} and HISPARSE_GUARD_MULTINODE, and restart"
    if len({process.environment.get(ENV_BACKEND) for process in workers}) > 1:
        return f"set {ENV_BACKEND} on all ranks alike, or on none, and restart"
    if server.hisparse is None:
        return "look for the whole evidence of these processes, or start the server and look again"
    return "the workspace is made by warm-up or the first request: send one, and look again"
