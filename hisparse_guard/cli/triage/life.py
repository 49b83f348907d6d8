"""What a log says about one life of a server: from a start to the next start.

Lines are handed over one by one; what is kept is bounded: for each signal a count, the
ranks and the first few lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hisparse_guard.cli.triage.catalogue import Catalogue
from hisparse_guard.cli.triage.lines import Line

KEPT = 6
# After this many lines with one signal only its count and new ranks are kept.
ENOUGH = 2000

_Q = r"[\\'\"]*"
_VALUE_END = r"(?=[\\'\",\s)}\]]|$)"


def _assigned(name: str, value: str) -> re.Pattern[str]:
    """`name=value`, `'name': value`, `--name value`, with whatever quotes."""
    dashed = name.replace("_", "[-_]")
    return re.compile(rf"(?<![A-Za-z0-9_]){dashed}{_Q}(?:\s*[=:]\s*|\s+){_Q}(?P<value>{value})")


_FACTS: dict[str, tuple[re.Pattern[str], ...]] = {
    "vllm_version": (
        re.compile(r"vLLM (?:API )?server version (?P<value>[^\s,]+)"),
        re.compile(r"[█▀▄] +version +(?P<value>\d[^\s]*)"),
        re.compile(r"Initializing an? (?:V1 )?LLM engine \(v(?P<value>[^)\s]+)\)"),
        re.compile(r"vLLM Version +: (?P<value>\S+)"),
        re.compile(r"vLLM batch processing API version (?P<value>\S+)"),
    ),
    "commit": (
        re.compile(r"git sha: (?P<value>[0-9a-f]{7,40})"),
        re.compile(
            r"(?:version |engine \(v|vLLM )[^\s)]*\+(?:cpu\.|cu\d+\.)?g(?P<value>[0-9a-f]{7,40})"
        ),
    ),
    "model": (
        re.compile(r"vllm serve +(?P<value>(?!-)[^\s\\'\"]+)"),
        re.compile(r"serving model (?P<value>\S+)"),
        re.compile(r"[█▀▄] +model +(?P<value>\S+)"),
        re.compile(r"config: model='(?P<value>[^']+)'"),
        re.compile(r"'model(?:_tag)?': '(?P<value>[^']+)'"),
    ),
    "tensor_parallel_size": (
        _assigned("tensor_parallel_size", r"\d+"),
        re.compile(r"(?:^|\s)-tp[ =](?P<value>\d+)"),
    ),
    "data_parallel_size": (_assigned("data_parallel_size", r"\d+"),),
    "host_pool_gib": (_assigned("host_pool_gib", r"[\d.]+"),),
    "block_size": (_assigned("block_size", r"\d+"),),
    "cudagraph_mode": (
        re.compile(
            rf"cudagraph_mode{_Q}\s*[=:]\s*{_Q}<?(?:CUDAGraphMode\.)?(?P<value>[A-Z][A-Z_]+)"
        ),
    ),
    "enforce_eager": (
        _assigned("enforce_eager", r"True|False|true|false"),
        re.compile(r"(?P<value>--enforce-eager)(?=\s|$)"),
    ),
    "launch_blocking": (
        re.compile(rf"(?<!passing )CUDA_LAUNCH_BLOCKING{_Q}\s*[=:]\s*{_Q}(?P<value>\w+)"),
    ),
    "nccl_net_plugin": (
        re.compile(
            rf"NCCL_NET_PLUGIN{_Q}(?:\s*[=:]\s*| set by environment to ){_Q}(?P<value>[\w./-]+)"
        ),
    ),
    "allreduce_backend_env": (
        re.compile(rf"VLLM_FLASHINFER_ALLREDUCE_BACKEND{_Q}\s*[=:]\s*{_Q}(?P<value>[a-z]+)"),
    ),
    "flashinfer_version": (
        re.compile(r"flashinfer[-_]python=+(?P<value>[\w.]+)"),
        re.compile(r"FlashInfer (?P<value>\d[\w.]*)"),
    ),
}
_CONNECTOR = re.compile(
    rf"kv_connector{_Q}\s*[=:]\s*{_Q}(?P<value>\w+Connector\w*)"
    r"|connector with name: (?P<created>\w+)|configured with connector (?P<named>\w+Connector)"
)
# Statistics come by the hundred thousand: searched in bytes, and only the last is parsed.
_STATS = re.compile(
    rb"Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, "
    rb"Avg generation throughput: (?P<gen>[\d.]+) tokens/s, "
    rb"Running: (?P<running>\d+) reqs, Waiting: (?P<waiting>\d+) reqs"
    rb"(?P<rest>[^\n]{0,600})"
)
_PREEMPTIONS = re.compile(rb"Preemptions: (\d+)")
_KV_USAGE = re.compile(rb"KV cache usage: ([\d.]+)%")
_CORRUPTED = re.compile(rb"Corrupted: [1-9]\d* reqs")
_HOST_KV = re.compile(rb"host KV cache usage %=([\d.]+)")
_EXCEPTION = re.compile(
    r"^\W{0,6}(?:[\w.]+\.)?(?P<name>[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout))(?::|$)"
)
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_OURS = re.compile(r"(?:Vllm|Ray)?Worker|EngineCore|A[Pp][Ii]Server|LLMEngine|DPCoordinator")
_GUARD_RANK = re.compile(r"\brank[= ](?P<rank>\d+)(?:[/ ]+(?:of )?(?P<size>\d+))?")
_WORLD = re.compile(r"world_size=(?P<size>\d+)")
_START_API = re.compile(
    r"vLLM (?:API )?server version |[█▀▄] +version +\d|vLLM batch processing API version"
)
_START_ARGS = re.compile(r"non-default args: ")
_START_WORDS = ("version ", "non-default args", "Initializing a")
_START_ENGINE = re.compile(r"Initializing an? (?:V1 )?LLM engine ")

# The words a line must hold for facts to be looked for in it: they are long lists.
_FACT_WORDS = (
    "version",
    "Version",
    "non-default args",
    "Initializing a",
    "vllm serve",
    " --",
    "LAUNCH_BLOCKING",
    "NCCL_NET_PLUGIN",
    "ALLREDUCE_BACKEND",
    "onnector",
    "flashinfer",
    "FlashInfer ",
    "git sha",
    "world_size=",
)


@dataclass(frozen=True)
class Fact:
    """A value read from the log and the line it was read from."""

    value: str
    line: Line


@dataclass
class Seen:
    """How often a signal came, from whom, and the first lines that say it."""

    count: int = 0
    lines: list[Line] = field(default_factory=list)
    ranks: dict[str, Line] = field(default_factory=dict)

    def add(self, line: Line) -> None:
        self.count += 1
        if line.rank is not None and line.rank not in self.ranks:
            self.ranks[line.rank] = line
            if len(self.lines) >= KEPT and len(self.lines) < 4 * KEPT:
                self.lines.append(line)
                return
        if len(self.lines) < KEPT:
            self.lines.append(line)


@dataclass(frozen=True)
class Stats:
    """A statistics line: tokens/s, requests, KV cache usage in percent."""

    file: str
    number: int
    raw: bytes
    prompt: float
    generation: float
    running: int
    waiting: int
    kv_usage: float | None


@dataclass(eq=False)
class Life:
    """One life of a server.

    Attributes:
        files: names of the log's pieces, in the order in which they are read.
        number: 1-based, within the log.
        first, last: its first and last line that was looked at.
        ended_by: the line that says that it was told to stop, before anything went wrong.
        begun_by: what showed that a new server started, or None for the log's beginning.
        origin: the pod or container, where the log names it.
    """

    catalogue: Catalogue
    files: list[str]
    number: int
    first: Line
    begun_by: str | None = None
    origin: str | None = None
    last: Line | None = None
    recognised: bool = False
    seen: dict[str, Seen] = field(default_factory=dict)
    facts: dict[str, Fact] = field(default_factory=dict)
    connectors: dict[str, Line] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)
    label_origins: dict[str, str | None] = field(default_factory=dict)
    markers: set[tuple[str, str]] = field(default_factory=set)
    ranks: dict[str, Line] = field(default_factory=dict)
    stats: Stats | None = None
    stats_before_fault: Stats | None = None
    host_kv: str | None = None
    preemptions: int = 0
    slow_lines: int = 0
    storm: int = 0
    corrupted: tuple[str, int, bytes] | None = None
    requests_done: int = 0
    requests_failed: int = 0
    done_before_fault: int | None = None
    exceptions: list[Line] = field(default_factory=list)
    exception_count: int = 0
    errors: list[Line] = field(default_factory=list)
    error_count: int = 0
    frames: dict[str, tuple[Line, str]] = field(default_factory=dict)
    first_fault: Line | None = None
    first_fault_frame: str | None = None
    served_at: Line | None = None
    ended_by: Line | None = None
    fault_in_startup: bool = False
    wait_in_startup: bool = False
    guard_ranks: dict[str, Line] = field(default_factory=dict)
    world_size: int | None = None

    def take(self, line: Line, signals: bool) -> None:
        """Adds one line.

        Args:
            line: of this life.
            signals: False where it is known that no signal is in it.
        """
        self.last = line
        if line.label and line.pid is not None:
            self.pids.setdefault(line.label, line.pid)
            self.label_origins.setdefault(line.label, line.origin)
        if line.source or (line.label and _OURS.match(line.label)):
            self.recognised = True
        if line.rank is not None and line.label is not None and "Worker" in line.label:
            self.ranks.setdefault(line.rank, line)
        if line.from_client:
            return
        if signals:
            self._signals(line)
        if any(word in line.text for word in _FACT_WORDS):
            self._facts(line)
        self._trouble(line)

    @property
    def last_stats(self) -> Stats | None:
        """The last statistics, before the fault where there is one."""
        return self.stats_before_fault if self.first_fault else self.stats

    def order(self, line: Line) -> tuple[int, int]:
        """Where a line stands in the log: sorts lines of several pieces."""
        return self.files.index(line.file), line.number

    def is_another(self, line: Line) -> bool:
        """True where a process of this name was seen in another pod or container."""
        return (
            line.label is not None
            and names_one(line.label)
            and self.label_origins.get(line.label, line.origin) != line.origin
        )

    def count(self, name: str) -> int:
        """How many lines said it."""
        seen = self.seen.get(name)
        return seen.count if seen else 0

    @property
    def served(self) -> bool:
        """True where the server was up."""
        return self.served_at is not None or self.requests_done > 0 or self.stats is not None

    def present(self) -> set[str]:
        """All signals that hold for this life, derived ones among them."""
        names = {name for name, seen in self.seen.items() if seen.count}
        waits = {"shm_wait", "rpc_timeout", "nccl_timeout", "gloo_timeout"}
        timeouts = {"rpc_timeout", "nccl_timeout", "gloo_timeout", "engine_fatal", "worker_died"}
        timeouts |= {"server_error"}
        if "hisparse" not in names and any("HiSparse" in name for name in self.connectors):
            names.add("hisparse")
        if "nixl" not in names and any(name.startswith("Nixl") for name in self.connectors):
            names.add("nixl")
        if "offloading" not in names and "OffloadingConnector" in self.connectors:
            names.add("offloading")
        if self.served:
            names.add("served")
        if self.fault_in_startup or (not self.served and names & waits):
            names.add("in_startup")
        if names & waits:
            names.add("hang")
        fatal = {name for name, signal in self.catalogue.signals.items() if signal.fatal}
        if names & (fatal - timeouts):
            names.add("crash")
        if self.wait_in_startup and self.served:
            names.add("waited_then_served")
        if self.unguarded_ranks():
            names.add("guard_part")
        if names & {"workspace_trtllm", "guard_verified_trtllm"}:
            names.add("trtllm_in_use")
        if self.slow_lines >= 3:
            names.add("slow_decode")
        if self.corrupted:
            names.add("corrupted")
        asked = self.facts.get("allreduce_backend_env")
        if asked and asked.value == "trtllm":
            names.add("trtllm_asked")
        blocking = self.facts.get("launch_blocking")
        if blocking and blocking.value not in ("0", "None"):
            names.add("launch_blocking")
        return names

    def unguarded_ranks(self) -> list[str]:
        """Ranks of which no armed line is there while other ranks have one."""
        if not self.guard_ranks:
            return []
        # Where processes carry no rank in their name the guard's own line has it.
        armed = {*self.guard_ranks, *(f"TP{rank[5:]}" for rank in self.guard_ranks if " " in rank)}
        missing = [rank for rank in self.ranks if rank not in armed]
        if missing or self.count("multi_node"):
            # A log of one node has nothing of the ranks of the others.
            return missing
        size = self.facts.get("tensor_parallel_size")
        if size and all(re.fullmatch(r"TP\d+", rank) for rank in self.guard_ranks):
            return [
                f"TP{n}"
                for n in range(min(int(size.value), 1024))
                if f"TP{n}" not in self.guard_ranks
            ]
        return []

    def failed_ranks(self) -> dict[str, Line]:
        """The first CUDA error, time-out or out-of-memory line of each rank, in log order."""
        found: dict[str, Line] = {}
        for name, signal in self.catalogue.signals.items():
            if signal.fatal and signal.ranks and name in self.seen:
                for rank, line in self.seen[name].ranks.items():
                    if rank not in found or self.order(line) < self.order(found[rank]):
                        found[rank] = line
        return dict(sorted(found.items(), key=lambda item: self.order(item[1])))

    def fatal_lines(self) -> list[Line]:
        """The first lines of each signal after which a server does not go on, in log order."""
        lines: dict[tuple[str, int], Line] = {}
        for name, signal in self.catalogue.signals.items():
            if signal.fatal and name in self.seen:
                for line in self.seen[name].lines[:3]:
                    lines.setdefault((line.file, line.number), line)
        return sorted(lines.values(), key=self.order)

    def _signals(self, line: Line) -> None:
        for signal in self.catalogue.said(line.text):
            name = signal.name
            if signal.engine and self.served and (line.label or "")[:9].lower() == "apiserver":
                continue
            if self.ended_by and (name == "engine_fatal" or "died" in line.text):
                # What it does to its own processes once it was told to stop.
                continue
            seen = self.seen.get(name)
            if seen is None:
                seen = self.seen[name] = Seen()
            seen.add(line)
            if signal.fatal or name.startswith(("workspace", "guard", "startup")):
                self.recognised = True
            if name == "startup_complete" and self.served_at is None:
                self.served_at = line
            elif name == "shm_wait" and not self.served:
                self.wait_in_startup = True
            elif name == "shutdown" and self.first_fault is None:
                self.ended_by = self.ended_by or line
            elif name == "guard_armed":
                self._armed(line)
            if signal.fatal and self.first_fault is None:
                self.first_fault = line
                self.fault_in_startup = not self.served
                self.stats_before_fault = self.stats
                self.done_before_fault = self.requests_done

    def _armed(self, line: Line) -> None:
        rank = line.rank if line.label and "Worker" in line.label else None
        named = _GUARD_RANK.search(line.message)
        if rank is None and named:
            rank = f"rank {named['rank']}"
        if rank is not None:
            self.guard_ranks.setdefault(rank, line)

    def _facts(self, line: Line) -> None:
        for match in _CONNECTOR.finditer(line.text):
            name = match["value"] or match["created"] or match["named"]
            self.connectors.setdefault(name, line)
        for name, patterns in _FACTS.items():
            if name in self.facts and name != "launch_blocking":
                continue
            for pattern in patterns:
                fact = pattern.search(line.text)
                if fact:
                    self.facts[name] = Fact(fact["value"], line)
                    break
        world = _WORLD.search(line.text)
        if world:
            self.world_size = int(world["size"])

    def statistics(self, file: str, number: int, raw: bytes) -> bool:
        """Takes a physical line of vLLM's statistics; False where it is none."""
        match = _STATS.search(raw)
        if match is None:
            return False
        try:
            running = int(match["running"])
            prompt, generation = float(match["prompt"]), float(match["gen"])
            usage = _KV_USAGE.search(match["rest"])
            kv_usage = float(usage[1]) if usage else None
        except ValueError:
            return False
        self.stats = Stats(
            file, number, raw, prompt, generation, running, int(match["waiting"]), kv_usage
        )
        if running and prompt < 1 and 0 < generation / running < 6:
            self.slow_lines += 1
        preempted = _PREEMPTIONS.search(match["rest"])
        if preempted:
            self.preemptions += int(preempted[1])
        if self.corrupted is None and _CORRUPTED.search(match["rest"]):
            self.corrupted = (file, number, raw)
        return True

    def host_statistics(self, raw: bytes) -> None:
        """Takes HiSparse's share of the periodic transfer statistics."""
        host = _HOST_KV.search(raw)
        if host:
            self.host_kv = host[1].decode("ascii")

    def _trouble(self, line: Line) -> None:
        frame = _FRAME.match(line.message)
        who = line.label or line.rank or ""
        if frame:
            if len(self.frames) < 1024 or who in self.frames:
                self.frames[who] = (line, f"{frame['file']}:{frame['line']} in {frame['function']}")
            self.recognised = self.recognised or "/vllm/" in frame["file"]
            return
        if _EXCEPTION.match(line.message):
            self.exception_count += 1
            if len(self.exceptions) < 4 * KEPT:
                self.exceptions.append(line)
            if self.first_fault is not None and self.first_fault_frame is None:
                last = self.frames.get(who)
                self.first_fault_frame = last[1] if last else None
        elif line.level in ("ERROR", "CRITICAL"):
            self.error_count += 1
            if len(self.errors) < KEPT:
                self.errors.append(line)


def names_one(label: str) -> bool:
    """False where several processes of a server share a name: Ray's, or not yet ranked."""
    return label in ("APIServer", "EngineCore") or label[-1:].isdigit()


def start_marker(line: Line) -> str | None:
    """Which step of a server's start a line is: "server", "arguments", "engine", or None."""
    if line.from_client or not any(word in line.text for word in _START_WORDS):
        return None
    if _START_API.search(line.text):
        return "server"
    if _START_ARGS.search(line.text):
        return "arguments"
    return "engine" if _START_ENGINE.search(line.text) else None
