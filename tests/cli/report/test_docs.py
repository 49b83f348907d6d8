"""docs/evidence.md and docs/report.schema.json, held against the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hisparse_guard.cli.report.contradictions import KNOWN
from hisparse_guard.cli.report.decoding import STATES
from hisparse_guard.cli.report.exit_codes import EXIT_CODES
from hisparse_guard.cli.report.report import judge
from hisparse_guard.runtime.telemetry import events
from tests.cli.report import test_edits, test_edits_of_ranks
from tests.cli.report.editing import original, write
from tests.cli.report.samples import Process, world

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "evidence.md").read_text()
SCHEMA = json.loads((DOCS / "report.schema.json").read_text())


def section(begin: str, end: str) -> str:
    return PAGE[PAGE.index(begin) : PAGE.index(end, PAGE.index(begin) + len(begin))]


def named(text: str) -> set[str]:
    """The names in the first column of a table, or in all of a text without one."""
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+)", text, re.M)
    return set(re.findall(r"`(\w+)`", " ".join(rows) or text))


ORDER = [(events.Envelope, "On every line"), *((r, f"\n`{n}`") for r, n in events.NAMES.items())]


@pytest.mark.parametrize("number", range(len(ORDER)), ids=lambda n: ORDER[n][0].__name__)
def test_every_field_of_the_schema_is_documented(number: int) -> None:
    record, begin = ORDER[number]
    following = [*(words for _, words in ORDER[number + 1 :]), "### Kernel classes"]
    text = section(begin, following[0])
    fields: set[str] = set(record._fields)
    documented = named(text)
    assert fields <= documented, fields - documented
    if "| field |" in text:
        assert documented == fields, documented - fields


def test_verdicts_states_and_rules_are_documented() -> None:
    table = section("| verdict | means", "An internal error")
    found = re.findall(r"^\| `([\w ]+)` \|.*\| (\d) \|$", table, re.M)
    assert {word: int(code) for word, code in found} == EXIT_CODES
    assert all(f"`{word}`" in PAGE for word in [*STATES, *KNOWN["rule"]])


VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def check(report: Any) -> None:
    VALIDATOR.validate(json.loads(json.dumps(report.to_json())))


EDITS = {**test_edits.edit, **test_edits_of_ranks.edit}


@pytest.mark.parametrize("name", EDITS)
def test_the_json_of_any_edit_is_as_documented(tmp_path: Path, name: str) -> None:
    ranks = original()
    EDITS[name].function(ranks)
    check(judge([write(ranks, tmp_path)]))


def test_the_json_of_whole_reports_is_as_documented(tmp_path: Path) -> None:
    check(judge([tmp_path]))
    Process(rank=None, pid=50, ppid=1, start=-5.0).config().write(tmp_path)
    Process(rank=None, pid=51, ppid=2, host="x").config(hisparse=False).write(tmp_path)
    for process in world():
        process.guarded().line("end", dropped=0).write(tmp_path)
    check(judge([tmp_path]))


def test_every_key_of_the_json_is_in_the_page() -> None:
    keys: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            keys.update(node.get("properties", {}))
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(SCHEMA)
    assert {key for key in keys if f"`{key}`" not in PAGE} <= {"python"}
