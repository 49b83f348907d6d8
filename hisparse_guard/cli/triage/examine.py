"""Triage of whole logs: files read, records put together, runs told apart and judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hisparse_guard.cli.logs import reader
from hisparse_guard.cli.logs.container_prefixes import Unwrapper
from hisparse_guard.cli.logs.reader import LogFile, Progress
from hisparse_guard.cli.logs.split_lines import Joiner
from hisparse_guard.cli.triage import evidence as guard
from hisparse_guard.cli.triage import load_results
from hisparse_guard.cli.triage.catalogue import Catalogue, load
from hisparse_guard.cli.triage.records import Recorder, continues, is_later_line
from hisparse_guard.cli.triage.runs_by_pod import Runs
from hisparse_guard.cli.triage.scan import Scanner, answer_offsets, last_lines
from hisparse_guard.cli.triage.verdict import EXIT_CODES, Judged, judge, overall

# A line of this length and more may be cut by whoever carried it.
_LONG = 4000
# After this many records of trouble in a run, more of the same has nothing to say.
_STORM = 2000
# Lines of an open traceback that are followed.
_FOLLOW = 400


@dataclass
class Triage:
    """The answer to the question what these logs show."""

    files: list[LogFile]
    runs: list[Judged]
    load: list[load_results.LoadResult]
    evidence: guard.Evidence | None
    verdict: str
    reasons: list[str]
    dropped: int = 0

    @property
    def exit_code(self) -> int:
        """0 shown to be healthy, 1 a fault named, 3 no log, 4 not shown to be healthy."""
        return EXIT_CODES[self.verdict]

    def to_json(self) -> dict[str, object]:
        """The whole answer; the fields are described in docs/triage.md."""
        from hisparse_guard.cli.triage.schema import to_json

        return to_json(self)


@dataclass
class LogReader:
    """Reads the lines of one log, or of the consecutive pieces of one."""

    catalogue: Catalogue
    runs: Runs = field(init=False)

    def __post_init__(self) -> None:
        self.runs = Runs(self.catalogue)
        self.recorder = Recorder(self.runs.take, self._is_known_exception)
        self.scanner = Scanner(self.catalogue)
        self.unwrapper = Unwrapper()
        self.order = 0
        self.before = b""

    def _is_known_exception(self, text: str) -> bool:
        return bool(self.catalogue.matchers["exception"].set.Match(text))

    def read(self, log: LogFile, blocks: Iterable[tuple[bytes, int]]) -> None:
        """Reads one file's blocks."""
        joiner = Joiner()
        base = self.order
        for data, first in blocks:
            self._block(log, joiner.join(data), first, base)
            self.before = data[data.rfind(b"\n", 0, len(data) - 1) + 1 :]
        self.order = base + log.lines + 1
        self.recorder.flush()

    def _block(self, log: LogFile, data: bytes, first: int, base: int) -> None:
        done = 0
        number, counted = first, 0
        several = self.runs.several
        extra = sorted(
            {*([] if several else answer_offsets(data)), *last_lines(data)}, reverse=True
        )
        run = self.runs.current
        if run is not None and not several and run.trouble_count >= _STORM:
            self.scanner.saturate(frozenset(run.seen))
        else:
            self.scanner.calm()
        if first == 1:
            extra.append(0)
        for hit in self._merged(data, extra, several):
            if hit < done:
                continue
            start = data.rfind(b"\n", 0, hit) + 1
            follow = 0
            while start < len(data):
                end = data.find(b"\n", start)
                end = len(data) if end < 0 else end
                number += data.count(b"\n", counted, start)
                counted = start
                self._line(log, data, start, end, number, base)
                done = start = end + 1
                follow += 1
                if not self.recorder.in_traceback or follow > _FOLLOW:
                    break

    def _merged(self, data: bytes, extra: list[int], several: bool) -> Iterator[int]:
        """Hits of the search and the lines of answers, in order."""
        for hit in self.scanner.hits(data, several):
            while extra and extra[-1] < hit:
                yield extra.pop()
            yield hit
        while extra:
            yield extra.pop()

    def _line(
        self, log: LogFile, data: bytes, start: int, end: int, number: int, base: int
    ) -> None:
        begun = data.rfind(b"\n", 0, start - 1) + 1 if start else 0
        before = data[begun:start] if start else self.before
        row = self.unwrapper.row(log.name, number, base + number, data[start:end])
        if continues(before) and is_later_line(
            self.unwrapper.row(log.name, number - 1, 0, before.rstrip(b"\n")), row
        ):
            return
        if row.cut:
            log.note("lines that are cut off are not believed")
        row.cut = row.cut or (number == 1 and base == 0 and self.runs.may_be_cut(row))
        self.recorder.row(row, after_long=len(before) > _LONG)


def triage(
    paths: Sequence[str],
    *,
    evidence: Sequence[str] = (),
    symptoms: Sequence[str] = (),
    joined: bool = False,
    tick: Callable[[Progress], None] | None = None,
) -> Triage:
    """Says what logs show.

    Args:
        paths: logs, packed or not, `-` for standard input, and load results beside them.
        evidence: files or folders of guard evidence, judged by `report`.
        symptoms: what the operator saw and no log says; of `verdict.SYMPTOMS`.
        joined: the files are consecutive pieces of one log, oldest first.
        tick: called as reading goes on.

    Raises:
        reader.Unreadable: a path does not exist or may not be read.
        catalogue.CatalogueError: the catalogue cannot be read.
    """
    catalogue = load()
    sizes = [Path(name).stat().st_size for name in paths if name != "-" and Path(name).is_file()]
    progress = Progress(total=sum(sizes) or None, tick=tick)
    files: list[LogFile] = []
    results: list[load_results.LoadResult] = []
    readers: list[LogReader] = []
    for name in paths:
        log = LogFile(name)
        files.append(log)
        result = _load_result(name)
        if result is not None:
            log.kind = f"load result ({result.kind})"
            results.append(result)
            continue
        if not joined or not readers:
            readers.append(LogReader(catalogue))
        _read(name, log, readers[-1], progress)
    found = [run for one in readers for run in one.runs.kept()]
    for log in files:
        if log.kind == "log" and not log.bytes:
            log.kind = "empty"
        elif log.kind == "log" and not any(run.first.file == log.name for run in found):
            log.kind = "piece of a log" if joined and found else "not a vLLM log"
    told = guard.read(evidence) if evidence else None
    judged = [
        judge(run, symptoms, told.vouches_for(run, len(found)) if told else frozenset())
        for run in found
    ]
    verdict, reasons = overall(judged, results, told.report.exit_code if told else None)
    if told is not None:
        reasons += told.remarks(found)
    dropped = sum(one.runs.dropped for one in readers)
    return Triage(files, judged, results, told, verdict, reasons, dropped)


def _load_result(name: str) -> load_results.LoadResult | None:
    path = Path(name)
    if name == "-" or not path.is_file() or path.stat().st_size > load_results.LARGEST:
        return None
    stream = reader.open_log(name)
    with stream:
        return load_results.read(name, stream.read().decode("utf-8", "replace"))


def _read(name: str, log: LogFile, into: LogReader, progress: Progress) -> None:
    stream = reader.open_log(name)
    try:
        into.read(log, reader.blocks(stream, log, progress.step))
    finally:
        if name != "-":
            stream.close()


def worst_run(result: Triage) -> Judged | None:
    """The run to lead with: the last one of the worst verdict."""
    from hisparse_guard.cli.triage.verdict import WORST

    for verdict in WORST:
        for judged in reversed(result.runs):
            if judged.verdict == verdict:
                return judged
    return None
