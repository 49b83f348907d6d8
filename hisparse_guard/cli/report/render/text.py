"""The report for a terminal or a log."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hisparse_guard.cli.output import plural, print_table, printable
from hisparse_guard.cli.report.exit_codes import EXIT_CODES, MEANING, Verdict
from hisparse_guard.cli.report.history import misses_of
from hisparse_guard.cli.report.model import Process
from hisparse_guard.cli.report.ranks import ranges
from hisparse_guard.cli.report.render.common import (
    TONE,
    clock,
    facts,
    kernel_meanings,
    notes,
    remarks,
    workspace,
)
from hisparse_guard.cli.report.report import Report, Result

_STYLE = {"bad": "bold red", "warn": "bold yellow", "good": "bold green", "calm": "bold"}

# Beyond so many workers in all, equal ones share a row; beyond so many servers, those that are
# well have no table.
_FOLD_BEYOND = 16
_TABLES_BEYOND = 20
_MOST_MISSES = 5
_MOST_REMARKS = 20
# Facts of a server that its table has no columns for.
_COMMON = ("vLLM", "build class", "FlashInfer", "kernel class", "guard")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # Rich would exit with 1, which is a verdict here.
        raise BrokenPipeError


def print_report(report: Report) -> None:
    """Prints the report to standard output."""
    console: Console = _Console(highlight=False, soft_wrap=False)
    if not console.is_terminal:
        # A log or a pipe has no width: fold nothing that would fit on a screen.
        console = _Console(highlight=False, width=160)
    _Printer(console).report(report)


def _style(verdict: Verdict) -> str:
    return _STYLE[TONE[verdict]]


@dataclass
class _Printer:
    console: Console

    def say(self, text: str, style: str = "", *, indent: int = 0, rest: str = "") -> None:
        """One line; names from evidence never reach a terminal raw."""
        line = Text.assemble((printable(text), style), printable(rest))
        self.console.print(Padding(line, (0, 0, 0, indent), expand=False))

    def report(self, report: Report) -> None:
        self.say(report.verdict, _style(report.verdict), rest=f": {MEANING[report.verdict]}")
        fold = sum(len(result.server.workers) for result in report.results) > _FOLD_BEYOND
        for result in report.results:
            self.console.print()
            self._server(result)
            if len(report.results) > _TABLES_BEYOND and EXIT_CODES[result.judgement.verdict] == 0:
                continue
            self._details(result, fold)
            self._misses(report, result)
        about = remarks(report)
        if about:
            self.console.print()
            self.say("about the evidence:")
            for remark in about[:_MOST_REMARKS]:
                self.say(remark, indent=2)
            if len(about) > _MOST_REMARKS:
                self.say(f"and {len(about) - _MOST_REMARKS} more (--json has all)", indent=2)
        found = report.evidence
        self.console.print()
        self.say(
            f"{plural(found.files, 'file')}, {plural(found.lines, 'line')}, "
            f"{plural(len(found.processes), 'process', 'processes')}",
            "dim",
        )

    def _server(self, result: Result) -> None:
        server, judgement = result.server, result.judgement
        over = "" if server.latest else " (ended, or followed by a later run)"
        self.say(
            judgement.verdict,
            _style(judgement.verdict),
            rest=f"  {server.model or 'model unknown'} on {', '.join(server.hosts)}, "
            f"started {clock(server.start)} UTC{over}",
        )
        for reason in judgement.reasons:
            self.say(reason, indent=2)
        for note in notes(server):
            self.say(note, "dim", indent=2)
        if judgement.advice:
            self.say(f"do: {judgement.advice}", "bold", indent=2)

    def _details(self, result: Result, fold: bool) -> None:
        server = result.server
        common = ", ".join(
            f"{name} {' and '.join(values)}" for name, values in facts(server) if name in _COMMON
        )
        if common:
            self.say(common, "dim", indent=2)
        for meaning in kernel_meanings(server):
            self.say(f"kernel class {meaning}", "dim", indent=2)
        if server.workers:
            self._table(result, fold)
        if server.others:
            others = plural(len(server.others), "other process", "other processes")
            self.say(f"and {others}, not judged as workers", "dim", indent=2)

    def _table(self, result: Result, fold: bool) -> None:
        one_host = len(result.server.hosts) == 1
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for column in ("rank", "verdict", "workspace", "pinned", "vLLM alone", "misses"):
            table.add_column(column, overflow="fold")
        for column in ("mode", "pid") if one_host else ("mode", "pid", "host"):
            table.add_column(column, overflow="fold")
        for row, verdict in _rows(result, fold):
            cells = row[:-1] if one_host else row
            table.add_row(
                *(
                    Text(printable(cell), style=_style(verdict) if at == 1 else "")
                    for at, cell in enumerate(cells)
                )
            )
        if missing := result.judgement.missing:
            table.add_row(Text(ranges(missing)), Text("no evidence", style=_STYLE["bad"]))
        print_table(self.console, Padding(table, (0, 0, 0, 2), expand=False))

    def _misses(self, report: Report, result: Result) -> None:
        misses = misses_of(result.server, report.evidence.misses)
        if misses:
            self.say("config asked for outside its context, by:", indent=2)
        for miss in misses[:_MOST_MISSES]:
            self.say(
                f"{miss.event.where}: {plural(miss.count, 'time')}, {miss.who}; {miss.answered}",
                indent=4,
            )
        if len(misses) > _MOST_MISSES:
            more = len(misses) - _MOST_MISSES
            self.say(f"and {more} more (--html has all, with stacks)", indent=4)


def _rows(result: Result, fold: bool) -> list[tuple[list[str], Verdict]]:
    folded: dict[tuple[str, ...], list[tuple[Process, Verdict]]] = {}
    verdicts = result.judgement.workers
    for number, (process, verdict) in enumerate(zip(result.server.workers, verdicts, strict=True)):
        same: tuple[str, ...] = (
            verdict,
            workspace(process),
            process.pinned or "-",
            ", ".join(process.upstream) or "-",
            str(process.miss_count),
            process.mode or "?",
        )
        folded.setdefault(same if fold else (*same, str(number)), []).append((process, verdict))
    rows: list[tuple[list[str], Verdict]] = []
    for cells, members in folded.items():
        first, verdict = members[0]
        known = [process.rank for process, _ in members if process.rank is not None]
        world = first.world_size
        rank = (ranges(known) or "?") + (f"/{world}" if world and len(members) == 1 else "")
        hosts = sorted({process.host for process, _ in members})
        host = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
        pid = str(first.pid) if len(members) == 1 else f"{len(members)} processes"
        rows.append(([rank, *cells[:6], pid, host], verdict))
    return rows
