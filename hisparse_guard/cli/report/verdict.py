"""The verdict: pure, by an allow-list. What is not shown to be safe is not safe; what shows it is
in docs/evidence.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hisparse_guard.cli.report.model import NONE, TRTLLM, Group, Process, Standing
from hisparse_guard.cli.report.problems import Problem
from hisparse_guard.cli.report.servers import MOST_RANKS, Server

Verdict = Literal[
    "unsafe",
    "disagreement",
    "partly guarded",
    "failed",
    "unproven",
    "safe",
    "not HiSparse",
    "no evidence",
]
Finding = tuple[Verdict, str]

# Worst first. `failed` shares its exit code with `unproven`: no mnnvl workspace serves, so the
# server is not unsafe, but what was to be proven is not there either.
EXIT_CODES: dict[Verdict, int] = {
    "unsafe": 1,
    "disagreement": 1,
    "partly guarded": 1,
    "failed": 4,
    "unproven": 4,
    "safe": 0,
    "not HiSparse": 0,
    "no evidence": 3,
}
# 0 for the worst.
severity = tuple(EXIT_CODES).index

MEANING: dict[Verdict, str] = {
    "unsafe": "a workspace other than trtllm was made under HiSparse: this is the fault",
    "disagreement": "ranks of one server decided differently: this hangs or crashes",
    "partly guarded": "fewer ranks reported than the server has: this hangs or crashes, or "
    "evidence is missing here",
    "failed": "no FlashInfer all-reduce workspace could be made",
    "unproven": "not shown to be safe: a proof is missing, or evidence could not be read whole",
    "safe": "every rank is shown to have a trtllm workspace, or no FlashInfer all-reduce",
    "not HiSparse": "HiSparse is shown to be off: the guard changes nothing",
    "no evidence": "no evidence lines were found",
}

_MOST_NAMED = 3
_MOST_DOUBTS = 20


@dataclass(slots=True)
class Judgement:
    """A server's verdict, what it rests on (the worst first), and that on each of its workers."""

    verdict: Verdict
    reasons: list[str]
    advice: str | None
    workers: list[Verdict] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    return min(verdicts, key=severity, default="no evidence")


