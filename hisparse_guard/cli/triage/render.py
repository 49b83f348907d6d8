"""The answer as text for a person."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from hisparse_guard.cli.output import plural
from hisparse_guard.cli.triage.core import (
    FAULT,
    HEALTHY,
    NO_LOG,
    UNKNOWN,
    Finding,
    Judged,
    Triage,
    facts_json,
    same_step,
)
from hisparse_guard.cli.triage.life import Life, Stats
from hisparse_guard.cli.triage.lines import Line, shown

WIDTH = 96
# Lives described in full; of a crash loop's others one line each.
FULL = 8

_FACT_TITLES = {
    "vllm_version": "vLLM",
    "commit": "commit",
    "flashinfer_version": "FlashInfer",
    "model": "model",
    "tensor_parallel_size": "tensor parallel size",
    "data_parallel_size": "data parallel size",
    "host_pool_gib": "host_pool_gib",
    "block_size": "block size",
    "cudagraph_mode": "CUDA graph mode",
    "enforce_eager": "enforce eager",
    "launch_blocking": "CUDA_LAUNCH_BLOCKING",
    "nccl_net_plugin": "NCCL_NET_PLUGIN",
    "allreduce_backend_env": "VLLM_FLASHINFER_ALLREDUCE_BACKEND",
}
_VERDICTS = {
    HEALTHY: "nothing wrong",
    FAULT: "a known fault",
    UNKNOWN: "a fault that is not in the catalogue",
    NO_LOG: "no vLLM log to judge",
}


def _wrapped(body: str, indent: str, first: str | None = None) -> str:
    return textwrap.fill(
        body,
        WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _list(title: str, words: Iterable[str]) -> list[str]:
    return [_wrapped(word, " " * 13, f"  {title:<9}- ") for word in words]


def _evidence(lines: Iterable[Line], files: bool) -> list[str]:
    out = []
    for line in lines:
        place = f"{line.file}:{line.number}" if files else str(line.number)
        out.append(f"    {place:>7}  {shown(line.text)}")
    return out


def _place(life: Life, line: Line | Stats) -> str:
    """Where a line of this life is, by its file where the life goes over several."""
    if (life.last or life.first).file == life.first.file:
        return f"line {line.number}"
    return f"{line.file}:{line.number}"


def _finding(finding: Finding, files: bool) -> list[str]:
    fault, when = finding.fault, finding.when
    word = "NOTICE" if when.effect == "notice" else "FAULT"
    if finding.follows_from:
        return [
            f"  {word:<7}{fault.title} ({fault.id}): follows from {finding.follows_from}",
        ]
    out = [f"  {word:<7}{fault.title}", f"         {fault.id}, {when.certainty}", ""]
    out += _list("proven", when.proven)
    out += _list("likely", when.likely)
    out += _list("unproven", fault.unproven)
    out.append("")
    out.append(_wrapped(fault.meaning, "  "))
    if finding.ranks:
        out.append(f"  Ranks: {', '.join(finding.ranks)}. Expected: {fault.ranks}.")
    else:
        out.append(f"  Ranks: not told by the log. Expected: {fault.ranks}.")
    out.append(f"  Builds concerned: {', '.join(fault.build_classes)}")
    if finding.evidence:
        out += ["", "  Lines"]
        out += _evidence(finding.evidence, files)
    out += ["", "  Next"]
    out += [_wrapped(step, " " * 7, f"    {n}. ") for n, step in enumerate(fault.next_steps, 1)]
    out += ["", "  Sources"]
    out += [f"    {source}" for source in fault.sources]
    return out


def _facts(life: Life) -> list[str]:
    data = facts_json(life)
    out = ["", "  Read from the log"]
    for name, title in _FACT_TITLES.items():
        if name in life.facts:
            place = _place(life, life.facts[name].line)
            out.append(f"    {title:<34} {data[name]['value']}  ({place})")
    if life.connectors:
        names = ", ".join(f"{name} ({_place(life, at)})" for name, at in life.connectors.items())
        out.append(f"    {'connectors':<34} {names}")
    if data["ranks_seen"]:
        out.append(f"    {'workers seen':<34} {', '.join(data['ranks_seen'])}")
    stats = data["last_statistics"]
    if life.last_stats:
        when = " before the fault" if life.first_fault else ""
        usage = stats["kv_cache_usage_percent"]
        out.append(
            f"    {'last statistics' + when:<34} running {stats['running']}, "
            f"waiting {stats['waiting']}, KV cache "
            f"{'?' if usage is None else usage} %, "
            f"{stats['generation_tokens_per_s']} tokens/s  ({_place(life, life.last_stats)})"
        )
        out.append(f"    {'preemptions':<34} {data['preemptions']}")
    if data["host_kv_usage_percent"] is not None:
        out.append(f"    {'HiSparse host KV usage':<34} {data['host_kv_usage_percent']} %")
    before = data["requests_answered_before_fault"]
    if before is not None:
        out.append(f"    {'requests answered before the fault':<34} {before}")
    elif data["requests_answered"]:
        out.append(f"    {'requests answered':<34} {data['requests_answered']}")
    if data["requests_failed"]:
        out.append(f"    {'requests answered with 5xx':<34} {data['requests_failed']}")
    failed = life.failed_ranks()
    if failed:
        ranks = ", ".join(
            f"{rank} ({line.time or _place(life, line)})" for rank, line in failed.items()
        )
        out.append(f"    {'ranks that failed, in order':<34} {ranks}")
        together = same_step(life)
        if together is not None:
            word = "yes, within one second" if together else "no"
            out.append(f"    {'all of them at once':<34} {word}")
    if life.first_fault:
        out.append(f"    {'first trouble':<34} {_place(life, life.first_fault)}")
        if life.first_fault_frame:
            out.append(f"    {'in':<34} {shown(life.first_fault_frame)}")
    return out if len(out) > 2 else []


def _checklist(judged: Judged) -> list[str]:
    out = [
        "",
        "  Deployment checklist (as in the host-mirror report; to differ is no fault)",
    ]
    for item in judged.checklist:
        found = "" if item.found is None else f": {item.found}"
        place = f"  ({_place(judged.life, item.line)})" if item.line else ""
        expected = "" if item.state == "ok" else f" [expected: {item.expected}]"
        out.append(f"    {item.state:<8} {item.name}{found}{expected}{place}")
    return out


def _life(name: str, judged: Judged, files: bool) -> list[str]:
    life = judged.life
    begun = f", begun by: {life.begun_by}" if life.begun_by else ""
    first, last = life.first, life.last or life.first
    lines = f"lines {first.number} to {last.number}"
    if last.number == first.number:
        lines = f"line {first.number}"
    if last.file != first.file:
        lines = f"{_place(life, first)} to {_place(life, last)}"
    place = f"{name} [{life.origin}]" if life.origin else name
    out = [
        "",
        f"{place}, life {life.number}: {lines}{begun}",
        f"  {_VERDICTS[judged.verdict]}",
        "",
    ]
    for finding in judged.findings:
        out += [*_finding(finding, files), ""]
    if judged.verdict == UNKNOWN:
        why = judged.why_unknown
        out.append(f"  {why[0].upper()}{why[1:]}{'' if judged.unexplained else ':'}")
        out += _evidence(life.fatal_lines()[:8], files)
        if life.exceptions:
            out.append("  First exceptions")
            out += _evidence(life.exceptions[:6], files)
        if life.requests_failed:
            failed = plural(life.requests_failed, "request")
            out.append(f"  {failed} answered with a 5xx status")
        out.append("  Next: report it with the whole log, versions and flags")
    if judged.verdict == HEALTHY or judged.unexplained:
        counts = facts_json(life)["backend_lines"]
        out.append(
            f"  Checked: {plural(counts['mnnvl'], 'line')} `backend=mnnvl`, "
            f"{plural(counts['trtllm'], 'line')} `backend=trtllm` (vLLM writes one a node), "
            f"{plural(life.count('cuda_error'), 'line')} with `CUDA error`, "
            f"{plural(len(life.fatal_lines()), 'line')} of any fatal kind"
        )
        if not counts["mnnvl"] and not counts["trtllm"]:
            out.append(
                "  No workspace line: this log does not say which all-reduce backend is used"
            )
        if life.error_count or life.exception_count:
            out.append(
                f"  {plural(life.error_count, 'other ERROR line')} and "
                f"{plural(life.exception_count, 'exception')}, none of a kind that ends a server:"
            )
            out += _evidence([*life.errors, *life.exceptions][:4], files)
    for notice in judged.notices:
        out += [*_finding(notice, files), ""]
    out += _facts(life)
    out += _checklist(judged)
    return out


def text(result: Triage) -> str:
    """The whole answer as text, ending without a newline."""
    from rich.filesize import decimal

    out: list[str] = []
    for log in result.files:
        lives = len(log.lives) + log.lives_dropped
        size = f"{decimal(log.bytes)}, {plural(log.lines, 'line')}" if log.bytes else "empty"
        what = f", {plural(lives, 'life', 'lives') if log.kind == 'log' else log.kind}"
        if log.kind == "log" and not lives:
            what = ", no start in it"
        out.append(f"{log.name}: {size}{what if log.bytes else ''}")
        out += [f"  {note}" for note in log.notes]
        if log.lives_dropped:
            dropped = plural(log.lives_dropped, "life", "lives")
            out.append(f"  {dropped} in the middle counted and not shown")
    files = len(result.files) > 1
    for number, (name, judged) in enumerate(result.lives):
        if number < FULL or number == len(result.lives) - 1:
            out += _life(name, judged, files)
        else:
            named = ", ".join(
                f"{finding.fault.id} ({finding.certainty})"
                for finding in judged.findings
                if not finding.follows_from
            )
            out.append(
                f"{name}, life {judged.life.number}, from line {judged.life.first.number}: "
                f"{named or _VERDICTS[judged.verdict]}"
            )
    for loaded in result.load:
        out += [
            "",
            f"{loaded.file}: load of {loaded.kind}: {loaded.done} done, {loaded.failed} failed",
        ]
        if loaded.partial:
            out.append("  partial: the load did not run to its end")
        for level in loaded.levels:
            if level.concurrency is not None:
                out.append(
                    f"    concurrency {level.concurrency}: {level.done} done, {level.failed} failed"
                )
    if result.evidence is not None:
        out += ["", f"Evidence of the guard: {result.evidence.get('verdict')}"]
    out += ["", f"Verdict: {_VERDICTS[result.verdict]}"]
    out += [f"  {reason}" for reason in result.reasons]
    return "\n".join(out)
