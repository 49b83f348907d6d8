"""From lives to servers, and from servers to verdicts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hisparse_guard.cli.report.life import Life, Site, moment
from hisparse_guard.cli.report.reading import Reading, read

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
_WORST_FIRST = tuple(EXIT_CODES)

MEANING: dict[Verdict, str] = {
    "unsafe": "an mnnvl all-reduce workspace serves under HiSparse: this is the fault",
    "disagreement": "ranks of one server decided differently: this hangs or crashes",
    "partly guarded": "fewer ranks reported than the server has: this hangs or crashes",
    "failed": "no FlashInfer all-reduce workspace could be made",
    "unproven": "HiSparse is on and no workspace was made yet, or evidence is cut short",
    "safe": "no mnnvl all-reduce workspace under HiSparse",
    "not HiSparse": "HiSparse is off: the guard changes nothing",
    "no evidence": "no evidence lines were found",
}

MNNVL = "mnnvl"
OFF = "none"

# Clocks of two hosts differ by less than this; restarts are further apart.
_SKEW_S = 120.0
_MOST_TIMELINE = 500
_MOST_NAMED = 3


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    return min(verdicts, key=_WORST_FIRST.index, default="no evidence")


def ranges(numbers: Iterable[int]) -> str:
    """Whole numbers as people write them: ``0-3, 7``."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _ranks(lives: Sequence[Life]) -> str:
    known = [life.rank for life in lives if life.rank is not None]
    others = [life for life in lives if life.rank is None]
    named = [f"process {life.pid} of {life.host}" for life in others[:_MOST_NAMED]]
    if known:
        named.insert(0, f"rank{'s' if len(set(known)) > 1 else ''} {ranges(known)}")
    if len(others) > _MOST_NAMED:
        named.append(f"{len(others) - _MOST_NAMED} more")
    return ", ".join(named)


def effective(life: Life) -> str | None:
    """What serves in a worker: a backend, ``none`` for none at all, None if unknown."""
    if life.workspace is not None:
        return life.workspace
    if life.workspace_failed:
        return "failed"
    if life.pinned == OFF or (life.resolved and life.answer is None):
        return OFF
    return None


def judge_worker(life: Life) -> Verdict:
    """The verdict on one process that resolved a backend."""
    if not life.hisparse:
        return "not HiSparse"
    if MNNVL in life.workspaces:
        return "unsafe"
    serves = effective(life)
    if serves == "failed":
        return "failed"
    return "unproven" if serves is None else "safe"


@dataclass(slots=True)
class Miss:
    """A call site that got no config, over all processes of a server."""

    number: int
    site: Site
    count: int
    lives: list[Life]

    def to_json(self) -> dict[str, Any]:
        return {
            "site": self.number,
            "count": self.count,
            "ranks": sorted({life.rank for life in self.lives if life.rank is not None}),
            "processes": len(self.lives),
        }


@dataclass(slots=True)
class Happening:
    """An entry of a server's timeline: what one or many of its processes said."""

    ts: str | None
    event: str
    what: str
    lives: list[Life]

    @property
    def who(self) -> str:
        return _ranks(self.lives)

    def to_json(self) -> dict[str, Any]:
        return {
            "ts": self.ts,
            "event": self.event,
            "what": self.what,
            "ranks": sorted({life.rank for life in self.lives if life.rank is not None}),
            "processes": len(self.lives),
        }


