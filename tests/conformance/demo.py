"""``make demo``: the fault and the cure on vLLM's own code, two ranks, no GPU.

Exit code 0 if each rank makes what is expected on vLLM alone and with the guard.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from tests.conformance import harness
from tests.conformance.jobs import job
from tests.conformance.upstream_fix import WAYS, Way
from tests.support import environments, fetching

# The first of each release as most servers start their workers; the others are forked.
SHOWN = {
    "0.33.0": [
        Way("first all-reduce, after the config context was left", job("lazy", method="spawn")),
        Way("the fused op asks first, nothing resolved at init", job("fused_op")),
        Way(
            "made again after destroy_fi_ar_workspace",
            job("recreate"),
            ("mnnvl",) * 2,
            ("trtllm",) * 2,
        ),
    ],
    "0.34.0": [
        WAYS[k] for k in ("default", "standalone-off", "fused-first", "again-fused", "nodes")
    ],
}


class Outcome(NamedTuple):
    way: Way
    alone: Any
    guarded: Any

    @property
    def expected(self) -> bool:
        return _made(self.alone) == [self.way.alone] * 2 and (
            _made(self.guarded) == [self.way.guarded] * 2
        )


def _made(result: Any) -> list[tuple[str, ...]]:
    for rank in result["ranks"]:
        if "error" in rank:
            raise RuntimeError(rank["traceback"])
    return [tuple(rank["made"]) for rank in result["ranks"]]


def _cell(colour: str, result: Any) -> str:
    said = [", then ".join(made) or "none" for made in _made(result)]
    return f"[{colour}]{said[0] if len(set(said)) == 1 else ' / '.join(said)}[/]"


def _run(release: str, evidence: Path) -> list[Outcome]:
    ways = SHOWN[release]
    jobs = [way.job for way in ways]
    with fetching.step(f"vLLM {release}, two ranks, without the guard"):
        alone = harness.run_jobs(release, jobs, guard=None)
    setting = {"HISPARSE_GUARD_EVIDENCE_DIR": str(evidence / release)}
    with fetching.step(f"vLLM {release}, two ranks, with the guard"):
        guarded = harness.run_jobs(release, jobs, guard=harness.guard_path(), env=setting)
    return [Outcome(*found) for found in zip(ways, alone, guarded, strict=True)]


def _report(evidence: Path) -> Path:
    page = evidence / "report.html"
    command = [sys.executable, "-m", "hisparse_guard", "report", str(evidence), "--html", str(page)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=harness.ROOT)
    if not page.exists():
        raise RuntimeError(done.stderr)
    return page


def main() -> int:
    console = Console() if sys.stdout.isatty() else Console(width=110)
    try:
        environments.set_up([*SHOWN, "image", "wrapt"])
    except environments.Unavailable as error:
        print(error, file=sys.stderr)
        return 1
    evidence = Path(tempfile.mkdtemp(prefix="hisparse-guard-demo-"))
    table = Table(
        title="HiSparse on: the workspaces that each of two ranks made",
        title_justify="left",
        box=None,
    )
    for column in ("vLLM", "how the workspace comes to be", "vLLM alone", "with the guard"):
        table.add_column(column)
    outcomes = {release: _run(release, evidence) for release in SHOWN}
    for release, found in outcomes.items():
        for outcome in found:
            good = "green" if outcome.expected else "red"
            bad = "red" if "mnnvl" in outcome.way.alone else "green"
            text = outcome.way.text.replace("`", "")
            table.add_row(release, text, _cell(bad, outcome.alone), _cell(good, outcome.guarded))
    console.print(table)
    console.print("The log of a guarded worker:")
    for line in outcomes["0.33.0"][0].guarded["log"].splitlines():
        if "hisparse-guard:" in line:
            said = "  " + line[line.index("hisparse-guard:") :]
            console.print(said, markup=False, soft_wrap=not sys.stdout.isatty())
    console.print(f"What the evidence of all of them shows: {_report(evidence)}", soft_wrap=True)
    return 0 if all(o.expected for found in outcomes.values() for o in found) else 1


if __name__ == "__main__":
    sys.exit(main())
