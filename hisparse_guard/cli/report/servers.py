"""Which processes make a server run, and which runs are shown to have ended."""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from hisparse_guard.cli.report.model import Process, moment

# Clocks of two hosts are taken to differ by less than this.
_SKEW_S = 30.0
# An absurd size of a world is no reason to count so far.
MOST_RANKS = 100_000

# Host, process id and start name one process.
_Key = tuple[str, int, str]
_NOBODY: _Key = ("", 0, "")


@dataclass(slots=True)
class Server:
    """One run of one server: the processes of one torch.distributed world.

    Attributes:
        key: what its processes have in common; later runs may have it too.
        met: whether `key` is the address at which they met.
        identifier: names this run among all others, for as long as the evidence is kept.
        workers: the processes that have a rank, a group or a workspace.
        others: API server, engine core and the like.
        short_of: the ranks that a config of its launcher is for, where it is of more than the
            worlds of that launcher's servers have, and these.
        idle: others that saw HiSparse and started none of its workers, as another did.
        latest: False where it is shown to have ended or to be superseded.
    """

    key: str
    workers: list[Process]
    others: list[Process] = field(default_factory=list)
    met: bool = False
    short_of: tuple[int, int] | None = None
    idle: list[Process] = field(default_factory=list)
    latest: bool = True
    identifier: str = ""

    @property
    def processes(self) -> list[Process]:
        return [*self.workers, *self.others]

    @property
    def hisparse(self) -> bool | None:
        """True: some process saw it; False: all workers saw it off; None: not known."""
        if any(process.hisparse for process in self.workers):
            return True
        # A launcher may start several servers: what counts is what it saw of this one.
        own = {instance for process in self.workers for instance in process.instances}
        for process in self.others:
            theirs = process.hisparse_instances
            if process.hisparse and (not own or not theirs or own & theirs):
                return True
        known = self.workers or self.others
        return False if all(process.hisparse is False for process in known) else None

    @property
    def hosts(self) -> list[str]:
        return sorted({process.host for process in self.processes})

    @property
    def start(self) -> str:
        return min(process.start for process in self.processes)

    @property
    def last(self) -> str:
        return max(process.last_ts for process in self.processes)

    @property
    def world_size(self) -> int | None:
        sizes = [p.world_size for p in self.processes if p.world_size is not None]
        return max(sizes, default=None)

    @property
    def missing(self) -> list[int]:
        """Ranks of the world that no process has; none where the world's size is not known."""
        if self.world_size is None:
            return []
        have = {p.rank for p in self.workers if p.mode != "off"}
        return [rank for rank in range(min(self.world_size, MOST_RANKS)) if rank not in have]

    @property
    def model(self) -> str | None:
        counted = Counter(process.model for process in self.processes if process.model)
        return counted.most_common(1)[0][0] if counted else None


def servers_of(processes: Sequence[Process]) -> tuple[list[Server], list[Process]]:
    """Groups processes into server runs.

    Workers belong together by the address at which they met (the same on all ranks, over nodes
    too), else by vLLM's instance id, else by their parent.

    Returns:
        The servers, the worst to be told apart; and the processes that belong to none and saw
        HiSparse off.
    """
    by_address: dict[str, list[Process]] = defaultdict(list)
    without_address: list[Process] = []
    others: list[Process] = []
    copies = _copies(processes)
    for process in processes:
        if not process.is_worker or _key(process) in copies:
            others.append(process)
        elif process.rendezvous is None:
            without_address.append(process)
        else:
            by_address[_address(process)].append(process)
    servers = [
        Server(key, run, met=True) for key, group in by_address.items() for run in _runs(group)
    ]
    servers += _without_address(servers, without_address)
    bystanders = _place_others(servers, others)
    parents = _parents(processes)
    for server in servers:
        server.workers.sort(key=_order)
        server.others.sort(key=_order)
        server.idle = _idle(server, parents)
    _name(servers)
    _mark_ended(servers, processes)
    return servers, sorted(bystanders, key=_order)