@dataclass(slots=True)
class Server:
    """One run of one server: the processes of one torch.distributed world.

    Attributes:
        key: what its processes have in common; later runs may have it too.
        identifier: names this run among all others, for as long as the evidence is kept.
        workers: the processes that resolved a backend; only these are judged.
        others: API server, engine core and the like.
        latest: False when the same hosts have a later run of the same model.
        reasons: what the verdict rests on, the worst first.
        notes: what else the operator should know.
    """

    key: str
    workers: list[Life]
    others: list[Life] = field(default_factory=list)
    verdict: Verdict = "unproven"
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    advice: str | None = None
    latest: bool = True
    identifier: str = ""
    missing: list[int] = field(default_factory=list)

    @property
    def lives(self) -> list[Life]:
        return [*self.workers, *self.others]

    @property
    def hisparse(self) -> bool:
        return any(life.hisparse for life in self.lives)

    @property
    def hosts(self) -> list[str]:
        return sorted({life.host for life in self.lives})

    @property
    def start(self) -> str | None:
        return min((life.start for life in self.lives if life.start), default=None)

    @property
    def last(self) -> str | None:
        return max((life.last_ts for life in self.lives if life.last_ts), default=None)

    @property
    def world_size(self) -> int | None:
        return max((x.world_size for x in self.lives if x.world_size is not None), default=None)

    @property
    def model(self) -> str | None:
        return _common(life.model for life in self.lives)

    def misses(self, sites: Sequence[Site]) -> list[Miss]:
        """Context misses over all processes, the resolver's first, then the most frequent."""
        found: dict[int, Miss] = {}
        for life in self.lives:
            for number, count in life.sites.items():
                miss = found.get(number)
                if miss is None:
                    found[number] = Miss(number, sites[number], count, [life])
                else:
                    miss.count += count
                    miss.lives.append(life)
        return sorted(
            found.values(),
            key=lambda miss: (miss.site.origin == "trace", -miss.count, str(miss.site.where)),
        )

    def timeline(self) -> list[Happening]:
        """What happened, in order; the same words from several processes are one entry."""
        found: dict[tuple[str, str], Happening] = {}
        for life in self.lives:
            for entry in life.moments:
                happening = found.get((entry.event, entry.what))
                if happening is None:
                    found[entry.event, entry.what] = Happening(
                        entry.ts, entry.event, entry.what, [life]
                    )
                    continue
                if happening.lives[-1] is not life:
                    happening.lives.append(life)
                if (moment(entry.ts) or 0) < (moment(happening.ts) or 0):
                    happening.ts = entry.ts
        # The order of writing decides between equal times, and it was kept.
        return sorted(found.values(), key=lambda one: moment(one.ts) or 0)[:_MOST_TIMELINE]

    def to_json(self, sites: Sequence[Site]) -> dict[str, Any]:
        return {
            "id": self.identifier,
            "verdict": self.verdict,
            "reasons": self.reasons,
            "notes": self.notes,
            "advice": self.advice,
            "latest": self.latest,
            "model": self.model,
            "hosts": self.hosts,
            "start": self.start,
            "last": self.last,
            "world_size": self.world_size,
            "ranks_missing": self.missing,
            "workers": [_worker_json(life) for life in self.workers],
            "others": [_process_json(life) for life in self.others],
            "misses": [miss.to_json() for miss in self.misses(sites)],
            "timeline": [happening.to_json() for happening in self.timeline()],
        }


def _process_json(life: Life) -> dict[str, Any]:
    return {
        "host": life.host,
        "pid": life.pid,
        "start": life.start,
        "last": life.last_ts,
        "rank": life.rank,
        "file": life.file,
        "lines": life.lines,
        "lines_lost": life.lost,
        "argv0": life.argv0,
        "how": life.how,
        "guard_version": life.guard_version,
        "vllm_version": life.vllm_version,
        "flashinfer_version": life.flashinfer_version,
        "python": life.python,
        "build_class": life.build_class,
        "hisparse": life.hisparse,
        "model": life.model,
        "environment": life.environment,
        "errors": life.errors,
    }


def _worker_json(life: Life) -> dict[str, Any]:
    return {
        "verdict": judge_worker(life),
        **_process_json(life),
        "world_size": life.world_size,
        "group_rank": life.group_rank,
        "group_size": life.group_size,
        "rendezvous": life.rendezvous,
        "mode": life.mode,
        "rule": life.rule,
        "pinned": life.pinned,
        "vllm_alone": life.alone,
        "workspace": {
            "backend": life.workspace,
            "verified": life.workspace in life.verified,
            "all": life.workspaces,
            "failed": life.workspace_failed,
            "error": life.failure,
            "serves": life.serves,
            "mismatch": life.mismatch,
        },
        "misses": life.misses,
    }


