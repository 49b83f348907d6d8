"""Every fault of the catalogue is named by a log like that of its report, and as certain."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hisparse_guard.cli.triage import catalogue as catalogues
from hisparse_guard.cli.triage import triage
from hisparse_guard.cli.triage.catalogue import DERIVED, CatalogueError, load
from tests.cli.triage.cases import CASES
from tests.cli.triage.test_inputs import PUBLISHED, ROWS, lead

FOLDER = Path(catalogues.__file__).parent


@pytest.mark.parametrize(("fault", "certainty", "log"), CASES)
def test_case(tmp_path: Path, fault: str, certainty: str, log: str) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(log)
    result = triage([str(path)])
    assert lead(result)[:1] == [(fault, certainty)]
    assert result.exit_code == 1


def test_every_fault_has_a_case() -> None:
    cases = {fault for fault, _, _ in CASES}
    inputs = {fault for _, _, named in (*ROWS, *PUBLISHED) for fault, _ in named}
    assert {fault.id for fault in load().faults} - cases - inputs == set()


def test_every_derived_signal_is_used_or_filled_in() -> None:
    used = {
        name
        for fault in load().faults
        for when in fault.when
        for name in (*when.all, *when.any, *when.none, *when.contrary)
    }
    unused = set(DERIVED) - used
    # These two are told as a circumstance and as a reason.
    assert unused <= {"kernel_waits", "symptom_hang"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(FOLDER, tmp_path / "triage", ignore=shutil.ignore_patterns("*.py", "__*"))
    return tmp_path / "triage"


FAULT = """
id = "made-up"
order = 50
title = "A made-up fault"
family = "kernel"
ranks = "any"
meaning = "It is made up."
next_steps = ["Nothing"]
evidence = ["made_up"]
sources = ["https://example.org/1"]

[[when]]
certainty = "proven"
all = ["made_up"]
proven = ["the line says so"]
"""
SIGNAL = """
[made_up]
fatal = true
says = [
  { at = "message", who = ["worker"], level = "ERROR", word = "flux capacitor", pattern = 'The flux capacitor' },
]
"""  # noqa: E501


def test_a_made_up_fault_needs_a_file_and_a_signal(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "faults" / "made-up.toml").write_text(FAULT)
    with (folder / "signals.toml").open("a") as signals:
        signals.write(SIGNAL)
    known = catalogues.read(folder)
    monkeypatch.setattr("hisparse_guard.cli.triage.examine.load", lambda: known)
    path = tmp_path / "sample.log"
    path.write_text("(Worker_TP0 pid=7) ERROR 11-03 22:14:04 [x.py:1] The flux capacitor melted\n")
    assert lead(triage([str(path)])) == [("made-up", "proven")]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('all = ["made_up"]', 'all = ["no_such"]', "no such signal: no_such"),
        ('certainty = "proven"', 'certainty = "sure"', "certainty"),
        ('all = ["made_up"]', "", "asks for nothing"),
        ('id = "made-up"', 'id = "other"', "its id is other"),
        ("https://", "http://", "https address"),
        ("order = 50", "order = 50\nextra = 1", "extra"),
        ('title = "A made-up fault"', "", "title"),
    ],
)
def test_a_wrong_entry_is_told_by_name(folder: Path, old: str, new: str, told: str) -> None:
    (folder / "faults" / "made-up.toml").write_text(FAULT.replace(old, new))
    with (folder / "signals.toml").open("a") as signals:
        signals.write(SIGNAL)
    with pytest.raises(CatalogueError, match=told):
        catalogues.read(folder)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("'The flux capacitor'", "'The (?=x)'", "pattern"),
        ("'The flux capacitor'", "'(a'", "pattern"),
        ('word = "flux capacitor", ', "", "word"),
        ('"worker"', '"client"', "Invalid enum value 'client'"),
        ('level = "ERROR"', 'level = "LOUD"', "level"),
    ],
)
def test_a_wrong_signal_is_told_by_name(folder: Path, old: str, new: str, told: str) -> None:
    with (folder / "signals.toml").open("a") as signals:
        signals.write(SIGNAL.replace(old, new))
    with pytest.raises(CatalogueError, match=told):
        catalogues.read(folder)
