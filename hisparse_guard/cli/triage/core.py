"""Triage of whole logs: lives told apart, faults named, and all of it as JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from importlib import import_module
from typing import IO, Any

from hisparse_guard.cli.triage import load_results, reader
from hisparse_guard.cli.triage.catalogue import Catalogue, Fault, When, load
from hisparse_guard.cli.triage.checklist import Item, checklist
from hisparse_guard.cli.triage.life import ENOUGH, KEPT, Life, names_one, start_marker
from hisparse_guard.cli.triage.lines import Line, parse, shown

SCHEMA = 1
HEALTHY, FAULT, UNKNOWN, NO_LOG = "healthy", "fault", "unknown fault", "no log"
EXIT_CODES = {HEALTHY: 0, FAULT: 1, UNKNOWN: 4, NO_LOG: 3}
SYMPTOMS = ("garbled", "slow", "hang")
# Lives of one log that are kept one by one; a crash loop has thousands, all alike.
MOST_LIVES = 200
_SHOWN_LINES = 12
# After this many lines of trouble in a life, more of the same is only counted.
STORM = 4000
_START_WORDS = (b"version ", b"non-default args", b"Initializing a")
MOST_ALIKE = 2000
_LABEL = re.compile(rb"\((\w+) pid=(\d{1,9})")


@dataclass(frozen=True)
class Finding:
    """A known fault that a life shows.

    Attributes:
        certainty: "proven", "likely" or "unconfirmed": of the name, not of a root cause.
        follows_from: id of the fault that this one is a consequence of, or None.
    """

    fault: Fault
    when: When
    evidence: tuple[Line, ...]
    ranks: tuple[str, ...]
    follows_from: str | None = None

    @property
    def certainty(self) -> str:
        """How certain the name is."""
        return self.when.certainty


@dataclass
class Judged:
    """One life with its verdict.

    Attributes:
        unexplained: what the operator saw, where nothing in the log tells of trouble.
    """

    life: Life
    findings: list[Finding]
    notices: list[Finding]
    verdict: str
    checklist: list[Item]
    unexplained: tuple[str, ...] = ()

    @property
    def why_unknown(self) -> str:
        """Why the verdict is that of a fault that it does not know."""
        if self.unexplained:
            seen = " and ".join(f"--symptom {symptom}" for symptom in self.unexplained)
            return f"you reported {seen}; nothing in this log explains it"
        return "something went wrong that no entry of the catalogue describes"


@dataclass
class LogFile:
    """One input: its name, what was read, and remarks on how it could be read."""

    name: str
    kind: str = "log"
    bytes: int = 0
    lines: int = 0
    notes: list[str] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    lives_dropped: int = 0


@dataclass
class Triage:
    """The answer to the question what these logs show."""

    files: list[LogFile]
    lives: list[tuple[str, Judged]]
    load: list[load_results.LoadResult]
    evidence: dict[str, Any] | None
    evidence_exit: int | None
    verdict: str
    reasons: list[str]

    @property
    def exit_code(self) -> int:
        """0 nothing wrong, 1 a fault named, 3 no log to judge, 4 a fault it does not know."""
        return EXIT_CODES[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """The whole answer; the fields are described in docs/triage.md."""
        return {
            "tool": "hisparse-guard triage",
            "schema": SCHEMA,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "reasons": self.reasons,
            "files": [
                {
                    "file": log.name,
                    "kind": log.kind,
                    "bytes": log.bytes,
                    "lines": log.lines,
                    "lives": len(log.lives) + log.lives_dropped,
                    "notes": log.notes,
                }
                for log in self.files
            ],
            "lives": [_life_json(name, judged) for name, judged in self.lives],
            "load": [
                {
                    "file": result.file,
                    "kind": result.kind,
                    "done": result.done,
                    "failed": result.failed,
                    "partial": result.partial,
                    "verdict": result.verdict,
                    "levels": [
                        {
                            "concurrency": level.concurrency,
                            "done": level.done,
                            "failed": level.failed,
                        }
                        for level in result.levels
                    ],
                }
                for result in self.load
            ],
            "evidence": self.evidence,
        }


class Scanner:
    """Takes the lines of one log, in order, and keeps its lives apart."""

    def __init__(self, log: LogFile, catalogue: Catalogue) -> None:
        self.log = log
        # Of a joined log, all pieces up to the one at hand.
        self.files = [log.name]
        self.catalogue = catalogue
        self.current: Life | None = None
        # Servers whose logs are mixed in one file, by pod or container.
        self.by_origin: dict[str, Life] = {}
        self.by_pid: dict[tuple[str | None, str, int], Life] = {}
        self.selector = reader.Selector()

    def block(self, block: reader.Block) -> None:
        """Takes one block of the log."""
        if self._more_of_a_storm(block.data):
            self.selector.skip()
            self._count(self.current, block.data, 0, len(block.data))
            return
        counted = 0
        for found in self.selector.select(block):
            before = self.current
            faulted = before.first_fault if before else None
            self._found(found)
            life = self.current
            if life is not before or (life and life.first_fault is not faulted):
                # Requests before this line belong to what came before it.
                index = max(0, found.number - block.first)
                offset = max(counted, reader.line_offset(block.data, index))
                self._count(before, block.data, counted, offset)
                if before and life is before and before.first_fault is not faulted:
                    before.done_before_fault = before.requests_done
                counted = offset
        self._count(self.current, block.data, counted, len(block.data))

    def _count(self, life: Life | None, data: bytes, start: int, end: int) -> None:
        if len(self.by_origin) > 1:
            self._count_by_origin(data, start, end)
            return
        done, failed = reader.answered(data, start, end)
        if life is None:
            if not done:
                return
            life = self._begin(Line(self.files[-1], 1, "", ""), None)
        life.requests_done += done
        life.requests_failed += failed
        if done:
            life.recognised = True

    def _count_by_origin(self, data: bytes, start: int, end: int) -> None:
        for raw in reader.access_lines(data, start, end):
            origin = parse(self.files[-1], 0, raw)[0].origin
            life = self.by_origin.get(origin or "", self.current)
            if life is not None:
                done, failed = reader.answered(raw, 0, len(raw))
                life.requests_done += done
                life.requests_failed += failed

    def _begin(self, line: Line, by: str | None) -> Life:
        number = len(self.log.lives) + self.log.lives_dropped + 1
        life = Life(self.catalogue, self.files, number, line, by)
        if len(self.log.lives) >= MOST_LIVES:
            # Keep the first ones and the newest.
            del self.log.lives[MOST_LIVES // 2]
            self.log.lives_dropped += 1
        self.log.lives.append(life)
        self.current = life
        if line.origin is not None:
            life.origin = line.origin
            self.by_origin[line.origin] = life
        return life

    def _found(self, found: reader.Found) -> None:
        raw = found.raw
        if self._periodic(found.number, raw):
            return
        if len(raw) > reader.LONG_LINE:
            raw = _around(raw, (*self.catalogue.words, *reader.TROUBLE, *reader.FACTS))
        plain = raw if b"\x1b" not in raw else _without_ansi(raw)
        signals = self.catalogue.may_signal(plain)
        if self.current is not None and not found.hit and not signals and not _worth(plain):
            return
        for line in parse(self.files[-1], found.number, raw):
            self._line(line, signals)

    def _periodic(self, number: int, raw: bytes) -> bool:
        """Takes a line of the periodic statistics without taking it apart."""
        life = self.current
        if life is None or not life.recognised or len(raw) > 2000 or len(self.by_origin) > 1:
            return False
        if b"Avg prompt throughput" in raw:
            return life.statistics(self.files[-1], number, raw)
        if b"KV Transfer metrics: HiSparse" in raw and life.count("hisparse") >= KEPT:
            life.host_statistics(raw)
            life.seen["hisparse"].count += 1
            return True
        return False

    def _more_of_a_storm(self, data: bytes) -> bool:
        """Counts a block of an error storm, and says whether that was all it has to say.

        In a storm millions of lines differ in their prefix only. Where every process in
        a block is known and so is everything its lines say, there is nothing to learn
        but how often.
        """
        life = self.current
        if life is None or life.first_fault is None or life.storm < STORM:
            return False
        if len(self.by_origin) > 1:
            return False
        # Within a second of a storm even the times are the same.
        lines = Counter(data.split(b"\n"))
        distinct = b"\n".join(lines)
        if any(word in distinct for word in _START_WORDS):
            return False
        for label, pid in set(_LABEL.findall(distinct)):
            if life.pids.get(label.decode("ascii", "replace")) != int(pid):
                return False
        said: Counter[str] = Counter()
        alike: Counter[bytes] = Counter()
        for line, count in lines.items():
            # What follows the time: `[file.py:12] message`.
            alike[line[line.find(b" [") :]] += count
        if len(alike) > MOST_ALIKE:
            return False
        for tail, count in alike.items():
            if b"Avg prompt throughput" in tail:
                return False
            if self.catalogue.may_signal(tail):
                for signal in self.catalogue.said(tail.decode("utf-8", "replace")):
                    if life.count(signal.name) < ENOUGH:
                        return False
                    said[signal.name] += count
        for name, count in said.items():
            life.seen[name].count += count
        return True

    def _line(self, line: Line, signals: bool) -> None:
        life = self._life_of(line)
        if signals and life.first_fault is not None:
            life.storm += 1
        life.take(line, signals)
        if line.from_client:
            return
        if "Avg prompt throughput" in line.text:
            life.statistics(line.file, line.number, line.text.encode())
        elif "host KV cache usage" in line.text:
            life.host_statistics(line.text.encode())

    def _life_of(self, line: Line) -> Life:
        marker = start_marker(line)
        life, by = self.current, "start" if marker else None
        if line.origin is not None and line.origin not in self.by_origin:
            # A pod of another server; one that only adds ranks belongs to the server at hand.
            if life is not None and (marker or life.is_another(line)):
                life, by = None, f"{line.origin} is another server"
        elif line.origin is not None:
            life = self.by_origin[line.origin]
        if life is None:
            life = self._begin(line, by)
        who = line.label or ""
        worker = "Worker" in who or who.startswith("EngineCore")
        if worker and line.pid is not None:
            key = (line.origin, who, line.pid)
            known = self.by_pid.get(key)
            if known is None:
                known_pid = life.pids.get(who) if names_one(who) else None
                if known_pid is not None and known_pid != line.pid:
                    life = self._begin(line, f"{who} is now process {line.pid}, was {known_pid}")
                self.by_pid[key] = life
                if len(self.by_pid) > 4096:
                    self.by_pid.pop(next(iter(self.by_pid)))
            elif known is not life and known in self.log.lives and marker is None:
                # The last words of the server before.
                return known
        if marker == "engine":
            # From here on workers are those of this start: in a container a restarted
            # server has the same process ids.
            self.by_pid = {
                key: of for key, of in self.by_pid.items() if of is life or key[0] != line.origin
            }
        if marker:
            again = (marker, who) in life.markers
            # A second API server or engine of the same start has another name.
            later = marker in ("server", "arguments") and self._is_running(life)
            numbered = who.startswith(("ApiServer_", "APIServer_"))
            if again or (later and not numbered) or (marker == "engine" and self._is_over(life)):
                life = self._begin(
                    line,
                    {"server": "a server starts", "arguments": "a server starts"}.get(
                        marker, "an engine starts"
                    ),
                )
                if marker == "engine" and line.pid is not None:
                    self.by_pid[(line.origin, who, line.pid)] = life
            life.markers.add((marker, who))
        return life

    @staticmethod
    def _is_running(life: Life) -> bool:
        """True where a life is past the point at which a server names itself."""
        started = any(marker == "engine" for marker, _ in life.markers)
        return bool(started or life.ranks or life.served or life.first_fault)

    @staticmethod
    def _is_over(life: Life) -> bool:
        return life.served or (life.first_fault is not None and not life.fault_in_startup)


def _around(raw: bytes, words: Iterable[bytes]) -> bytes:
    """The start of a very long line, and what stands around each word."""
    spans = [(0, 4096)]
    for word in words:
        at = raw.find(word)
        # The first and the last place of each: a line of megabytes is no log line.
        for place in {at, raw.rfind(word)} if at >= 0 else ():
            spans.append((max(0, place - 1024), place + 1024))
    kept: list[bytes] = []
    end = 0
    for begin, stop in sorted(spans):
        if stop > end:
            kept.append(raw[max(begin, end) : stop])
            end = stop
    return b" ".join(kept)


def _without_ansi(raw: bytes) -> bytes:
    from hisparse_guard.cli.triage.lines import strip_ansi

    return strip_ansi(raw.decode("utf-8", "replace")).encode()


def _worth(raw: bytes) -> bool:
    """True where a line near trouble may be part of a traceback, or names a setting."""
    return (
        b'File "' in raw
        or b'File \\"' in raw
        or b"rror" in raw
        or b"Exception" in raw
        or b"--" in raw
        or b"=" in raw
        or b"exit" in raw
    )


def _evidence_lines(fault: Fault, life: Life, present: set[str]) -> tuple[Line, ...]:
    lines: dict[tuple[str, int], Line] = {}
    for name in fault.evidence:
        seen = life.seen.get(name)
        if not seen:
            continue
        for line in seen.lines[:3]:
            lines.setdefault((line.file, line.number), line)
    if fault.id == "group-guarded-in-part":
        for line in life.guard_ranks.values():
            lines.setdefault((line.file, line.number), line)
    for name, at in (
        ("corrupted", life.corrupted),
        ("slow_decode", life.stats and (life.stats.file, life.stats.number, life.stats.raw)),
    ):
        if at and name in present and any(name in when.all for when in fault.when):
            for line in parse(*at):
                lines.setdefault((line.file, line.number), line)
    return tuple(sorted(lines.values(), key=life.order)[:_SHOWN_LINES])


def _ranks(fault: Fault, life: Life) -> tuple[str, ...]:
    if fault.id == "group-guarded-in-part":
        return tuple(life.unguarded_ranks())
    found: dict[str, tuple[int, int]] = {}
    for name in fault.evidence:
        signal = life.catalogue.signals.get(name)
        if signal is None or not signal.fatal or name not in life.seen:
            continue
        for rank, line in life.seen[name].ranks.items():
            found[rank] = min(life.order(line), found.get(rank, life.order(line)))
    return tuple(sorted(found, key=lambda rank: found[rank]))


def judge_life(
    life: Life,
    symptoms: Sequence[str] = (),
    load_failed: int = 0,
    known: Set[str] = frozenset(),
) -> Judged:
    """Names the faults of one life.

    Args:
        life: with all its lines taken.
        symptoms: what the operator saw ("garbled", "slow", "hang").
        load_failed: requests that a load generator counted as failed.
        known: signals that something else than the log vouches for.
    """
    present = life.present() | known
    for symptom in symptoms:
        present.add(f"symptom_{symptom}")
        if symptom == "hang":
            present.add("hang")
    named: list[Finding] = []
    for fault in life.catalogue.faults:
        when = next((when for when in fault.when if when.holds(present)), None)
        if when:
            named.append(
                Finding(fault, when, _evidence_lines(fault, life, present), _ranks(fault, life))
            )
    explained: dict[str, str] = {}
    for finding in named:
        if finding.when.effect == "fault" and finding.fault.id not in explained:
            for other in finding.fault.explains:
                explained.setdefault(other, finding.fault.id)
    named = [
        Finding(f.fault, f.when, f.evidence, f.ranks, explained.get(f.fault.id)) for f in named
    ]
    findings = [finding for finding in named if finding.when.effect == "fault"]
    findings.sort(key=lambda finding: finding.follows_from is not None)
    notices = [finding for finding in named if finding.when.effect == "notice"]
    unexplained: tuple[str, ...] = ()
    if any(finding.follows_from is None for finding in findings):
        verdict = FAULT
    elif life.fatal_lines() or life.requests_failed or load_failed:
        verdict = UNKNOWN
    elif symptoms:
        verdict, unexplained = UNKNOWN, tuple(symptoms)
    else:
        verdict = HEALTHY
    return Judged(life, findings, notices, verdict, checklist(life, known), unexplained)


def _line_json(line: Line | None) -> dict[str, Any] | None:
    if line is None:
        return None
    return {
        "file": line.file,
        "line": line.number,
        "time": line.time,
        "process": line.label,
        "pid": line.pid,
        "rank": line.rank,
        "text": shown(line.text),
    }


def same_step(life: Life) -> bool | None:
    """True where all known ranks failed within the same logged second, None where unknown."""
    failed = life.failed_ranks()
    if not failed or len(failed) < 2:
        return None
    if len(failed) < len(life.ranks):
        return False
    times = {line.time for line in failed.values()}
    return None if None in times else len(times) == 1


def facts_json(life: Life) -> dict[str, Any]:
    """What was read from the log, each with the line it was read from."""
    from hisparse_guard.cli.masking import mask

    facts = {
        name: {"value": mask(fact.value), "line": fact.line.number, "file": fact.line.file}
        for name, fact in sorted(life.facts.items())
    }
    stats = life.last_stats
    return {
        **facts,
        "connectors": {name: line.number for name, line in life.connectors.items()},
        "connector_files": {name: line.file for name, line in life.connectors.items()},
        "ranks_seen": list(life.ranks),
        "ranks_guarded": list(life.guard_ranks),
        "host_kv_usage_percent": life.host_kv,
        "last_statistics": {
            "line": stats.number,
            "file": stats.file,
            "time": parse(stats.file, stats.number, stats.raw)[0].time,
            "prompt_tokens_per_s": stats.prompt,
            "generation_tokens_per_s": stats.generation,
            "running": stats.running,
            "waiting": stats.waiting,
            "kv_cache_usage_percent": stats.kv_usage,
        }
        if stats
        else None,
        "preemptions": life.preemptions,
        # Without access lines there is nothing to count, and 0 would be a claim.
        "requests_answered": life.requests_done or None,
        "requests_answered_before_fault": life.done_before_fault if life.requests_done else None,
        "requests_failed": life.requests_failed,
        "cuda_error_lines": life.count("cuda_error"),
        "backend_lines": {
            name: life.count(f"workspace_{name}") for name in ("mnnvl", "trtllm", "failed")
        },
    }


def _finding_json(finding: Finding) -> dict[str, Any]:
    fault, when = finding.fault, finding.when
    return {
        "id": fault.id,
        "title": fault.title,
        "family": fault.family,
        "certainty": when.certainty,
        "effect": when.effect,
        "proven": list(when.proven),
        "likely": list(when.likely),
        "unproven": list(fault.unproven),
        "follows_from": finding.follows_from,
        "ranks": list(finding.ranks),
        "ranks_expected": fault.ranks,
        "build_classes": list(fault.build_classes),
        "meaning": fault.meaning,
        "next_steps": list(fault.next_steps),
        "sources": list(fault.sources),
        "evidence": [_line_json(line) for line in finding.evidence],
    }


def _life_json(name: str, judged: Judged) -> dict[str, Any]:
    life = judged.life
    failed = life.failed_ranks()
    last = life.last or life.first
    return {
        "file": name,
        "life": life.number,
        "origin": life.origin,
        "begun_by": life.begun_by,
        "ended_by": _line_json(life.ended_by),
        "first_line": life.first.number,
        "last_line": last.number,
        "last_file": last.file,
        "verdict": judged.verdict,
        "findings": [_finding_json(finding) for finding in judged.findings],
        "notices": [_finding_json(finding) for finding in judged.notices],
        "first_fault": _line_json(life.first_fault),
        "first_fault_frame": life.first_fault_frame,
        "ranks_failed": [
            {"rank": rank, "line": line.number, "file": line.file, "time": line.time}
            for rank, line in failed.items()
        ],
        "all_ranks_at_same_time": same_step(life),
        "fatal_lines": [_line_json(line) for line in life.fatal_lines()[:_SHOWN_LINES]],
        "exceptions": [_line_json(line) for line in life.exceptions[:_SHOWN_LINES]],
        "exception_count": life.exception_count,
        "errors": [_line_json(line) for line in life.errors],
        "error_count": life.error_count,
        "facts": facts_json(life),
        "checklist": [
            {
                "item": item.name,
                "expected": item.expected,
                "state": item.state,
                "found": item.found,
                "line": item.line.number if item.line else None,
                "file": item.line.file if item.line else None,
            }
            for item in judged.checklist
        ],
    }


def _scan(
    name: str,
    stream: IO[bytes],
    catalogue: Catalogue,
    progress: reader.Progress,
    joined: Scanner | None,
) -> tuple[LogFile, load_results.LoadResult | None, Scanner]:
    log = LogFile(name)
    scanner = joined or Scanner(log, catalogue)
    if joined is not None:
        scanner.files.append(name)
        scanner.selector = reader.Selector()
    small = bytearray()

    def step(size: int) -> None:
        log.bytes += size
        progress.done += size
        if progress.tick:
            progress.tick(progress)

    for block in reader.blocks(stream, log.notes.append, step):
        if small is not None and len(small) <= load_results.LARGEST:
            small += block.data
        scanner.block(block)
        log.lines = block.first + block.newlines - (1 if block.data.endswith(b"\n") else 0)
    result = None
    if 0 < len(small) <= load_results.LARGEST:
        result = load_results.read(name, small.decode("utf-8", "replace"))
    if b"\0" in small[:65536]:
        log.notes.append("holds NUL bytes: not a text file, or written after a crash of the node")
    return log, result, scanner


def _judge_evidence(folders: Sequence[str]) -> tuple[dict[str, Any], int]:
    # The one reader of evidence is the report command's.
    judge = import_module("hisparse_guard.cli.report").judge
    try:
        report = judge([*folders])
    except OSError as error:
        raise reader.Unreadable(f"--evidence {error.filename}: {error.strerror}") from None
    return report.to_json(), report.exit_code


# What says in a log which workspace was made, and so is not for the evidence to say.
_SAY_WORKSPACE = frozenset({"workspace_mnnvl", "workspace_trtllm", "guard_verified_trtllm"})


def _worker_pids(life: Life) -> set[int]:
    return {pid for label, pid in life.pids.items() if "Worker" in label}


def _servers_of(life: Life, servers: list[dict[str, Any]], lives: int) -> list[dict[str, Any]]:
    """The servers of the evidence that may be this life's.

    They have a worker's process id in common. Where the log has none of any worker, there must
    be but one of each.
    """
    pids = _worker_pids(life)
    if not pids:
        return servers if len(servers) == lives == 1 else []
    return [one for one in servers if pids & {worker["pid"] for worker in one["workers"]}]


def _vouched(life: Life, servers: list[dict[str, Any]]) -> frozenset[str]:
    """The signals that the guard's evidence vouches for in this life.

    Restarted containers have the same process ids: servers that disagree say nothing.
    """
    found: set[frozenset[str]] = set()
    for server in servers:
        workers = server["workers"]
        names = {"hisparse"} if any(worker["hisparse"] for worker in workers) else set()
        if any("mnnvl" in worker["workspace"]["all"] for worker in workers):
            names.add("workspace_mnnvl")
        elif server["verdict"] == "safe":
            names.add("guard_verified_trtllm")
        if server["ranks_missing"]:
            names.add("guard_part")
        found.add(frozenset(names))
    vouched = found.pop() if len(found) == 1 else frozenset[str]()
    return vouched - _SAY_WORKSPACE if _SAY_WORKSPACE & life.seen.keys() else vouched


def _numbers(pids: Set[int | None]) -> str:
    known = sorted(pid for pid in pids if pid is not None)
    more = f" and {len(known) - _SHOWN_LINES} more" if len(known) > _SHOWN_LINES else ""
    return (", ".join(map(str, known[:_SHOWN_LINES])) or "none") + more


def triage(
    paths: Sequence[str],
    *,
    evidence: Sequence[str] = (),
    symptoms: Sequence[str] = (),
    joined: bool = False,
    tick: Callable[[reader.Progress], None] | None = None,
) -> Triage:
    """Says what logs show.

    Args:
        paths: logs, packed or not, `-` for standard input, and load results beside them.
        evidence: files or folders of guard evidence, judged by `report`.
        symptoms: what the operator saw and no log says; of `SYMPTOMS`.
        joined: the files are consecutive pieces of one log.
        tick: called as reading goes on.

    Raises:
        reader.Unreadable: a path does not exist or may not be read.
        catalogue.CatalogueError: the catalogue cannot be read.
    """
    from pathlib import Path

    catalogue = load()
    total = 0
    for name in paths:
        if name != "-" and Path(name).is_file():
            total += Path(name).stat().st_size
    progress = reader.Progress(total=total or None, tick=tick)
    files: list[LogFile] = []
    results: list[load_results.LoadResult] = []
    scanner: Scanner | None = None
    for name in paths:
        stream = reader.open_log(name)
        try:
            log, result, used = _scan(
                name, reader.unpacked(stream), catalogue, progress, scanner if joined else None
            )
        except OSError as error:
            raise reader.Unreadable(f"{name}: {error.strerror or error}") from None
        finally:
            if name != "-":
                stream.close()
        if result is not None:
            log.kind = f"load result ({result.kind})"
            results.append(result)
        files.append(log)
        if joined and scanner is None:
            scanner = used
    if scanner is not None:
        # Each life is told of the piece that it begins in.
        begun, scanner.log.lives = scanner.log.lives, []
        for life in begun:
            next(log for log in files if log.name == life.first.file).lives.append(life)
    for log in files:
        # A joined log may begin in a load result that was given before it.
        keep = joined or log.kind == "log"
        log.lives = [life for life in log.lives if keep and life.recognised]
    for log in files:
        if log.kind == "log" and not log.bytes:
            log.kind = "empty"
        elif log.kind == "log" and not any(one.lives for one in (files if joined else [log])):
            log.kind = "not a vLLM log"
    failed = sum(result.failed for result in results)
    judged: dict[str, Any] | None = None
    exit_code: int | None = None
    if evidence:
        judged, exit_code = _judge_evidence(evidence)
    servers = judged["servers"] if judged else []
    found = [life for log in files for life in log.lives]
    matched = {life: _servers_of(life, servers, len(found)) for life in found}
    lives = [
        (life.first.file, judge_life(life, symptoms, 0, _vouched(life, matched[life])))
        for life in found
    ]
    verdict, reasons = _verdict(lives, results, failed)
    if servers and lives and not any(matched.values()):
        of_log = {pid for life in found for pid in _worker_pids(life)}
        of_evidence = {worker["pid"] for server in servers for worker in server["workers"]}
        reasons.append(
            "the evidence is of other processes than the log: no worker's process id is in both "
            f"(log: {_numbers(of_log)}; evidence: {_numbers(of_evidence)})"
        )
    if judged is not None and exit_code is not None:
        verdict, reasons = _with_evidence(verdict, reasons, judged, exit_code)
    return Triage(files, lives, results, judged, exit_code, verdict, reasons)


def _verdict(
    lives: list[tuple[str, Judged]], results: list[load_results.LoadResult], failed: int
) -> tuple[str, list[str]]:
    reasons: list[str] = []
    verdicts = {judged.verdict for _, judged in lives}
    for _, judged in lives:
        for finding in judged.findings:
            if finding.follows_from is None:
                reasons.append(
                    f"life {judged.life.number}: {finding.fault.id} ({finding.certainty})"
                )
        if judged.verdict == UNKNOWN:
            reasons.append(f"life {judged.life.number}: {judged.why_unknown}")
    for result in results:
        reasons.append(
            f"load: {result.done} done, {result.failed} failed"
            + (", partial" if result.partial else "")
        )
    if FAULT in verdicts:
        return FAULT, reasons
    if UNKNOWN in verdicts or failed:
        if failed and UNKNOWN not in verdicts:
            reasons.append("requests failed and the log does not say why")
        return UNKNOWN, reasons
    if HEALTHY in verdicts:
        return HEALTHY, reasons
    return NO_LOG, [*reasons, "no line of a vLLM server in what was given"]


def _with_evidence(
    verdict: str, reasons: list[str], judged: dict[str, Any], exit_code: int
) -> tuple[str, list[str]]:
    """The guard's own evidence joins in: unsafe there is a fault, whatever the log shows."""
    reasons = [*reasons, f"evidence: {judged.get('verdict')}"]
    if exit_code == 1 and verdict in (HEALTHY, NO_LOG, UNKNOWN):
        return FAULT, reasons
    if exit_code == 0 and verdict == NO_LOG:
        return HEALTHY, reasons
    return verdict, reasons