@dataclass(slots=True)
class Report:
    """What the evidence proves.

    Attributes:
        servers: the worst first, then the latest.
        bystanders: processes that never saw HiSparse and belong to no server.
    """

    verdict: Verdict
    servers: list[Server]
    bystanders: list[Life]
    reading: Reading

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """The form that ``report --json`` prints; described in docs/evidence.md."""
        reading = self.reading
        return {
            "schema": 1,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "meaning": MEANING[self.verdict],
            "servers": [server.to_json(reading.sites) for server in self.servers],
            "bystanders": [_process_json(life) for life in self.bystanders],
            "sites": [site.to_json() for site in reading.sites],
            "evidence": {
                "files": reading.files,
                "lines": reading.lines,
                "processes": len(reading.lives),
                "torn": reading.torn,
                "unknown_schema": reading.unknown_schema,
                "unknown_events": dict(reading.unknown_events),
                "problems": [problem.to_json() for problem in reading.problems],
            },
        }


def judge(paths: Iterable[str | os.PathLike[str]]) -> Report:
    """Reads evidence and judges every server in it.

    Args:
        paths: evidence files and folders of them, of any mix of hosts and restarts.

    Raises:
        FileNotFoundError: a path does not exist.
    """
    reading = read(paths)
    servers, bystanders = servers_of(reading.lives)
    for server in servers:
        _judge_server(server)
    _note_skew(servers)
    _name_runs(servers)
    _mark_latest(servers)
    servers.sort(key=lambda one: one.start or "", reverse=True)
    servers.sort(key=lambda one: _WORST_FIRST.index(one.verdict))
    if servers:
        verdict = worst(server.verdict for server in servers)
    else:
        verdict = "not HiSparse" if bystanders else "no evidence"
    return Report(verdict, servers, bystanders, reading)


# Which processes make a server


def servers_of(lives: Sequence[Life]) -> tuple[list[Server], list[Life]]:
    """Groups lives into servers.

    Workers belong together by the address at which they met (the same on all ranks, over nodes
    too), else by vLLM's instance id, else by their parent. A server that is started again may
    have any of these in common with the run before; see `_runs`.

    Returns:
        The servers, and the lives that belong to none and never saw HiSparse.
    """
    keyed: dict[str, list[Life]] = {}
    for life in lives:
        if life.resolved:
            keyed.setdefault(_key(life), []).append(life)
    servers = [Server(key, run) for key, group in keyed.items() for run in _runs(group)]

    instances: dict[str, list[Server]] = {}
    parents: dict[tuple[str, int], list[Server]] = {}
    for server in servers:
        for life in server.workers:
            for instance in life.instances:
                instances.setdefault(instance, []).append(server)
            if life.ppid is not None:
                parents.setdefault((life.host, life.ppid), []).append(server)

    left: list[Life] = []
    # Children first: an engine core belongs to a server by its workers, and the API server
    # then by the engine core.
    waiting = sorted(
        (x for x in lives if not x.resolved), key=lambda x: x.start or "", reverse=True
    )
    for life in waiting:
        homes = [server for instance in life.instances for server in instances.get(instance, ())]
        if not homes and life.pid is not None:
            homes = [
                server
                for server in parents.get((life.host, life.pid), ())
                if (moment(life.start) or 0) <= (moment(server.start) or 0)
            ][-1:]
        if not homes:
            left.append(life)
            continue
        for server in {id(home): home for home in homes}.values():
            server.others.append(life)
            if life.ppid is not None:
                parents.setdefault((life.host, life.ppid), []).append(server)
    groups: dict[str, list[Life]] = {}
    for life in left:
        groups.setdefault(_key(life), []).append(life)
    bystanders: list[Life] = []
    for key, group in groups.items():
        concerned = [life for life in group if life.hisparse]
        if not concerned and any(life.cut_short for life in group):
            concerned = group
        else:
            bystanders += [life for life in group if not life.hisparse]
        if concerned:
            servers.append(Server(key, [], concerned))
    for server in servers:
        server.workers.sort(key=_order)
        server.others.sort(key=_order)
    return servers, sorted(bystanders, key=_order)


def _order(life: Life) -> tuple[int, str, str, int]:
    rank = life.rank if life.rank is not None else 1 << 30
    return (rank, life.host, life.start or "", life.pid or 0)


def _key(life: Life) -> str:
    if life.rendezvous:
        return life.rendezvous
    if life.instances:
        return f"instance {life.instances[0]}"
    return f"{life.host}, parent {life.ppid if life.ppid is not None else '?'}"


