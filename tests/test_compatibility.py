"""docs/compatibility.md: each cell's tests exist, and the page has the cells that there are."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.compatibility import PAGE, Results, cell, matching, page
from tests.compatibility_tables import TABLES, Cell
from tests.startup.sandbox import ROOT

TESTS = {test for one in TABLES for test in one.tests()}


def test_the_tests_of_every_cell_exist() -> None:
    files = sorted({test.partition("::")[0] for test in TESTS})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    ids = [line for line in done.stdout.splitlines() if "::" in line]
    assert ids, done.stdout
    assert [test for test in sorted(TESTS) if not any(matching(test, ids))] == []


def test_the_page_has_the_cells_that_there_are() -> None:
    """What it says of each was true when it was written; its rows, columns and texts are these."""
    verdict = re.compile(r"\| (passed|refused|\*\*|not tried)[^|]*(?=\|)")

    def shape(text: str) -> list[str]:
        return [verdict.sub("| … ", line) for line in text.splitlines() if line[:1] in "|#"]

    assert shape(PAGE.read_text()) == shape(page(Results({})))
    assert "**failed**" not in PAGE.read_text().partition("\n## ")[2]


def test_a_cell_is_passed_only_if_each_of_its_tests_ran_and_passed() -> None:
    one = Cell(("a.py::test[*]", "b.py::test"))
    outcomes = {"a.py::test[x]": "passed", "a.py::test[y]": "passed", "b.py::test": "passed"}
    assert cell(one, Results(outcomes)) == "passed"
    assert cell(one, Results({**outcomes, "a.py::test[y]": "failed"})) == "**failed**"
    for missing in (
        {**outcomes, "a.py::test[y]": "skipped"},
        {n: o for n, o in outcomes.items() if n != "b.py::test"},
        {},
    ):
        assert cell(one, Results(missing)) == "**not run**"
    assert cell(None, Results(outcomes)) == "not tried"
