"""Judges runs: which known faults they show, how sure, and whether a server is all right.

It fails closed: healthy is said only where it is shown, and trouble that no fault of the
catalogue explains is told as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from hisparse_guard.cli.exit_codes import Exit
from hisparse_guard.cli.triage.catalogue import Fault, When
from hisparse_guard.cli.triage.derive import present, stands_still
from hisparse_guard.cli.triage.kernel_lines import victim
from hisparse_guard.cli.triage.load_results import LoadResult
from hisparse_guard.cli.triage.model import Place
from hisparse_guard.cli.triage.server_run import Run
from hisparse_guard.cli.triage.standstill import Stall

HEALTHY, FAULT, UNKNOWN = "healthy", "fault", "unknown fault"
INCONCLUSIVE, NO_LOG = "inconclusive", "no log"
EXIT_CODES = {
    HEALTHY: Exit.OK,
    FAULT: Exit.PROBLEM,
    NO_LOG: Exit.NOTHING,
    UNKNOWN: Exit.NOT_SHOWN,
    INCONCLUSIVE: Exit.NOT_SHOWN,
}
SYMPTOMS = ("garbled", "slow", "hang")
# The order in which one of several runs decides.
WORST = (FAULT, UNKNOWN, INCONCLUSIVE, HEALTHY)
_MOST_EVIDENCE = 12


@dataclass(frozen=True)
class Finding:
    """A known fault that a run shows.

    Attributes:
        certainty: "proven", "likely" or "unconfirmed": of the name, not of a root cause.
        doubts: why it is less certain than its lines alone would say.
        follows_from: id of the fault that this one is a consequence of, or None.
    """

    fault: Fault
    when: When
    certainty: str
    evidence: tuple[Place, ...]
    ranks: tuple[str, ...]
    doubts: tuple[str, ...] = ()
    follows_from: str | None = None


@dataclass
class Judged:
    """One run with its verdict.

    Attributes:
        reasons: why the verdict is not healthy, or what shows that it is.
        stall: the standstill that reaches to the end of the log, or None.
        circumstances: what speaks for or against, and decides nothing.
    """

    run: Run
    present: set[str]
    findings: list[Finding]
    notices: list[Finding]
    verdict: str
    reasons: list[str]
    stall: Stall | None = None
    circumstances: list[str] = field(default_factory=list)

    @property
    def main(self) -> Finding | None:
        """The finding that the others follow from, or None."""
        return next((one for one in self.findings if one.follows_from is None), None)


def judge(run: Run, symptoms: Sequence[str] = (), vouched: Set[str] = frozenset()) -> Judged:
    """Judges one run.

    Args:
        symptoms: what the operator saw and no log says; of `SYMPTOMS`.
        vouched: signals that the guard's evidence vouches for in this run.
    """
    names = present(run, frozenset(symptoms), vouched)
    findings, notices = _name(run, names)
    stall = next((one.current for one in run.engines.values() if one.current), None)
    stall = stall if stands_still(run) else None
    circumstances = _circumstances(run, names, findings)
    if run.has_heads is False:
        return Judged(run, names, [], [], *_without_heads(run, findings))
    if any(one.follows_from is None for one in findings):
        reasons = [f"{one.fault.id} ({one.certainty})" for one in findings if not one.follows_from]
        return Judged(run, names, findings, notices, FAULT, reasons, stall, circumstances)
    verdict, reasons = _unnamed(run, symptoms)
    return Judged(run, names, findings, notices, verdict, reasons, stall, circumstances)


def _without_heads(run: Run, findings: Sequence[Finding]) -> tuple[str, list[str]]:
    """The verdict of a run in whose log a client may have written any line, and why."""
    why = "its log lines have no level and no source, so a client can have written any of them"
    if not findings and run.first_trouble() is None:
        return INCONCLUSIVE, [why]
    named = ", ".join(one.fault.id for one in findings if one.follows_from is None)
    return UNKNOWN, [why, f"if they are true, they show: {named}"] if named else [why]


def _unnamed(run: Run, symptoms: Sequence[str]) -> tuple[str, list[str]]:
    """The verdict of a run in which no known fault is named, and why."""
    trouble = run.first_trouble()
    if trouble is not None:
        return UNKNOWN, [f"trouble that no known fault explains: {trouble.what[:200]}"]
    if run.corrupted is not None:
        return UNKNOWN, [f"line {run.corrupted.number}: vLLM counted requests with NaN logits"]
    ended = [stall for one in run.engines.values() for stall in one.ended]
    if ended:
        return UNKNOWN, [f"it stood still for {ended[0].seconds} s and then went on"]
    if symptoms:
        seen = " and ".join(f"--symptom {symptom}" for symptom in symptoms)
        return UNKNOWN, [f"you reported {seen}; nothing in this log explains it"]
    missing = []
    if not run.up:
        missing.append("nothing shows that the server came up")
    elif run.came_up is None:
        missing.append("the log does not hold its start-up to the end")
    if run.answered is None:
        missing.append("nothing shows that it answered a request")
    if any(one.current and one.current.lines > 1 for one in run.engines.values()):
        missing.append("its last statistics show requests without a token")
    if run.restarted and run.shutdown is None:
        missing.append("it started again and nothing shows that it was told to stop")
    if run.shutdown is not None and run.shutdown_done is None:
        missing.append("it was told to stop; that it stopped is not shown")
    alive = run.last_answer.order if run.last_answer else 0
    if run.elsewhere and run.elsewhere[-1].order > alive:
        missing.append("no sign of life after a line of the kernel or systemd about a process")
    if (behind := run.behind) is not None and run.shutdown_done is None:
        missing.append(
            f"line {behind.number} comes after the server's last one, and triage does not "
            f"know it: {behind.text[:160]}"
        )
    if missing:
        return INCONCLUSIVE, missing
    end = "it was told to stop and stopped" if run.shutdown else "its end is not in the log"
    return HEALTHY, ["it came up", "it answered", end, "no trouble in the log"]


def _name(run: Run, names: set[str]) -> tuple[list[Finding], list[Finding]]:
    """Findings and notices, the one that explains most first."""
    named: list[Finding] = []
    for fault in run.catalogue.faults:
        when = next((when for when in fault.when if when.holds(names)), None)
        if when is not None:
            named.append(_finding(run, fault, when, names))
    faults = [one for one in named if one.when.effect == "fault"]
    if any(not one.fault.generic for one in faults):
        faults = [one for one in faults if not one.fault.generic]
    notices = [one for one in named if one.when.effect == "notice"]
    explained = {of: one.fault.id for one in reversed(faults) for of in one.fault.explains}
    found = []
    for one in faults:
        cause = explained.get(one.fault.id)
        found.append(
            Finding(one.fault, one.when, one.certainty, one.evidence, one.ranks, one.doubts, cause)
        )
    # A circle of explanations would leave nothing to lead with.
    if found and all(one.follows_from for one in found):
        first = found[0]
        found[0] = Finding(
            first.fault, first.when, first.certainty, first.evidence, first.ranks, first.doubts
        )
    return sorted(found, key=lambda one: one.follows_from is not None), notices


def _finding(run: Run, fault: Fault, when: When, names: set[str]) -> Finding:
    doubts = _doubts(run, when, names)
    certainty = when.certainty
    if certainty == "proven" and doubts:
        certainty = "likely"
    return Finding(fault, when, certainty, _evidence(run, fault), _ranks(run, fault), tuple(doubts))


def _doubts(run: Run, when: When, names: set[str]) -> list[str]:
    """What keeps this combination from being proven."""
    from hisparse_guard.cli.triage.catalogue import DERIVED

    doubts = [DERIVED.get(name, name.replace("_", " ")) for name in when.contrary if name in names]
    signs = [run.seen[name] for name in (*when.all, *when.order) if name in run.seen]
    dps = [sign.dps for sign in signs if sign.dps]
    if dps and not set.intersection(*dps):
        doubts.append("its signs come from different data-parallel ranks")
    if any(not sign.own for sign in signs):
        doubts.append(
            "the Linux kernel names a process that this log does not show as the server's"
        )
    places = [run.seen[name].places[0].order for name in when.order if name in run.seen]
    if places != sorted(places):
        doubts.append("its signs do not come in the order of this fault")
    return doubts


def _evidence(run: Run, fault: Fault) -> tuple[Place, ...]:
    """The lines that the fault's signals rest on, in the order of the log."""
    found: dict[tuple[str, int], Place] = {}
    for name in fault.evidence:
        places: list[Place] = []
        if name in run.seen:
            places = run.seen[name].places[:3]
        elif name in ("hisparse_on", "nixl", "offloading"):
            part = {"hisparse_on": "HiSparse", "nixl": "Nixl", "offloading": "Offloading"}[name]
            places = [at for key, at in run.facts.connectors.items() if part in key]
            if name == "hisparse_on":
                places += _hisparse_places(run)
        elif name == "stands_still":
            places = [
                at for one in run.engines.values() if one.current
                for at in (one.current.since, one.current.until)
            ]  # fmt: skip
        elif name == "corrupted" and run.corrupted:
            places = [run.corrupted]
        for place in places[:3]:
            found.setdefault((place.file, place.number), place)
    return tuple(sorted(found.values(), key=lambda place: place.order)[:_MOST_EVIDENCE])