def _runs(lives: Sequence[Life]) -> list[list[Life]]:
    """Splits lives with one key into runs of the server.

    A world exists only once all its ranks met, so every member was alive before any member
    resolved a backend in it; and no rank is twice in it. Instance ids do not tell runs apart:
    a worker that makes its config itself has one of its own.
    """
    runs: list[list[Life]] = []
    for life in sorted(lives, key=lambda one: (moment(one.start) or 0, one.host, one.pid or 0)):
        home = next((run for run in reversed(runs) if _fits(life, run)), None)
        if home is None:
            runs.append([life])
        else:
            home.append(life)
    return runs


def _fits(life: Life, run: Sequence[Life]) -> bool:
    start = moment(life.start)
    for other in run:
        if life.rank is not None and life.rank == other.rank:
            return False
        if None not in (life.world_size, other.world_size) and life.world_size != other.world_size:
            return False
        same_host = life.host == other.host
        # At the same time it is another container's pid, under one host name.
        if same_host and life.pid == other.pid and not _overlap(life, other):
            return False
        met = moment(other.first_resolved)
        if start is not None and met is not None and start > met + (0 if same_host else _SKEW_S):
            return False
    return True


def _overlap(one: Life, other: Life) -> bool:
    """Whether two lives ran at the same time, by the one clock of their host."""
    starts = moment(one.start), moment(other.start)
    ends = moment(one.last_ts), moment(other.last_ts)
    if None in (*starts, *ends):
        return False
    return max(x for x in starts if x is not None) <= min(x for x in ends if x is not None)


def _name_runs(servers: Sequence[Server]) -> None:
    seen: Counter[str] = Counter()
    for server in sorted(servers, key=lambda one: (one.start or "", one.hosts)):
        name = f"{server.key}@{server.start or '?'}"
        seen[name] += 1
        server.identifier = name if seen[name] == 1 else f"{name}#{seen[name]}"


def _note_skew(servers: Sequence[Server]) -> None:
    """Ranks that are missing here and are in a run of other hosts at the same address."""
    for server in servers:
        wanted = set(server.missing)
        for other in servers:
            if (
                wanted
                and other.key == server.key
                and not set(other.hosts) & set(server.hosts)
                and wanted <= {life.rank for life in other.workers}
            ):
                server.notes.append(
                    f"{', '.join(other.hosts)} met at the same address and has the missing ranks, "
                    f"at other times: if clocks differ by more than {_SKEW_S:.0f} s, set them, "
                    "restart, and look again"
                )
                break


def _mark_latest(servers: Sequence[Server]) -> None:
    newest: dict[tuple[Any, ...], Server] = {}
    for server in servers:
        if not server.hisparse and not server.workers:
            continue
        lineage = (tuple(server.hosts), server.model, server.world_size)
        other = newest.setdefault(lineage, server)
        if other is server:
            continue
        earlier, later = sorted((other, server), key=lambda one: one.start or "")
        # Two that ran side by side (prefill and decode on one node) do not follow one another.
        if (moment(earlier.last) or 0) < (moment(later.start) or 0):
            earlier.latest = False
        newest[lineage] = later


def _common(values: Iterable[str | None]) -> str | None:
    counted = Counter(value for value in values if value)
    return counted.most_common(1)[0][0] if counted else None


# The verdict


def _judge_server(server: Server) -> None:
    workers = server.workers
    findings: list[tuple[Verdict, str]] = []
    if not server.hisparse and workers:
        findings.append(("not HiSparse", "no config with HiSparse was seen"))
    elif not server.hisparse:
        findings += _cut_short(server)
    elif not workers:
        findings.append(_without_workers(server))
    else:
        findings += _unsafe(workers)
        findings += _disagreements(workers)
        findings += _partly(server)
        findings += _plain(workers)
    findings.sort(key=lambda one: _WORST_FIRST.index(one[0]))
    server.verdict = findings[0][0]
    server.reasons = [what for _, what in findings]
    server.advice = _advice(server)
    _notes(server)


def _cut_short(server: Server) -> list[tuple[Verdict, str]]:
    cut = _ranks([life for life in server.others if life.cut_short])
    what = f"{cut}: evidence is cut short before it tells of HiSparse or a decision"
    # Whether the others run unguarded is not known either.
    return [("unproven", what), *(("unproven", said) for _, said in _partly(server))]


