"""All benchmarks but the GPU's, one after another on this machine: ``python -m benchmarks``.

Takes about ten minutes; each part alone (``python -m benchmarks.startup``, …) takes more rounds.
``--quick`` takes a few minutes, and its figures are for looking at the table only.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks import hot_path, report_scale, startup, triage_speed
from benchmarks.line import machine, show

PARTS = {
    "start of a process without vLLM": (startup.lines, {"rounds": 60}, {"rounds": 10}),
    "hot path and import, real vLLM": (hot_path.lines, {"rounds": 3}, {"rounds": 1}),
    "report, 1,000 workers x 1,000 lines": (
        report_scale.lines,
        {"workers": 1000, "runs": 3},
        {"workers": 50, "runs": 1},
    ),
    "triage, 1 GB log": (
        triage_speed.lines,
        {"megabytes": 1000, "rounds": 1},
        {"megabytes": 20, "rounds": 1},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds")
    quick = parser.parse_args().quick
    caption = machine() + ("; quick: not to be quoted" if quick else "")
    found = []
    for name, (lines, whole, small) in PARTS.items():
        print(f"{name} …", file=sys.stderr, flush=True)
        found.append((name, lines(**(small if quick else whole))))
    show(found, caption)


if __name__ == "__main__":
    main()
