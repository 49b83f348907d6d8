"""What the guard costs, and how fast the tools are, on this machine.

Every row is printed as it is measured, beside what it is compared with in the same run. The rounds
are interleaved, so that a drift of the machine cancels.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import activation, calls, report_scale, startup, triage_speed
from benchmarks.row import HEADER, as_markdown, as_text, machine

ROWS = {
    "startup": startup.rows,
    "activation": activation.rows,
    "hot-path": calls.rows,
    "report": report_scale.rows,
    "triage": triage_speed.rows,
}
# What docs/audit.md shows.
AUDIT = ("startup", "activation", "hot-path")
DOCS = Path(__file__).resolve().parent.parent / "docs" / "audit.md"
BEGIN, END = "<!-- costs -->\n", "<!-- end of costs -->\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("rows", nargs="?", default="", help=f"some of {','.join(ROWS)}")
    parser.add_argument("--write", action="store_true", help="write the table into docs/audit.md")
    asked = parser.parse_args()
    names = asked.rows.split(",") if asked.rows else list(ROWS)
    if unknown := [name for name in names if name not in ROWS]:
        parser.error(f"no rows named {', '.join(unknown)}: use some of {', '.join(ROWS)}")
    if asked.write and not set(AUDIT) <= set(names):
        parser.error(f"--write needs the rows {','.join(AUDIT)}")
    where = machine()
    print(where, as_text(HEADER), sep="\n", flush=True)
    written = [as_markdown(HEADER), as_markdown(["---"] * len(HEADER))]
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        for row in ROWS[name]():
            print(as_text(row.cells()), flush=True)
            written += [as_markdown(row.cells())] if name in AUDIT else []
    if asked.write:
        text = DOCS.read_text()
        before, after = text.index(BEGIN) + len(BEGIN), text.index(END)
        table = "\n".join(["", f"Measured with {where}.", "", *written, "", ""])
        DOCS.write_text(text[:before] + table + text[after:])


if __name__ == "__main__":
    main()
