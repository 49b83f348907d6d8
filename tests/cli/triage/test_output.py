"""The page, the JSON and the document say what they have to say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hisparse_guard.cli.app import run_app
from hisparse_guard.cli.triage import triage
from hisparse_guard.cli.triage.catalogue import load
from hisparse_guard.cli.triage.render import page
from tests.cli.triage.logs import line, request, start, started_up, stats
from tests.cli.triage.test_inputs import DATA, EXCERPTS, PUBLISHED, ROWS

DOCUMENT = (Path(__file__).parents[3] / "docs" / "triage.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "path", [DATA / n for n, _, _ in ROWS] + [EXCERPTS / n for n, _, _ in PUBLISHED]
)
def test_the_page_has_at_most_25_lines(path: Path) -> None:
    text = page(triage([str(path)]), False)
    assert len(text.splitlines()) <= 25
    assert text.startswith("Is this server all right?")


def test_the_page_answers_what_an_operator_asks(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["triage", str(EXCERPTS / "main-crash.log")]) == 1
    text = capsys.readouterr().out
    for part in (
        "main-crash.log:5, 11-03 22:14:04, Worker_TP2 pid 705, TP2",
        "async_utils.py:175 in get_output",
        "hisparse-mnnvl",
        "proven: ",
        "What now\n  1. Run every rank",
    ):
        assert part in text


def test_verbose_shows_every_run_and_the_checklist(capsys: pytest.CaptureFixture[str]) -> None:
    run_app(["triage", "--verbose", str(DATA / "two-pods-blank-prefix.log")])
    text = capsys.readouterr().out
    assert "vllm-prefill-0 vllm, run 1" in text and "vllm-decode-0 vllm, run 1" in text
    assert "Checklist" in text and "host-mirror-collected (likely)" in text


def test_secrets_are_masked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "vllm.log"
    error = line("Worker_TP0 pid=1", "failed with api_key=sk-abcdefghijklmnop", "ERROR")
    path.write_text("\n".join([start(), started_up(), error]) + "\n")
    for option in ("--json", "--verbose"):
        run_app(["triage", option, str(path)])
        text = capsys.readouterr().out
        assert "not-to-be-shown" not in text and "sk-abcdefghijklmnop" not in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["no-such.log"], "no-such.log: No such file"),
        (["."], "is a folder"),
        (["-", "-"], "once only"),
        ([str(DATA / "xid-31.log"), "--symptom", "odd"], "must be one of"),
    ],
)
def test_a_usage_error_is_one_line(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["triage", *arguments]) == 2
    err = capsys.readouterr().err
    assert told in err and err.count("\n") == 1


def test_a_symptom_that_nothing_explains(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text("\n".join([start(connector="None"), started_up(), stats(), request()]) + "\n")
    assert triage([str(path)]).exit_code == 0
    assert triage([str(path)], symptoms=["slow"]).exit_code == 4


def names(value: object) -> set[str]:
    """All keys of a JSON value, but those that are names out of the log."""
    if isinstance(value, list):
        return set().union(*map(names, value))
    if not isinstance(value, dict):
        return set()
    free = ("signals", "facts", "connectors", "excused_errors")
    found = {str(key) for key in value}
    for key, inner in value.items():
        found |= names([*inner.values()] if key in free and isinstance(inner, dict) else inner)
    return found


def test_the_schema_is_the_documents(capsys: pytest.CaptureFixture[str]) -> None:
    told: set[str] = set()
    for name in ("ramp-failed.log", "no-token-for-minutes.log", "xid-31.log"):
        paths = [str(DATA / name)]
        if name == "ramp-failed.log":
            paths.append(str(DATA / "ramp-failed.json"))
        run_app(["triage", "--json", *paths])
        data = json.loads(capsys.readouterr().out)
        assert data["schema"] == 2
        told |= names(data)
    section = DOCUMENT.partition("## The JSON")[2].partition("## How fast")[0]
    documented = set(re.findall(r"[a-z_]+", section))
    assert told - documented - {"levels", "concurrency"} == set()


def test_the_list_of_faults_is_the_catalogues() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| ([^|]+) \| (.+) \|$", DOCUMENT, re.M)
    listed = {(name, certainty.strip(), title) for name, certainty, title in rows if "-" in name}
    expected = set()
    for fault in load().faults:
        told: list[str] = []
        for when in fault.when:
            word = when.certainty + (" (notice)" if when.effect == "notice" else "")
            told += [word] if word not in told else []
        expected.add((fault.id, ", ".join(told), fault.title))
    assert listed == expected


@pytest.mark.parametrize(
    "name", ["main-crash.log", "hang-while-serving.log", "client-forges-rpc-timeout.log"]
)
def test_the_cases_of_the_document_are_real(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = EXCERPTS if (EXCERPTS / name).exists() else DATA
    monkeypatch.chdir(folder)
    run_app(["triage", name])
    text = capsys.readouterr().out
    shown = DOCUMENT.partition(f"$ hisparse-guard triage {name}\n")[2].partition("```")[0]
    assert shown and text.startswith(shown)
