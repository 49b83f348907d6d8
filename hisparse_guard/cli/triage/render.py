"""The answer as text for a person: what an operator asks, on at most 25 lines."""

from __future__ import annotations

import textwrap
from collections import Counter

from hisparse_guard.cli.output import plural
from hisparse_guard.cli.triage.checklist import checklist
from hisparse_guard.cli.triage.examine import Triage, worst_run
from hisparse_guard.cli.triage.model import Place
from hisparse_guard.cli.triage.shown import shown, where
from hisparse_guard.cli.triage.verdict import (
    FAULT,
    HEALTHY,
    INCONCLUSIVE,
    NO_LOG,
    UNKNOWN,
    Finding,
    Judged,
)

WIDTH = 100
PAGE = 25
_MOST_RUNS = 20

_ANSWERS = {
    HEALTHY: "Yes, up to the last line of the log: it came up, it answered, no trouble.",
    FAULT: "No: a known fault.",
    UNKNOWN: "No: trouble that triage does not know.",
    INCONCLUSIVE: "Not shown: this log does not tell.",
    NO_LOG: "Cannot tell: no line of a vLLM server in what was given.",
}
_NO_END = (
    "Its end is not in the log. Whether it lives after that line no log tells: one that was "
    "killed without a word leaves the same. Ask it: hisparse-guard probe --base-url URL"
)
_UNKNOWN_STEPS = (
    "Read the first trouble above and the lines before it; it is the one to search for",
    "Report it with the whole log, versions and flags",
)
_INCONCLUSIVE_STEPS = (
    "Give the whole log, from the start of the server on, with requests in it",
    "Ask the server itself: hisparse-guard probe --base-url URL",
)


def page(result: Triage, verbose: bool) -> str:
    """The whole answer as text, ending without a newline; 25 lines unless `verbose`."""
    lead = worst_run(result)
    out = [f"Is this server all right?  {_ANSWERS[result.verdict]}"]
    out += _wrapped("  ", [shown(reason) for reason in result.reasons][:3], 4)
    if lead is not None:
        out += _lead(result, lead)
    notes = [
        f"  {shown(log.name, 60)}: {shown(note, 160)}" for log in result.files for note in log.notes
    ]
    if not verbose:
        out += notes[:2]
        if len(out) >= PAGE:
            out = out[: PAGE - 1]
        return "\n".join([*out, "More: --verbose (all runs, evidence, checklist) or --json"])
    out += notes
    for log in result.files:
        out.append(f"{shown(log.name, 200)}: {log.kind}, {plural(log.lines, 'line')}")
    for judged in result.runs[:_MOST_RUNS]:
        out += ["", *_run(result, judged)]
    more = len(result.runs) - _MOST_RUNS + result.dropped
    if more > 0:
        out += ["", f"{plural(more, 'more run')}, not shown"]
    for loaded in result.load:
        counts = f"{loaded.done} done, {loaded.failed} failed"
        out += ["", f"{shown(loaded.file, 200)}: load of {loaded.kind}: {counts}"]
    return "\n".join(out)


def _wrapped(indent: str, texts: list[str], most: int) -> list[str]:
    lines = [line for text in texts for line in textwrap.wrap(text, WIDTH - len(indent))]
    return [f"{indent}{line}" for line in lines[:most]]


def _name(judged: Judged) -> str:
    run = judged.run
    origin = f"{shown(run.origin, 80)}, " if run.origin else ""
    return f"{origin}run {run.number}"


def _lead(result: Triage, judged: Judged) -> list[str]:
    """What the worst run says: what came first, what it is, what to do."""
    out: list[str] = []
    if len(result.runs) > 1:
        counts = Counter(one.verdict for one in result.runs)
        told = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
        total = len(result.runs) + result.dropped
        out.append(f"Runs       {total} in all ({told}); below: {_name(judged)}")
    out += _first(judged)
    main = judged.main
    if main is not None:
        out += _what(judged, main)
        steps: tuple[str, ...] = main.fault.next_steps
    elif judged.verdict == HEALTHY:
        return out + _until(judged) + _notices(judged)
    else:
        why = _wrapped("           ", [shown("; ".join(judged.reasons), 300)], 3)
        out += [f"Why        {why[0].strip()}", *why[1:]]
        steps = _UNKNOWN_STEPS if judged.verdict == UNKNOWN else _INCONCLUSIVE_STEPS
    out.append("What now")
    for number, step in enumerate(steps[:3], 1):
        lines = textwrap.wrap(step, WIDTH - 5)[:3]
        out += [f"  {number}. {lines[0]}", *(f"     {line}" for line in lines[1:])]
    return out + _notices(judged)