def ranges(numbers: Iterable[int]) -> str:
    """Whole numbers as people write them: ``0-3, 7``."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def ranks(processes: Sequence[Process]) -> str:
    """Processes by rank, or by process id where that is not known."""
    known = [process.rank for process in processes if process.rank is not None]
    others = [process for process in processes if process.rank is None]
    named = [f"process {process.pid} of {process.host}" for process in others[:_MOST_NAMED]]
    if known:
        named.insert(0, f"rank{'s' if len(set(known)) > 1 else ''} {ranges(known)}")
    if len(others) > _MOST_NAMED:
        named.append(f"{len(others) - _MOST_NAMED} more")
    return ", ".join(named)


# One process


def serves(process: Process, standing: Standing) -> str | None:
    """What is shown to serve a group: ``trtllm``, ``none``, ``failed``, or None: not shown."""
    if standing.state == "failed":
        return "failed"
    there = standing.state in ("made", "verified")
    # Workspaces are destroyed when a server is stopped; one that ended had it until then.
    if there or (standing.state == "destroyed" and process.ended):
        proven = standing.backend == standing.expected == TRTLLM and not standing.unexpected
        # All decisions may be of a time before the guard was there; not those of one group alone.
        decided = any(one.used for one in process.groups.values())
        return TRTLLM if proven and standing.used == ([TRTLLM] if decided else []) else None
    return NONE if standing.state is None and standing.used == [NONE] else None


def one_rank(process: Process) -> bool:
    """Whether its configs show that there is no all-reduce: tensor parallel size 1."""
    if process.groups or process.backends or process.asked:
        return False
    several = (process.world_size or 1) > 1 and process.data_parallel_sizes <= {1, None}
    return process.tensor_parallel_sizes == {1} and not several


def judge_process(process: Process, hisparse: bool | None) -> list[Finding]:
    """Findings on one worker; `hisparse` is that of its server."""
    found: list[Finding] = []
    if process.doubts or process.errors:
        found.append(("unproven", "its evidence is not whole, or tells of errors"))
    strange = [backend for backend in process.backends if backend != TRTLLM]
    if strange and hisparse is not False:
        said = f"{' and '.join(strange)} workspace"
        found.append(
            ("unsafe", f"{said} under HiSparse")
            if hisparse
            else ("unproven", f"{said}, and whether HiSparse is on is not known")
        )
    if hisparse is None:
        found.append(("unproven", "no config was seen: whether HiSparse is on is not known"))
    elif hisparse is False:
        found.append(("not HiSparse", "every config that was seen had HiSparse off"))
    elif process.hisparse is None:
        found.append(("unproven", "it saw no config, and HiSparse is on in its server"))
    elif one_rank(process):
        found.append(("safe", "tensor parallel size 1: there is no all-reduce"))
    elif not process.groups:
        found.append(("unproven", "HiSparse seen, no backend decided yet"))
    else:
        found += [_judge_group(process, standing) for standing in process.groups.values()]
        found += _without_its_group(process)
    return found


def _judge_group(process: Process, standing: Standing) -> Finding:
    what = serves(process, standing)
    if what == "failed":
        instead = process.serves or "what vLLM falls back to"
        return "failed", f"{process.failure or 'no reason given'}; {instead} serves instead"
    if what == TRTLLM:
        quant = "; its quant workspace failed" if process.quant_failed else ""
        return "safe", f"workspace {standing.state} with backend {standing.backend}{quant}"
    if what == NONE:
        return "safe", "FlashInfer all-reduce is off"
    if standing.state == "destroyed":
        return "unproven", "its workspace was destroyed and none is shown to have come since"
    if standing.state is not None:
        used = " and ".join(str(one or "unknown") for one in standing.used) or "nothing"
        return "unproven", (
            f"workspace {standing.state} with backend {standing.backend}, expected was "
            f"{standing.expected}, decided was {used}"
            + ("; one came that was not expected" if standing.unexpected else "")
        )
    if process.mode == "strict" and standing.used not in ([TRTLLM], []):
        return "unproven", (
            f"mode strict refuses the {' and '.join(map(str, standing.used))} workspace that would "
            "be made: the server does not come up"
        )
    if standing.used == [TRTLLM]:
        return "unproven", "HiSparse seen, no workspace made yet"
    used = " and ".join(str(one or "unknown") for one in standing.used) or "nothing"
    return "unproven", f"decided was {used}, no workspace made yet"


def _without_its_group(process: Process) -> list[Finding]:
    """Proof for another group than the tensor parallel one is none for that."""
    sizes = {group.size for group in process.groups}
    wanted = {size for size in process.tensor_parallel_sizes if size is not None and size > 1}
    if None in sizes or not wanted or wanted & sizes:
        return []
    return [
        ("unproven", f"nothing is shown for the tensor parallel group of {ranges(wanted)} ranks")
    ]


# A server


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
        found += _differing(server)
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


def _differing(server: Server) -> list[Finding]:
    """Ranks that differ: in HiSparse, in what serves a group, in what was decided for it."""
    found: list[Finding] = []
    seen = [process for process in server.workers if process.hisparse]
    off = [process for process in server.workers if process.hisparse is False]
    if seen and off:
        found.append(
            ("disagreement", f"HiSparse was seen by {ranks(seen)}, and off in {ranks(off)}")
        )
    groups: dict[tuple[object, ...], list[tuple[Process, Group, Standing]]] = defaultdict(list)
    for process in server.workers:
        for group, standing in process.groups.items():
            groups[_group_key(process, group)].append((process, group, standing))
    for members in groups.values():
        found += _group_members(members)
        found += _group_differs(members)
    return found


def _group_members(members: list[tuple[Process, Group, Standing]]) -> list[Finding]:
    sizes = {group.size for _, group, _ in members}
    if sizes == {None}:
        return []
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
        if what is None and standing.state in ("made", "verified"):
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
    sizes = {group.size or 0 for p in server.workers for group in p.groups}
    sizes.update(size or 0 for p in server.processes for size in p.tensor_parallel_sizes)
    largest = max(sizes, default=0)
    if largest > world:
        found.append(("unproven", f"a process group of {largest} ranks in a world of {world}"))
    models = sorted({process.model for process in server.workers if process.model})
    if len(models) > 1:
        found.append(("unproven", f"its ranks serve different models: {', '.join(models)}"))
    missing = server.missing
    if missing:
        what = (
            f"{min(world, MOST_RANKS) - len(missing)} of {world} ranks reported; no evidence from "
        )
        what += f"rank{'s' if len(missing) > 1 else ''} {ranges(missing)}"
        if all(process.mode == "observe" for process in server.workers):
            what += " (mode observe changes no decision, so this cannot hang; nothing is proven)"
        # A process whose rank is not right may be the one that is missing.
        shown = server.hisparse is not False and len(missing) > len(odd)
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
        if any("VLLM_FLASHINFER_ALLREDUCE_BACKEND" in p.environment for p in workers):
            return "unset VLLM_FLASHINFER_ALLREDUCE_BACKEND on all ranks, and restart"
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
        return "look at what is said above of the evidence and the errors, and look again"
    if any(process.mode == "strict" for process in workers):
        return "unset VLLM_FLASHINFER_ALLREDUCE_BACKEND and HISPARSE_GUARD_MULTINODE, and restart"
    if server.hisparse is None:
        return "look for the whole evidence of these processes, or start the server and look again"
    return "the workspace is made by warm-up or the first request: send one, and look again"