def _copies(processes: Sequence[Process]) -> set[_Key]:
    """Processes that a worker forked: torch still tells them its rank, which they do not serve."""
    by_key = {_key(process): process for process in processes}
    parents = _parents(processes)
    return {
        _key(process)
        for process in processes
        if process.forked and not process.groups and not process.backends
        if (parent := by_key.get(parents.get(_key(process), _NOBODY))) is not None
        and parent.rank is not None
        and parent.rank == process.rank
    }


def _order(process: Process) -> tuple[int, str, str, int]:
    rank = process.rank if process.rank is not None else 1 << 30
    return (rank, process.host, process.start, process.pid)


def _address(process: Process) -> str:
    """The address at which the ranks met, with the host where it means this host only."""
    address = process.rendezvous or ""
    return address if _holds_between_hosts(address) else f"{address} on {process.host}"


def _holds_between_hosts(address: str) -> bool:
    try:
        host = (urlsplit(address).hostname or "").rstrip(".")
    except ValueError:
        return False
    if urlsplit(address).scheme != "tcp" or not host:
        return False
    if host.startswith(("localhost", "ip6-lo")):
        return False
    try:
        number = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        # A name, or a number in a form of its own (127.1).
        return not host.replace(".", "").isdigit() and not host.startswith("0x")
    mapped = getattr(number, "ipv4_mapped", None) or number
    return not (mapped.is_loopback or mapped.is_unspecified or mapped.is_link_local)


def _by_kin(process: Process) -> str:
    if process.instances:
        return f"instance {process.instances[0]}"
    parent = "?" if process.ppid is None else process.ppid
    return f"{process.host}, parent {parent}"


def _akin(process: Process, other: Process) -> bool:
    if set(process.instances) & set(other.instances):
        return True
    return process.host == other.host and process.ppid is not None and process.ppid == other.ppid


def _without_address(servers: list[Server], processes: Sequence[Process]) -> list[Server]:
    """Workers that have not met yet, or whose decisions are not here: to kin, else by kin."""
    left: dict[str, list[Process]] = defaultdict(list)
    for process in processes:
        home = next(
            (
                server
                for server in reversed(servers)
                if any(_akin(process, other) for other in server.workers)
                and _fits(process, server.workers)
            ),
            None,
        )
        if home is None:
            left[_by_kin(process)].append(process)
        else:
            home.workers.append(process)
    return [Server(key, run) for key, group in left.items() for run in _runs(group)]


def _runs(processes: Sequence[Process]) -> list[list[Process]]:
    """Splits processes with one key into runs of the server.

    A world exists only once all its ranks met, so every member was started before any member
    decided in it; and no rank is twice in it. Instance ids do not tell runs apart: a worker that
    makes its config itself has one of its own.
    """
    runs: list[list[Process]] = []
    for process in sorted(processes, key=lambda one: (one.start, one.host, one.pid)):
        home = next((run for run in reversed(runs) if _fits(process, run)), None)
        if home is None:
            runs.append([process])
        else:
            home.append(process)
    return runs


def _fits(process: Process, run: Sequence[Process]) -> bool:
    start = moment(process.start)
    for other in run:
        if process.rank is not None and process.rank == other.rank:
            return False
        sizes = {process.world_size, other.world_size} - {None}
        if len(sizes) > 1:
            return False
        same_host = process.host == other.host
        apart = process.start > other.last_ts or other.start > process.last_ts
        # A process id that was used again; at the same time it is another container's.
        if same_host and process.pid == other.pid and apart:
            return False
        met = moment(other.first_met)
        if process.clock_set_back or other.clock_set_back:
            continue
        if met is not None and (start is None or start > met + (0 if same_host else _SKEW_S)):
            return False
    return True