def _until(judged: Judged) -> list[str]:
    """How far a healthy log goes, and what it cannot tell."""
    run = judged.run
    out = [f"Answered   last at {where(run.last_answer)}"] if run.last_answer else []
    if run.shutdown_done is not None:
        return [*out, f"Stopped    told to, and done at {where(run.shutdown_done)}"]
    if run.last is not None:
        out.append(f"Ends       {where(run.last)}")
    return out + _wrapped("           ", [_NO_END], 3)


def _first(judged: Judged) -> list[str]:
    run, trouble = judged.run, judged.run.first_trouble()
    stall = judged.stall
    if stall is not None and (trouble is None or stall.since.order < trouble.place.order):
        length = f" for {stall.seconds} s" if stall.seconds is not None else ""
        return [
            f"First      {where(stall.since)}",
            f"           stands still since then{length}: {stall.what}",
        ]
    if trouble is None:
        return []
    out = [f"First      {where(trouble.place)}", f"           {shown(trouble.what, WIDTH - 12)}"]
    if trouble.frame:
        out.append(f"Frame      {shown(trouble.frame, WIDTH - 12)}")
    answered = run.last_answer
    if answered is not None and answered.order < trouble.place.order:
        out.append("           it had answered requests before")
    return out


def _what(judged: Judged, main: Finding) -> list[str]:
    out = [f"What       {main.fault.id}: {main.fault.title}"]
    shows = "; ".join([*main.when.proven])
    out += _wrapped("           ", [f"{main.certainty}: {shows}"], 3)
    open_points = [*main.doubts, *main.when.likely]
    if open_points:
        out += _wrapped("           ", [f"not shown: {'; '.join(open_points)}"], 2)
    lines = ", ".join(f"{shown(p.file, 60)}:{p.number}" for p in main.evidence[:5])
    if lines:
        out.append(f"Lines      {lines}")
    follow = [one.fault.id for one in judged.findings if one is not main]
    if follow:
        out += _wrapped("           ", [f"also: {', '.join(follow)}"], 1)
    return out + _wrapped("           ", judged.circumstances, 2)


def _notices(judged: Judged) -> list[str]:
    return [f"Notice     {one.fault.id}: {one.fault.title}"[:WIDTH] for one in judged.notices[:1]]


def _run(result: Triage, judged: Judged) -> list[str]:
    run = judged.run
    begun = f", begun by: {shown(run.begun_by, 200)}" if run.begun_by else ""
    last = run.last or run.first
    out = [
        f"{_name(judged)}: lines {run.first.number} to {last.number} of "
        f"{shown(run.first.file, 200)}{begun}",
        f"  {judged.verdict}: {shown('; '.join(judged.reasons), 600)}",
    ]
    for finding in [*judged.findings, *judged.notices]:
        out += _finding(finding)
    if run.troubles:
        out.append(f"  Trouble ({run.trouble_count} records; of many alike not all are counted)")
        out += [f"    {_line(one.place, one.what)}" for one in run.troubles[:12]]
    for why, count in run.harmless.items():
        out.append(f"  {plural(count, 'error')} that say nothing against the server: {why}")
    out.append("  Facts")
    for name, fact in run.facts.values.items():
        out.append(f"    {name}: {shown(fact.value, 120)}  (line {fact.place.number})")
    out.append("  Checklist of the host-mirror deployment")
    for item in checklist(run, judged.present):
        expected = "" if item.state == "ok" else f" [expected: {item.expected}]"
        found = f": {shown(item.found, 120)}" if item.found else ""
        out.append(f"    {item.state:<8} {item.name}{found}{expected}")
    return out


def _line(place: Place, text: str) -> str:
    return f"{where(place)}: {shown(text, 200)}"


def _finding(finding: Finding) -> list[str]:
    fault = finding.fault
    follows = f", follows from {finding.follows_from}" if finding.follows_from else ""
    out = [f"  {fault.id} ({finding.certainty}{follows}): {fault.title}"]
    out += _wrapped("    ", [" ".join(fault.meaning.split())], 12)
    for title, texts in (
        ("shown", finding.when.proven),
        ("not shown", (*finding.doubts, *finding.when.likely)),
        ("not proven by anybody", fault.unproven),
        ("next", fault.next_steps),
        ("source", fault.sources),
    ):
        out += [f"    {title}: {text}" for text in texts]
    if finding.ranks:
        out.append(f"    ranks: {', '.join(shown(rank, 40) for rank in finding.ranks[:32])}")
    out += [f"    {_line(place, place.text)}" for place in finding.evidence]
    return out
