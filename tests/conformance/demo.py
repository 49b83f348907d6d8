"""``make demo``: the fault and the cure on vLLM's own code, two ranks, no GPU.

Exit code 0 if vLLM alone makes mnnvl workspaces and the guarded one makes trtllm, on all ranks.
"""

from __future__ import annotations

import sys
import tempfile

from rich.console import Console
from rich.table import Table

from tests.conformance import harness
from tests.support.environments import image_python

RELEASE = "0.33.0"
WAYS = {
    "lazy": "first all-reduce, after the config context was left",
    "fused_op": "fused all-reduce + RMSNorm, nothing resolved at init",
    "recreate": "made again after destroy_fi_ar_workspace",
}


def main() -> int:
    console = Console() if sys.stdout.isatty() else Console(width=100)

    def step(text: str) -> None:
        print(f"{text} …", file=sys.stderr, flush=True)

    step(f"setting up vLLM {RELEASE}, torch and FlashInfer (minutes the first time, then cached)")
    harness.tree(RELEASE)
    image_python()
    guard = harness.guard_path()
    # The first as most servers start their workers; forked, the others import nothing again.
    methods = ("spawn", "fork", "fork")
    jobs = [{"name": n, "start_method": m} for n, m in zip(WAYS, methods, strict=True)]
    evidence = tempfile.mkdtemp(prefix="hisparse-guard-demo-")
    step("two ranks without the guard")
    plain = harness.run_jobs(RELEASE, jobs, guard=None)
    step("two ranks with it")
    setting = {"HISPARSE_GUARD_EVIDENCE_DIR": evidence}
    guarded = harness.run_jobs(RELEASE, jobs, guard=guard, env=setting)
    table = Table(
        title=f"vLLM {RELEASE}, HiSparse on: backend of the workspace each rank made",
        title_justify="left",
        box=None,
    )
    for column in ("how the workspace comes to be", "rank", "vLLM alone", "with the guard"):
        table.add_column(column)
    good = True
    for text, before, after in zip(WAYS.values(), plain, guarded, strict=True):
        for one, two in zip(before["ranks"], after["ranks"], strict=True):
            for rank in (one, two):
                if "error" in rank:
                    console.print(rank["traceback"])
                    return 1
            good = good and set(one["made"]) == {"mnnvl"} and set(two["made"]) == {"trtllm"}
            said = [f"[{c}]{', '.join(r['made'])}[/]" for c, r in (("red", one), ("green", two))]
            table.add_row(text, str(one["rank"]), *said)
            text = ""
    console.print(table)
    console.print("The guarded worker's own log:")
    for line in guarded[0]["log"].splitlines():
        if "hisparse-guard:" in line:
            said = "  " + line[line.index("hisparse-guard:") :]
            console.print(said, markup=False, soft_wrap=not sys.stdout.isatty())
    console.print(f"Its evidence: .venv/bin/hisparse-guard report {evidence}", soft_wrap=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
