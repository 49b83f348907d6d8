"""Writes docs/compatibility.md from tests that ran.

    python -m tests.compatibility RESULTS.xml …

`RESULTS.xml` are reports of pytest (``--junitxml``); `make test` writes one to
``.pytest_cache/results.xml``. A cell names the tests that stand for it. It is "passed" only if each
of them ran and passed. Without results: the page's text with "not run" in each such cell.
"""

from __future__ import annotations

import fnmatch
import platform
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from hisparse_guard import __version__
from tests.compatibility_tables import TABLES, Cell, Table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "compatibility.md"
OPENING = """\
# Compatibility

Written by `python -m tests.compatibility` from tests that ran: {ran}. Do not edit it.

- **passed**: every test of this cell ran and passed.
- **refused**: tests show that the guard does not act there; the reason is in the cell.
- **failed**: a test of this cell failed. **not run**: one was skipped or left out of this run.
- not tried: there is no test.

No test needs a GPU: the one call that makes the workspace on a GPU is replaced. What was tried on
GPUs is in [gpu.md](gpu.md). Which tests stand for a cell is in `tests/compatibility_tables.py`.
"""


@dataclass
class Results:
    """The outcome of each test by its id: ``passed``, ``failed`` or ``skipped``."""

    outcomes: dict[str, str]

    @classmethod
    def read(cls, files: Iterable[Path]) -> Results:
        outcomes: dict[str, str] = {}
        for file in files:
            for case in ET.parse(file).iter("testcase"):
                children = {child.tag for child in case}
                bad = "failed" if children & {"failure", "error"} else "passed"
                # pytest-xdist puts the group behind the name.
                name = re.sub(r"@[^\]]*$", "", case.get("name", ""))
                path = case.get("classname", "").replace(".", "/")
                outcomes[f"{path}.py::{name}"] = "skipped" if "skipped" in children else bad
        return cls(outcomes)

    def of(self, patterns: Iterable[str]) -> str:
        """One word for all tests that match `patterns`; each of these must match one."""
        found = [list(matching(pattern, self.outcomes)) for pattern in patterns]
        outcomes = {self.outcomes[name] for names in found for name in names}
        if "failed" in outcomes:
            return "failed"
        return "passed" if all(found) and outcomes == {"passed"} else "not run"


def matching(pattern: str, names: Iterable[str]) -> Iterator[str]:
    """The ids that match `pattern`, in which ``*`` stands for any text, and nothing else for more
    than itself."""
    escaped = pattern.replace("[", "[[]")
    return (name for name in names if fnmatch.fnmatchcase(name, escaped))


def cell(found: Cell | None, results: Results) -> str:
    if found is None:
        return "not tried"
    outcome = results.of(found.tests)
    if outcome != "passed":
        return f"**{outcome}**"
    said = f"refused: {found.refused}" if found.refused else "passed"
    return f"{said} ({found.note})" if found.note else said


def table(one: Table, results: Results) -> str:
    lines = [f"## {one.title}", "", one.text, ""]
    lines += ["| " + " | ".join(["", *one.columns]) + " |", "|---" * (len(one.columns) + 1) + "|"]
    for name, cells in one.rows.items():
        lines.append("| " + " | ".join([name, *(cell(x, results) for x in cells)]) + " |")
    return "\n".join(lines) + "\n"


def page(results: Results) -> str:
    tests = {test for one in TABLES for test in one.tests()}
    count = len({name for test in tests for name in matching(test, results.outcomes)})
    ran = f"{count} tests on {date.today()}, hisparse-guard {__version__}, "
    ran += f"CPython {platform.python_version()}, {platform.system()} {platform.machine()}"
    return "\n".join([OPENING.format(ran=ran), *(table(one, results) for one in TABLES)])


def main() -> int:
    files = [Path(name) for name in sys.argv[1:]]
    missing = [str(file) for file in files if not file.is_file()]
    if missing or not files:
        print(f"no such file: {missing[0]}" if missing else __doc__, file=sys.stderr)
        return 2
    PAGE.write_text(page(Results.read(files)))
    print(f"written: {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
