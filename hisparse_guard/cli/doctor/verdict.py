"""From what was read and found to the advice. Pure, but for the files that `way_in` looks at."""

from __future__ import annotations

from collections.abc import Sequence

from hisparse_guard.cli.doctor.checks.way_in import way_in
from hisparse_guard.cli.doctor.model import Facts, Finding, Verdict
from hisparse_guard.runtime.state import ENV_BACKEND

WHY = {
    "unguarded": "this vLLM has HiSparse and no rule for it",
    "leaky": "this vLLM's rule for HiSparse is lost when the workspace is made late",
    "fixed": "this vLLM keeps the backend resolved at init, but not for every caller",
}


def judge(facts: Facts, findings: Sequence[Finding]) -> Verdict:
    """The advice. "Not needed" and "the guard gets in" are claims: where a finding leaves open what
    they rest on, it is `cannot tell`."""
    if facts.build is None:
        return _without_vllm(facts)
    open_ones = [f for f in findings if f.level == "unknown" and f.topic != "way in"]
    nothing = _nothing_to_guard(facts)
    if open_ones:
        first = open_ones[0]
        return Verdict("cannot tell", f"{first.topic}: {first.text}")
    if nothing is not None:
        return Verdict("not needed", nothing)
    return _needed(facts, findings)


def _without_vllm(facts: Facts) -> Verdict:
    reason = (
        "there is no vLLM here that can be read: give the server's own command, as in "
        "hisparse-guard doctor -- vllm serve …"
    )
    blocked = way_in(facts).blocked
    if blocked is not None:
        reason = f"there is no vLLM here that can be read, and {blocked}"
    return Verdict("cannot tell", reason)


def _nothing_to_guard(facts: Facts) -> str | None:
    assert facts.build is not None
    nothing = {
        "no-hisparse": "this vLLM has no HiSparse",
        "no-fi-allreduce": "this vLLM has no FlashInfer all-reduce workspace",
    }.get(facts.build.label)
    if nothing is None and not facts.has_flashinfer:
        nothing = "FlashInfer is not installed here, and no all-reduce workspace is made without it"
    if nothing is not None:
        return f"{nothing}; the guard would change nothing"
    if facts.build.label == "fixed" and facts.calls is not None and not facts.calls:
        return (
            "every caller in this vLLM passes the backend that init resolved, so nothing is left "
            "open, and the guard can go"
        )
    if facts.environment.get(ENV_BACKEND) == "trtllm" and facts.obeys_variable:
        return (
            f"{ENV_BACKEND}=trtllm is set, which vLLM obeys on one node; a group over nodes "
            "fails to start with it"
        )
    return None


def _needed(facts: Facts, findings: Sequence[Finding]) -> Verdict:
    assert facts.build is not None
    why, way = WHY[facts.build.label], way_in(facts)
    if not facts.probe.checked:
        return Verdict("cannot tell", f"{why}, and whether the guard gets in: {way.blocked}")
    if way.blocked is not None:
        return Verdict("not able", f"{why}, and the guard does not get in: {way.blocked}")
    unfit = [f for f in findings if f.level == "fix" and f.topic == "patches"]
    if unfit:
        return Verdict("not able", f"{why}, and the guard does not work here: {unfit[0].text}")
    if facts.settings.mode == "off":
        return Verdict("needed", f"{why}, and HISPARSE_GUARD_MODE=off keeps the guard out")
    if way.by is None:
        return Verdict("needed", f"{why}, and the guard is not in")
    reason = f"{why}; the guard gets in by {way.by}"
    if facts.settings.mode == "observe":
        reason += ", and only observes: mnnvl is still made"
    elif facts.settings.multinode == "keep":
        reason += ", and leaves groups that trtllm cannot serve with mnnvl (MULTINODE=keep)"
    return Verdict("needed", reason)
