"""Tells servers and their runs apart: by pod or container, by starts, by process ids.

Two pods are never one server. A run begins with the first line of a server, with a start that
vLLM logs, or where a process of the same name has another process id.
"""

from __future__ import annotations

from hisparse_guard.cli.logs.heads import parse
from hisparse_guard.cli.logs.model import Row
from hisparse_guard.cli.triage.catalogue import Catalogue
from hisparse_guard.cli.triage.facts import start_marker
from hisparse_guard.cli.triage.model import Record
from hisparse_guard.cli.triage.server_run import Run

# Runs that are kept one by one; a crash loop has thousands, all alike.
_MOST_RUNS = 200
_MOST_ORIGINS = 2000


class Runs:
    """Takes the records of one log, in order, and keeps its runs apart."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.runs: list[Run] = []
        self.by_origin: dict[str | None, Run] = {}
        # Where a line of a vLLM server came from.
        self.servers: set[str | None] = set()
        self.before: dict[str | None, Run] = {}
        self.numbers: dict[str | None, int] = {}
        self.current: Run | None = None
        self.dropped = 0

    @property
    def several(self) -> bool:
        """True where the log holds lines of several pods or containers."""
        return len(self.by_origin) > 1

    def kept(self) -> list[Run]:
        """The runs in which a line of a vLLM server is."""
        kept = [run for run in self.runs if run.recognised]
        # Of no pod: by whoever ran all of them.
        others = [run for run in self.runs if not run.recognised and run.origin is None]
        return kept + [one for one in others if kept and (one.troubles or self._ends_with(one))]

    def _ends_with(self, run: Run) -> bool:
        return run is self.current and run.behind is not None

    def may_be_cut(self, row: Row) -> bool:
        """True for a first line that may be the rest of a longer one."""
        head = parse(row.texts[0]) if row.texts else None
        return head is not None and head.kind == "bare" and "File " not in head.message[:8]

    def take(self, record: Record) -> None:
        """Adds a record to the run that it belongs to."""
        run = self._run_of(record)
        run.take(record)
        if run.recognised:
            self.servers.add(run.origin)

    def _run_of(self, record: Record) -> Run:
        origin = self._origin(record)
        run = self.by_origin.get(origin)
        marker = None
        if (
            not record.cut
            and record.kind in ("api", "engine", "main", "bare")
            and not record.severe
        ):
            marker = start_marker(record.message)
        if run is None:
            run = self._begin(record, origin, None)
        elif marker and (why := self._starts_again(run, record, marker)):
            run = self._begin(record, origin, why)
        elif why := self._other_process(run, record):
            late = self.before.get(origin)
            if late is not None and late.pids.get(record.label or "") == record.pid:
                return late
            run = self._begin(record, origin, why)
        if marker:
            run.markers.setdefault(marker, (record.label, record.pid))
        self.current = run
        return run

    def _origin(self, record: Record) -> str | None:
        """The server of a record: who runs it speaks of the only one there is."""
        ran = record.kind in ("system", "bare") and record.origin is None
        if ran and len(self.servers) == 1:
            return next(iter(self.servers))
        if record.origin not in self.by_origin and len(self.by_origin) >= _MOST_ORIGINS:
            return "(more pods)"
        return record.origin

    def _starts_again(self, run: Run, record: Record, marker: str) -> str | None:
        """Why a step of a start begins another run, or None."""
        known = run.markers.get(marker)
        if marker == "engine":
            # Each data-parallel rank has an engine of its own.
            same = known is not None and known[0] == record.label
            return f"{record.label or 'the engine'} starts again" if same else None
        began_already = known is not None or "engine" in run.markers
        if began_already or run.up or run.troubles:
            return "vLLM starts again"
        return None

    def _other_process(self, run: Run, record: Record) -> str | None:
        """Why a process id shows that this is another run, or None."""
        label = record.label
        if label is None or record.pid is None or record.kind not in ("engine", "worker"):
            return None
        known = run.pids.get(label)
        # Ray's workers, and those that have no rank yet, share a name.
        if known is None or known == record.pid or not label[-1:].isdigit():
            return None
        return f"{label} is now process {record.pid}, was {known}"

    def _begin(self, record: Record, origin: str | None, why: str | None) -> Run:
        self.numbers[origin] = number = self.numbers.get(origin, 0) + 1
        run = Run(self.catalogue, origin, number, record.place(), why)
        if origin in self.by_origin:
            self.before[origin] = self.by_origin[origin]
            self.before[origin].restarted = True
        if len(self.runs) >= _MOST_RUNS:
            del self.runs[_MOST_RUNS // 2]
            self.dropped += 1
        self.runs.append(run)
        self.by_origin[origin] = run
        return run