def _without_workers(server: Server) -> tuple[Verdict, str]:
    sizes = [x.tensor_parallel_size for x in server.others if x.tensor_parallel_size is not None]
    if sizes and max(sizes) == 1:
        return "safe", "tensor parallel size 1: there is no all-reduce, and no workspace is made"
    count = len(server.others)
    return (
        "unproven",
        f"HiSparse was seen by {count} process{'es' if count > 1 else ''}, "
        "but no worker resolved a backend yet",
    )


def _unsafe(workers: Sequence[Life]) -> list[tuple[Verdict, str]]:
    bad = [life for life in workers if life.hisparse and MNNVL in life.workspaces]
    found: list[tuple[Verdict, str]] = []
    if bad:
        found.append(("unsafe", f"{_ranks(bad)}: mnnvl workspace under HiSparse"))
    return found


def _disagreements(workers: Sequence[Life]) -> list[tuple[Verdict, str]]:
    found: list[tuple[Verdict, str]] = []
    with_it = [life for life in workers if life.hisparse]
    without = [life for life in workers if not life.hisparse]
    if without:
        found.append(
            (
                "disagreement",
                f"HiSparse was seen by {_ranks(with_it)} and not by {_ranks(without)}",
            )
        )
    groups: dict[int | None, list[Life]] = {}
    for life in workers:
        groups.setdefault(_group(life), []).append(life)
    for number, group in sorted(groups.items(), key=lambda item: (item[0] is None, item[0] or 0)):
        by_backend: dict[str, list[Life]] = {}
        for life in group:
            serves = effective(life)
            if serves is not None:
                by_backend.setdefault(serves, []).append(life)
        if len(by_backend) > 1:
            said = "; ".join(
                f"{_ranks(lives)}: "
                + {OFF: "no FlashInfer all-reduce", "failed": "workspace failed"}.get(
                    backend, backend
                )
                for backend, lives in sorted(by_backend.items())
            )
            where = "" if number is None or len(groups) == 1 else f" in group {number}"
            found.append(("disagreement", f"backends differ{where}: {said}"))
        elif stuck := [life for life in group if _decided_alone(life, group)]:
            rest = [life for life in group if life not in stuck]
            said = f"{_ranks(stuck)}: {_common(x.answer for x in stuck)}, no workspace made"
            others = sorted({answer for life in rest for answer in life.answers})
            found.append(
                ("disagreement", f"decisions differ: {said}; {_ranks(rest)}: {', '.join(others)}")
            )
    return found


def _decided_alone(life: Life, group: Sequence[Life]) -> bool:
    """Whether a rank without a workspace waits for one that another rank never decided for.

    This is how a group hangs: on vLLM 0.32 and later the backends' ways to a workspace are not
    the same collectives.
    """
    if effective(life) is not None or life.answer is None:
        return False
    return any(x.answers and life.answer not in x.answers for x in group if effective(x))


def _group(life: Life) -> int | None:
    """The number of a rank's tensor parallel group: vLLM numbers these contiguously."""
    if life.rank is None or not life.group_size or life.group_rank is None:
        return None
    if life.rank % life.group_size != life.group_rank:
        return None
    return life.rank // life.group_size


def _partly(server: Server) -> list[tuple[Verdict, str]]:
    world = server.world_size
    workers = server.workers
    if world is None:
        world = max((x.group_size for x in workers if x.group_size is not None), default=None)
    if world is None:
        return []
    # A rank that armed and has not resolved yet is guarded all the same, unless it was told to be
    # off after it had armed.
    reported = {x.rank for x in server.lives if x.rank is not None and x.mode != "off"}
    unranked = sum(life.rank is None for life in workers or server.others)
    if len(reported) + unranked >= world:
        return []
    if not unranked and world <= 100_000:
        server.missing = [rank for rank in range(world) if rank not in reported]
    what = f"{len(reported) + unranked} of {world} ranks reported"
    if server.missing:
        what += f"; no evidence from {'rank' if len(server.missing) == 1 else 'ranks'} "
        what += ranges(server.missing)
    if workers and all(life.mode == "observe" for life in workers):
        what += " (mode observe changes no decision, so this cannot hang; nothing is proven either)"
    return [("partly guarded", what)]


