"""``make demo``: the fault and the cure on vLLM's own code, two ranks, no GPU.

Exit code 0 if vLLM alone makes mnnvl workspaces and the guarded one makes trtllm, on all ranks.
"""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from tests.conformance import harness

RELEASE = "0.33.0"
WAYS = {
    "lazy": "first all-reduce, after the config context was left",
    "fused_op": "fused all-reduce + RMSNorm, nothing resolved at init",
    "recreate": "made again after destroy_fi_ar_workspace",
}


def main() -> int:
    console = Console()
    with console.status(f"setting up vLLM {RELEASE} and FlashInfer (minutes, the first time)"):
        harness.tree(RELEASE)
        guard = harness.guard_path()
    jobs = [{"name": name, "start_method": "spawn"} for name in WAYS]
    with console.status("two ranks without the guard, then with it"):
        plain = harness.run_jobs(RELEASE, jobs, guard=None)
        guarded = harness.run_jobs(RELEASE, jobs, guard=guard)
    table = Table(title=f"vLLM {RELEASE}, HiSparse on: backend of the workspace each rank made")
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
            console.print("  " + line[line.index("hisparse-guard:") :], markup=False)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
