"""The report as a table for a terminal, a page, and metrics for node_exporter."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from hisparse_guard import __version__
from hisparse_guard.cli.output import plural
from hisparse_guard.cli.report.life import Life, moment
from hisparse_guard.cli.report.reading import NAME
from hisparse_guard.cli.report.verdict import (
    EXIT_CODES,
    MEANING,
    Report,
    Server,
    Verdict,
    _ranks,
    effective,
    judge_worker,
    ranges,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from rich.console import Console

# Tones of the page; the terminal has the same in its own colours.
TONE: dict[str, str] = {
    "unsafe": "bad",
    "disagreement": "bad",
    "partly guarded": "bad",
    "failed": "warn",
    "unproven": "warn",
    "safe": "good",
    "not HiSparse": "calm",
    "no evidence": "warn",
}
_STYLE = {"bad": "bold red", "warn": "bold yellow", "good": "bold green", "calm": "bold"}

# Beyond so many workers in all, equal ones share a row; beyond so many servers, those that are
# well have no table.
_FOLD_BEYOND = 16
_TABLES_BEYOND = 20
_MOST_MISSES = 5
# Facts of a server that its table has no columns for.
_COMMON = ("vLLM", "build class", "FlashInfer", "guard")
_PAGE_WORKERS = 2000
_PAGE_MISSES = 300


def workspace(life: Life) -> str:
    """The workspace of one worker, in words."""
    serves = effective(life)
    if life.workspace is not None:
        how = "verified" if life.workspace in life.verified else "made"
        others = [b for b in life.workspaces if b != life.workspace]
        return f"{life.workspace} ({how})" + (f"; also {', '.join(others)}" if others else "")
    if serves == "failed":
        return "failed: " + (life.failure or "no reason given")
    return "off" if serves == "none" else "none yet"


def remarks(report: Report) -> list[str]:
    """What the operator should know of the evidence itself."""
    reading = report.reading
    found = []
    if not reading.files:
        found.append(
            f"no file here is named {NAME}: is HISPARSE_GUARD_EVIDENCE_DIR set for the server, and "
            "is the guard in it (hisparse-guard doctor)?"
        )
    for name in reading.torn:
        found.append(f"{name}: the last line is cut short (killed, or being written just now)")
    if reading.unknown_schema:
        found.append(
            f"{reading.unknown_schema} lines of an evidence schema that this version does not "
            "know were left out: use a newer hisparse-guard to read them"
        )
    for event, count in sorted(reading.unknown_events.items()):
        found.append(f"{count} lines of the unknown event {event!r} were left out")
    return found + [str(problem) for problem in reading.problems]


def clock(stamp: str | None) -> str:
    """An evidence time to the millisecond, without its zone, which is UTC."""
    at = moment(stamp)
    if at is None:
        return stamp or "at an unknown time"
    try:
        parsed = datetime.fromtimestamp(at, timezone.utc)
    except (OverflowError, OSError, ValueError):
        return stamp or ""
    return parsed.strftime("%Y-%m-%d %H:%M:%S.") + f"{parsed.microsecond // 1000:03d}"


def facts(server: Server) -> list[tuple[str, list[str]]]:
    """What the processes of a server have in common, or do not: each distinct value."""

    def distinct(values: Iterable[str | None]) -> list[str]:
        return sorted({value for value in values if value})

    lives = server.lives
    settings = Counter(
        f"{name}={value}" for life in lives for name, value in sorted(life.environment.items())
    )
    rows = [
        ("vLLM", distinct(life.vllm_version for life in lives)),
        ("build class", distinct(life.build_class for life in lives)),
        ("FlashInfer", distinct(life.flashinfer_version for life in lives)),
        ("guard", distinct(life.guard_version for life in lives)),
        ("mode", distinct(life.mode for life in server.workers)),
        ("armed by", distinct(life.how for life in lives)),
        ("rule", distinct(life.rule for life in server.workers)),
        ("environment", sorted(settings)),
    ]
    return [(name, values) for name, values in rows if values]


def page(report: Report) -> Iterator[str]:
    """The report as one self-contained HTML page, in parts."""
    from hisparse_guard.cli.output import page_parts

    counts = Counter(server.verdict for server in report.servers)
    return page_parts(
        "report.html.j2",
        report=report,
        counts=", ".join(f"{counts[word]} {word}" for word in EXIT_CODES if counts[word]),
        meaning=MEANING,
        tone=TONE,
        version=__version__,
        written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC"),
        remarks=remarks(report),
        clock=clock,
        facts=facts,
        judge_worker=judge_worker,
        ranks=_ranks,
        workspace=workspace,
        most_workers=_PAGE_WORKERS,
        most_misses=_PAGE_MISSES,
    )


def terminal(report: Report, console: Console) -> None:
    """Prints the report for a person."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from hisparse_guard.cli.output import print_table

    def say(*parts: str | tuple[str, str], indent: int = 0) -> None:
        console.print(Padding(Text.assemble(*parts), (0, 0, 0, indent), expand=False))

    def style(verdict: Verdict) -> str:
        return _STYLE[TONE[verdict]]

    say((report.verdict, style(report.verdict)), f": {MEANING[report.verdict]}")
    fold = sum(len(server.workers) for server in report.servers) > _FOLD_BEYOND
    for server in report.servers:
        console.print()
        latest = "" if server.latest else " (an earlier run)"
        say(
            (server.verdict, style(server.verdict)),
            f"  {server.model or 'model unknown'} on {', '.join(server.hosts)}, "
            f"started {clock(server.start)} UTC{latest}",
        )
        for reason in server.reasons:
            say(reason, indent=2)
        for note in server.notes:
            say((note, "dim"), indent=2)
        if server.advice:
            say((f"do: {server.advice}", "bold"), indent=2)
        if len(report.servers) > _TABLES_BEYOND and EXIT_CODES[server.verdict] == 0:
            continue
        common = ", ".join(
            f"{name} {' and '.join(values)}" for name, values in facts(server) if name in _COMMON
        )
        if common:
            say((common, "dim"), indent=2)
        if server.workers:
            one_host = len(server.hosts) == 1
            table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
            for column in ("rank", "verdict", "workspace", "pinned", "vLLM alone", "misses"):
                table.add_column(column, overflow="fold")
            for column in ("mode", "pid") if one_host else ("mode", "pid", "host"):
                table.add_column(column, overflow="fold")
            for row, verdict in _rows(server, fold):
                table.add_row(
                    *(
                        Text(cell, style=style(verdict) if at == 1 else "")
                        for at, cell in enumerate(row[:-1] if one_host else row)
                    )
                )
            if server.missing:
                table.add_row(
                    Text(ranges(server.missing)), Text("no evidence", style=_STYLE["bad"])
                )
            print_table(console, Padding(table, (0, 0, 0, 2), expand=False))
        if server.others:
            others = plural(len(server.others), "other process", "other processes")
            say((f"and {others}, not judged", "dim"), indent=2)
        misses = server.misses(report.reading.sites)
        if misses:
            say("config asked for outside its context:", indent=2)
        for miss in misses[:_MOST_MISSES]:
            site = miss.site
            chosen = (
                "traced"
                if site.origin == "trace"
                else f"vLLM alone: {site.vllm_alone or 'none'}, used: {site.used or 'none'}"
            )
            say(
                f"{site.where}: {plural(miss.count, 'time')}, {_ranks(miss.lives)}; {chosen}",
                indent=4,
            )
        if len(misses) > _MOST_MISSES:
            say(f"and {len(misses) - _MOST_MISSES} more (--html has all, with stacks)", indent=4)
    about = remarks(report)
    if about:
        console.print()
        say("about the evidence:")
        for remark in about[:20]:
            say(remark, indent=2)
        if len(about) > 20:
            say(f"and {len(about) - 20} more (--json has all)", indent=2)
    reading = report.reading
    console.print()
    say(
        (
            f"{plural(reading.files, 'file')}, {plural(reading.lines, 'line')}, "
            f"{plural(len(reading.lives), 'process', 'processes')}",
            "dim",
        )
    )