def _hisparse_places(run: Run) -> list[Place]:
    """One line for each way in which a log shows that HiSparse is on."""
    signals = ("hisparse_metrics", "hisparse_connector_created", "hisparse_frame")
    places = [run.seen[name].places[0] for name in signals if name in run.seen]
    config = run.facts.values.get("hisparse_config")
    return [config.place, *places] if config else places


def _ranks(run: Run, fault: Fault) -> tuple[str, ...]:
    """Ranks that say a fatal signal of this fault, first to fail first."""
    first: dict[str, int] = {}
    for name in fault.evidence:
        if name in run.seen and name in run.catalogue.fatal:
            for rank, place in run.seen[name].ranks.items():
                first[rank] = min(first.get(rank, place.order), place.order)
    return tuple(sorted(first, key=lambda rank: first[rank]))


def _circumstances(run: Run, names: set[str], findings: Sequence[Finding]) -> list[str]:
    found = []
    for at in run.elsewhere:
        of = victim(at.text)
        if of is not None:
            which = of.name if of.pid is None else f"{of.name}, process id {of.pid}"
            found.append(
                f"line {at.number} is of the kernel or systemd, about another program ({which})"
            )
    if "kernel_waits" in names and any("mnnvl" in one.fault.id for one in findings):
        found.append(
            "the guard's evidence says kernel class `waits`: FlashInfer's kernel waits for all "
            "blocks, which speaks against the race of the mnnvl kernel (it does not rule it out)"
        )
    return found


def overall(
    judged: Sequence[Judged], load: Sequence[LoadResult], evidence_exit: int | None
) -> tuple[str, list[str]]:
    """The verdict over all runs, load results and evidence, and reasons that are no run's."""
    verdicts = {one.verdict for one in judged}
    verdict = next((one for one in WORST if one in verdicts), NO_LOG)
    reasons: list[str] = []
    for result in load:
        if (why := result.against()) is not None:
            reasons.append(f"load result {result.file}: {why}")
            if verdict in (HEALTHY, INCONCLUSIVE, NO_LOG):
                verdict = UNKNOWN
    if evidence_exit == Exit.PROBLEM:
        reasons.append("the guard's evidence is unsafe: see hisparse-guard report")
        verdict = FAULT
    elif evidence_exit not in (None, Exit.OK) and verdict == HEALTHY:
        reasons.append("the guard's evidence does not prove a safe workspace")
    if verdict == NO_LOG:
        reasons.append("no line of a vLLM server in what was given")
    return verdict, reasons