def _plain(workers: Sequence[Life]) -> list[tuple[Verdict, str]]:
    found: list[tuple[Verdict, str]] = []
    failed = [x for x in workers if x.hisparse and judge_worker(x) == "failed"]
    if failed:
        why = _common(life.failure for life in failed) or "no reason given"
        serves = _common(life.serves for life in failed) or "what vLLM falls back to"
        found.append(("failed", f"{_ranks(failed)}: {why}; {serves} serves instead"))
    unproven = [x for x in workers if judge_worker(x) == "unproven"]
    refused = [x for x in unproven if _refused(x)]
    if refused:
        unproven = [x for x in unproven if not _refused(x)]
        found.append(
            (
                "unproven",
                f"{_ranks(refused)}: mode strict refuses the mnnvl workspace that would be made: "
                "the server does not come up",
            )
        )
    if unproven:
        found.append(("unproven", f"{_ranks(unproven)}: HiSparse seen, no workspace made yet"))
    safe = [x for x in workers if judge_worker(x) == "safe"]
    by_backend: dict[str, list[Life]] = {}
    for life in safe:
        by_backend.setdefault(_proof(life), []).append(life)
    found += [("safe", f"{_ranks(lives)}: {proof}") for proof, lives in by_backend.items()]
    return found


def _refused(life: Life) -> bool:
    return life.mode == "strict" and life.hisparse and life.answer == MNNVL


def _proof(life: Life) -> str:
    if life.workspace is None:
        return "FlashInfer all-reduce is off"
    if life.workspace in life.verified:
        return f"workspace verified with backend {life.workspace}"
    return f"workspace made with backend {life.workspace}"


def _advice(server: Server) -> str | None:
    workers = server.workers
    forced = {life.environment.get("VLLM_FLASHINFER_ALLREDUCE_BACKEND") for life in workers}
    if server.verdict == "unsafe" or any(_refused(life) for life in workers):
        if MNNVL in forced:
            return "unset VLLM_FLASHINFER_ALLREDUCE_BACKEND=mnnvl on all ranks, and restart"
        if any(life.mode == "observe" for life in workers):
            return "set HISPARSE_GUARD_MODE=enforce on all ranks, and restart"
        if any(life.rule == "multinode" for life in workers):
            return "unset HISPARSE_GUARD_MULTINODE=keep on all ranks, and restart"
        return "look at the errors of these ranks, and stop the server: it will crash under load"
    if server.verdict == "disagreement":
        return "give all ranks the same image, guard and settings, and restart"
    if server.verdict == "partly guarded":
        return (
            "give all ranks the guard, or none, and all evidence folders to this command "
            "(a node's folder may be missing here)"
        )
    if server.verdict == "failed":
        return (
            "run `hisparse-guard doctor` in the image: it tells whether the trtllm kernel is there"
        )
    if server.verdict == "unproven" and not server.hisparse:
        return "look for the whole evidence of these processes, or start the server and look again"
    if server.verdict == "unproven":
        return "the workspace is made by warm-up or the first request: send one, and look again"
    return None


def _notes(server: Server) -> None:
    lives = server.lives
    for name, values in (
        ("modes", {life.mode for life in server.workers if life.mode}),
        ("guard versions", {life.guard_version for life in lives if life.guard_version}),
        ("vLLM versions", {life.vllm_version for life in lives if life.vllm_version}),
        ("FlashInfer versions", {x.flashinfer_version for x in lives if x.flashinfer_version}),
        ("build classes", {life.build_class for life in lives if life.build_class}),
    ):
        if len(values) > 1:
            server.notes.append(f"{name} differ: {', '.join(sorted(values))}")
    for mismatch in sorted({life.mismatch for life in server.workers if life.mismatch}):
        server.notes.append(mismatch)
    failed = {x.failure for x in server.workers if x.failure and not x.workspace_failed}
    server.notes += [f"a workspace failed, another serves: {why}" for why in sorted(failed)]
    errors = Counter(error for life in lives for error in life.errors)
    server.notes += [
        f"error in {count} process{'es' if count > 1 else ''}: {what}"
        for what, count in errors.most_common(10)
    ]
    lost = sum(life.lost for life in lives)
    if lost:
        server.notes.append(f"{lost} line{'s' if lost > 1 else ''} of evidence lost")