def _place_others(servers: list[Server], others: Sequence[Process]) -> list[Process]:
    """Puts processes that are no workers to the servers of their children and instances.

    Returns:
        Those that belong to none and saw HiSparse off; what is not known to be off becomes a
        server of its own.
    """
    by_instance: dict[str, list[Server]] = defaultdict(list)
    by_parent: dict[_Key, list[Server]] = defaultdict(list)
    by_member: dict[_Key, list[Server]] = defaultdict(list)
    workers = [process for server in servers for process in server.workers]
    parents = _parents([*workers, *others])

    def enter(server: Server, process: Process) -> None:
        by_member[_key(process)].append(server)
        if parent := parents.get(_key(process)):
            by_parent[parent].append(server)

    for server in servers:
        for process in server.workers:
            enter(server, process)
            for instance in process.instances:
                by_instance[instance].append(server)
    left: dict[str, list[Process]] = defaultdict(list)
    # Children first: an engine core belongs to a server by its workers, and the API server then
    # by the engine core.
    for process in sorted(others, key=lambda one: one.start, reverse=True):
        homes = [server for name in process.instances for server in by_instance[name]]
        if not homes:
            homes = by_parent[_key(process)]
        if not homes and (parent := parents.get(_key(process))):
            homes = by_member[parent]
        several = {id(home): home for home in homes}.values()
        reported = sum(home.world_size or 0 for home in several)
        for server in several:
            server.others.append(process)
            enter(server, process)
            if process.hisparse and process.largest_config > reported:
                server.short_of = (process.largest_config, reported)
        if not homes or (process.hisparse and not any(home.hisparse for home in homes)):
            # Also a launcher that saw HiSparse in a server of which there is no evidence.
            left[_by_kin(process)].append(process)
    bystanders = []
    for key, group in left.items():
        if all(p.hisparse is False and not p.doubts and not p.errors for p in group):
            bystanders += group
        else:
            servers.append(Server(key, [], group))
    return bystanders


def _key(process: Process) -> _Key:
    return (process.host, process.pid, process.start)


def _parents(processes: Sequence[Process]) -> dict[_Key, _Key]:
    """The parent of each process, where it has evidence too: of those that had its process id one
    after the other, the last one that began before."""
    # Containers with one host name share process ids too: an instance tells their parents apart.
    owners: dict[tuple[str, int | None], list[Process]] = defaultdict(list)
    for process in sorted(processes, key=lambda one: one.start):
        owners[process.host, process.pid].append(process)
    found = {}
    for process in processes:
        earlier = [p for p in owners[process.host, process.ppid] if p.start < process.start]
        akin = [p for p in earlier if set(p.instances) & set(process.instances)]
        if earlier:
            found[_key(process)] = _key((akin or earlier)[-1])
    return found


def _idle(server: Server, parents: Mapping[_Key, _Key]) -> list[Process]:
    """Engine cores of the server's instance that have no workers here: theirs may be unguarded.

    Under Ray and forkserver an engine core is not its workers' parent: a single one that is
    nobody's is taken for theirs. What the parent of workers starts beside them is no engine core.
    """
    workers = {_key(process) for process in server.workers}
    kin = workers | {parents[key] for key in workers if key in parents}
    starters = {one for key in workers for one in _ancestors(key, parents)}
    others = [(process, _key(process)) for process in server.others]
    apart = [
        process
        for process, key in others
        if process.hisparse and key not in starters and not kin & _ancestors(key, parents)
    ]
    started = any(key in starters for _, key in others)
    return apart if workers and (started or len(apart) > 1) else []


def _ancestors(key: _Key, parents: Mapping[_Key, _Key]) -> set[_Key]:
    found: set[_Key] = set()
    while (parent := parents.get(key)) is not None and parent not in found:
        found.add(parent)
        key = parent
    return found


def _name(servers: Sequence[Server]) -> None:
    seen: Counter[str] = Counter()
    for server in sorted(servers, key=lambda one: (one.start, one.hosts)):
        name = f"{server.key}@{server.start}"
        seen[name] += 1
        server.identifier = name if seen[name] == 1 else f"{name}#{seen[name]}"


def _mark_ended(servers: Sequence[Server], processes: Iterable[Process]) -> None:
    """Silence is no end: each process said so, or its process id or address has a later owner."""
    newest: dict[tuple[str, int], str] = {}
    for process in processes:
        key = (process.host, process.pid)
        newest[key] = max(process.start, newest.get(key, ""))
    latest_at: dict[str, str] = {}
    for server in servers:
        if server.met:
            latest_at[server.key] = max(server.start, latest_at.get(server.key, ""))
    for server in servers:
        over = all(
            process.ended or newest[process.host, process.pid] > process.last_ts
            for process in server.workers or server.others
        )
        server.latest = not (over or latest_at.get(server.key, "") > server.last)