def _rows(server: Server, fold: bool) -> list[tuple[list[str], Verdict]]:
    folded: dict[tuple[str, ...], list[Life]] = {}
    for number, life in enumerate(server.workers):
        same: tuple[str, ...] = (
            judge_worker(life),
            workspace(life),
            life.pinned or "-",
            ", ".join(life.alone) or "-",
            str(life.misses),
            life.mode or "?",
        )
        folded.setdefault(same if fold else (*same, str(number)), []).append(life)
    rows: list[tuple[list[str], Verdict]] = []
    for cells, lives in folded.items():
        known = [life.rank for life in lives if life.rank is not None]
        world = lives[0].world_size
        rank = (ranges(known) or "?") + (f"/{world}" if world and len(lives) == 1 else "")
        hosts = sorted({life.host for life in lives})
        host = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
        pid = str(lives[0].pid) if len(lives) == 1 else f"{len(lives)} processes"
        rows.append(([rank, *cells[:6], pid, host], judge_worker(lives[0])))
    return rows


def metrics(report: Report) -> CollectorRegistry:
    """The report as gauges, for node_exporter's textfile collector.

    Older runs of a server stay in as long as their evidence is kept; alert on
    ``latest="true"``.
    """
    from prometheus_client import CollectorRegistry, Gauge

    registry = CollectorRegistry()

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"hisparse_guard_{name}", text, labels, registry=registry)

    exit_code = gauge("report_exit_code", "Exit code of hisparse-guard report: 0 is fine.")
    exit_code.set(report.exit_code)
    gauge("report_timestamp_seconds", "When this report was made.").set_to_current_time()
    gauge("evidence_files", "Evidence files read.").set(report.reading.files)
    gauge("evidence_torn_files", "Evidence files with a last line cut short.").set(
        len(report.reading.torn)
    )
    gauge("evidence_problems", "Other problems with the evidence.").set(
        sum(problem.count for problem in report.reading.problems)
    )
    of_run = ("server", "model", "latest")
    verdicts = gauge("server_verdict", "1 for the verdict on a server.", *of_run, "verdict")
    ranks = gauge("server_ranks", "Ranks that reported, and that exist.", *of_run, "state")
    workers = gauge(
        "worker_verdict", "1 for the verdict on a worker.",
        *of_run, "host", "rank", "pid", "backend", "verdict",
    )  # fmt: skip
    misses = gauge(
        "worker_context_misses", "Times vLLM's config was asked for outside its context.",
        *of_run, "host", "rank", "pid",
    )  # fmt: skip
    for server in report.servers:
        run = (server.identifier, server.model or "", "true" if server.latest else "false")
        for verdict in EXIT_CODES:
            if verdict != "no evidence":
                verdicts.labels(*run, re.sub(r"\W", "_", verdict)).set(verdict == server.verdict)
        if server.workers:
            reported = {life.rank for life in server.lives if life.rank is not None}
            ranks.labels(*run, "reported").set(len(reported))
            if server.world_size is not None:
                ranks.labels(*run, "world").set(server.world_size)
        for life in server.workers:
            rank = "" if life.rank is None else str(life.rank)
            who = (*run, life.host, rank, "" if life.pid is None else str(life.pid))
            workers.labels(*who, effective(life) or "", re.sub(r"\W", "_", judge_worker(life))).set(
                1
            )
            misses.labels(*who).set(life.misses)
    return registry
