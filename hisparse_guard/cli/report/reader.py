"""The project's one reader of evidence: files in, typed records and reading problems out.

`read_evidence(paths) -> Evidence` is all that others need. The types of the lines come from
`hisparse_guard.runtime.telemetry.events`; a line of any other shape is a problem.

It streams: a file is never held whole, and neither is a line beyond `LONGEST_LINE`. Evidence is
written by processes that are killed, on disks that fill up and on machines that lose power, so
whatever is wrong is told, and never ends the reading.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

import msgspec

from hisparse_guard.cli.report.decoding import (
    Miss,
    check_json,
    decode_line,
    miss_of,
    parse_time,
    what_is_wrong,
)
from hisparse_guard.cli.report.files import evidence_files, host_of
from hisparse_guard.cli.report.problems import Problem
from hisparse_guard.runtime.telemetry.events import ContextMiss, Envelope, Event

LONGEST_LINE = 4 << 20
_CHUNK = 1 << 20
# Below this many bytes, other processes cost more than they save.
_WORTH_SHARING = 16 << 20

ProcessKey = tuple[str, int, str]


class Record(NamedTuple):
    """One line of any event but `context_miss`."""

    envelope: Envelope
    event: Event


class MissLine(NamedTuple):
    """One line of event `context_miss`.

    Attributes:
        number: index into `Evidence.misses`.
        times: its count.
    """

    seq: int
    number: int
    times: int
    at_exit: bool


@dataclass(slots=True)
class ProcessRecords:
    """What all files together hold of one process: host, pid and start name it.

    Attributes:
        records: in the order of their sequence numbers, each once.
        misses: index into `Evidence.misses` to the highest count.
        miss_lines: the lines of its misses.
        problems: why something of this process may not be here.
        lines: distinct sequence numbers.
        last_seq: the highest one.
    """

    host: str
    pid: int
    start: str
    records: list[Record] = field(default_factory=list)
    misses: dict[int, int] = field(default_factory=dict)
    miss_lines: set[MissLine] = field(default_factory=set)
    seqs: list[list[int]] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    world_sizes: set[int] = field(default_factory=set)
    files: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    first_ts: str = ""
    last_ts: str = ""

    @property
    def key(self) -> ProcessKey:
        return (self.host, self.pid, self.start)

    @property
    def lines(self) -> int:
        return sum(last - first + 1 for first, last in self.seqs)

    @property
    def last_seq(self) -> int:
        return max((last for _, last in self.seqs), default=0)

    @property
    def lost(self) -> int:
        """Lines that were numbered and are not here."""
        return self.last_seq - self.lines

    def take(self, envelope: Envelope) -> None:
        """Counts one line."""
        seq = envelope.seq
        if self.seqs and seq == self.seqs[-1][1] + 1:
            self.seqs[-1][1] = seq
        else:
            self.seqs.append([seq, seq])
        if envelope.rank is not None:
            self.ranks.add(envelope.rank)
        if envelope.world_size is not None:
            self.world_sizes.add(envelope.world_size)
        ts = envelope.ts
        if ts > self.last_ts:
            self.last_ts = ts
        if not self.first_ts or ts < self.first_ts:
            self.first_ts = ts

    def join(self, other: ProcessRecords) -> None:
        """Takes in what another file holds of the same process."""
        self.records += other.records
        for number, count in other.misses.items():
            self.misses[number] = max(count, self.misses.get(number, 0))
        self.miss_lines |= other.miss_lines
        self.seqs += other.seqs
        self.ranks |= other.ranks
        self.world_sizes |= other.world_sizes
        self.files += [name for name in other.files if name not in self.files]
        self.problems += other.problems
        self.first_ts = min(self.first_ts, other.first_ts)
        self.last_ts = max(self.last_ts, other.last_ts)

    def finish(self) -> None:
        """Puts the lines in order, and says what is missing or contradicts itself."""
        spans: list[list[int]] = []
        for first, last in sorted(self.seqs):
            if spans and first <= spans[-1][1] + 1:
                spans[-1][1] = max(last, spans[-1][1])
            else:
                spans.append([first, last])
        self.seqs = spans
        # Two lines that differ under one number are both kept: neither may hide the other.
        unique = {(r.envelope.seq, repr(r)): r for r in self.records}
        self.records = [unique[key] for key in sorted(unique)]
        numbers = [r.envelope.seq for r in self.records] + [m.seq for m in self.miss_lines]
        if len(set(numbers)) < len(numbers):
            self.problems.append("lines that differ have the same number")
        if self.lost:
            self.problems.append(
                f"{self.lost} of {self.last_seq} numbered lines are not here (a full disk, a torn "
                "line, or a cut file)"
            )
        if len(self.ranks) > 1 or len(self.world_sizes) > 1:
            self.problems.append("its lines name several ranks or world sizes")
        self.problems = list(dict.fromkeys(self.problems))


@dataclass(slots=True)
class Evidence:
    """What a set of evidence files holds.

    Attributes:
        misses: context misses; `ProcessRecords.misses` counts by index into it.
        problems: all reading problems, those of a process's own lines included.
        torn: files whose last line was cut short.
        unknown_schema, unknown_events: lines of a newer guard, counted and not understood.
    """

    processes: list[ProcessRecords] = field(default_factory=list)
    misses: list[Miss] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    files: int = 0
    lines: int = 0
    bytes: int = 0
    torn: list[str] = field(default_factory=list)
    unknown_schema: int = 0
    unknown_events: dict[str, int] = field(default_factory=dict)


def read_evidence(paths: Iterable[str | os.PathLike[str]], jobs: int | None = None) -> Evidence:
    """Reads all evidence that `paths` name.

    Args:
        paths: files and folders, of any mix of hosts and restarts.
        jobs: processes to read with; by default as many as there are cores for much evidence,
            and this one alone for little.

    Raises:
        FileNotFoundError: a path does not exist.
    """
    problems: list[Problem] = []
    sized = sorted(
        ((_size(path), str(path)) for path in evidence_files(paths, problems)), reverse=True
    )
    if jobs is None:
        much = sum(size for size, _ in sized) >= _WORTH_SHARING and len(sized) > 1
        jobs = len(os.sched_getaffinity(0)) if much and hasattr(os, "sched_getaffinity") else 1
    if jobs > 1:
        # Dealt like cards from the largest down, so that all parts take about the same time.
        parts = [[name for _, name in sized[i :: jobs * 4]] for i in range(jobs * 4)]
        readings = _in_parallel([part for part in parts if part], jobs)
    else:
        readings = map(_read_files, [[name for _, name in sized]])
    return _merged(readings, problems)


def _size(path: str | os.PathLike[str]) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - a name
    except OSError:
        return 0


def _in_parallel(parts: list[list[str]], jobs: int) -> Iterator[Evidence]:
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    done = 0
    try:
        with ProcessPoolExecutor(max_workers=jobs) as pool:
            for reading in pool.map(_read_files, parts):
                done += 1
                yield reading
    except (OSError, ImportError, BrokenProcessPool):
        # No semaphores (a container without /dev/shm) or no memory for another process.
        yield from map(_read_files, parts[done:])


def _merged(readings: Iterable[Evidence], problems: list[Problem]) -> Evidence:
    merged = Evidence(problems=problems)
    known: dict[ContextMiss, int] = {}
    processes: dict[ProcessKey, ProcessRecords] = {}
    for reading in readings:
        merged.files += reading.files
        merged.lines += reading.lines
        merged.bytes += reading.bytes
        merged.torn += reading.torn
        merged.unknown_schema += reading.unknown_schema
        for event, count in reading.unknown_events.items():
            merged.unknown_events[event] = merged.unknown_events.get(event, 0) + count
        merged.problems += reading.problems
        numbers = []
        for miss in reading.misses:
            # `left_s` differs from process to process, and tells nothing of the call site.
            number = known.setdefault(miss.event._replace(left_s=None), len(merged.misses))
            if number == len(merged.misses):
                merged.misses.append(miss)
            elif miss.first < merged.misses[number].first:
                merged.misses[number] = miss
            numbers.append(number)
        for process in reading.processes:
            moved: dict[int, int] = {}
            for index, count in process.misses.items():
                moved[numbers[index]] = max(count, moved.get(numbers[index], 0))
            process.misses = moved
            process.miss_lines = {
                line._replace(number=numbers[line.number]) for line in process.miss_lines
            }
            other = processes.setdefault(process.key, process)
            if other is not process:
                other.join(process)
    merged.processes = sorted(processes.values(), key=lambda one: (one.start, one.host, one.pid))
    for process in merged.processes:
        process.finish()
    merged.torn.sort()
    merged.problems.sort(key=lambda problem: (problem.file, problem.line or 0))
    return merged


def _read_files(names: list[str]) -> Evidence:
    reader = _Reader()
    for name in names:
        reader.file(name)
    return reader.evidence


class _Reader:
    """Reads files one after the other into one `Evidence`."""

    def __init__(self) -> None:
        self.evidence = Evidence()
        self._misses: dict[tuple[Any, ...], int] = {}
        self._processes: dict[ProcessKey, ProcessRecords] = {}
        self._problems: dict[str, Problem] = {}
        self._name = ""

    def file(self, name: str) -> None:
        self._name = name
        self._problems = {}
        self._processes = {}
        self.evidence.files += 1
        lines = self.evidence.lines
        try:
            # Evidence of a live server grows while it is read: what is there now is read.
            with open(name, "rb", buffering=0) as handle:  # noqa: PTH123 - a name, many times
                self._lines(handle)
        except OSError as error:
            self._problem(f"cannot be read: {error.strerror or error}")
        if not self._problems and self.evidence.lines == lines:
            self._problem("is empty")
        for process in self._processes.values():
            # Any process of a file may have written the line that could not be read.
            process.problems += [str(problem) for problem in self._problems.values()]
        for problem in self._problems.values():
            problem.of_process = bool(self._processes)
        self.evidence.problems += self._problems.values()
        self.evidence.processes += self._processes.values()

    def _problem(self, what: str, line: int | None = None) -> None:
        known = self._problems.get(what)
        if known is None:
            self._problems[what] = Problem(self._name, what, line, host=host_of(self._name))
        else:
            known.count += 1

    def _lines(self, handle: BinaryIO) -> None:
        number = 0
        rest = b""
        skipping = False
        while chunk := handle.read(_CHUNK):
            self.evidence.bytes += len(chunk)
            pieces = (rest + chunk).split(b"\n")
            rest = pieces.pop()
            for piece in pieces:
                number += 1
                if skipping:
                    skipping = False
                elif len(piece) > LONGEST_LINE:
                    self._problem(f"a line is longer than {LONGEST_LINE >> 20} MiB", number)
                elif piece and not piece.isspace():
                    self._line(piece, number)
            if len(rest) > LONGEST_LINE:
                if not skipping:
                    self._problem(f"a line is longer than {LONGEST_LINE >> 20} MiB", number + 1)
                skipping, rest = True, b""
        if rest and not skipping and not rest.isspace():
            self._last(rest, number + 1)

    def _last(self, rest: bytes, number: int) -> None:
        """The last line, which has no newline: cut short, or being written just now."""
        try:
            msgspec.json.decode(rest)
        except (msgspec.DecodeError, ValueError, RecursionError):
            self.evidence.torn.append(self._name)
            self._problem("the last line is cut short (killed, or being written just now)", number)
            self.evidence.lines += 1
        else:
            self._line(rest, number)

    def _line(self, piece: bytes, number: int) -> None:
        self.evidence.lines += 1
        try:
            line = decode_line(piece)
            if miss := miss_of(line):
                self._take_miss(piece, line, *miss)
                return
            envelope, event = line.typed()
            process = self._process(envelope)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            wrong = what_is_wrong(piece, error)
            if wrong.schema:
                self.evidence.unknown_schema += 1
            if wrong.event is not None:
                count = self.evidence.unknown_events.get(wrong.event, 0)
                self.evidence.unknown_events[wrong.event] = count + 1
            self._problem(wrong.what, number)
            return
        process.take(envelope)
        process.records.append(Record(envelope, event))

    def _process(self, line: Any) -> ProcessRecords:
        key = (line.host, line.pid, line.start)
        process = self._processes.get(key)
        if process is None:
            parse_time(line.start)
            process = self._processes[key] = ProcessRecords(*key, files=[self._name])
        return process

    def _take_miss(self, piece: bytes, line: Any, key: tuple[Any, ...], ts: str) -> None:
        number = self._misses.get(key)
        if number is None:
            check_json(piece)
            self.evidence.misses.append(Miss(line.typed()[1], ts))
            number = self._misses[key] = len(self.evidence.misses) - 1
        process = self._process(line)
        process.take(line)
        process.miss_lines.add(MissLine(line.seq, number, line.count, line.at_exit))
        if line.count > process.misses.get(number, 0):
            process.misses[number] = line.count
