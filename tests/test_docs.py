"""The documents, held against the code: settings, log lines, commands and exit codes, links."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from hisparse_guard import __version__
from hisparse_guard.cli.app import COMMANDS
from hisparse_guard.runtime import decision, settings
from hisparse_guard.runtime.telemetry import build_class, messages
from tests.support.bundles import hisparse_guard

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
REFERENCE = (ROOT / "docs/reference.md").read_text()
SOURCES = [ROOT / "sitecustomize.py", *(ROOT / "hisparse_guard").glob("*.py")]
SOURCES += (ROOT / "hisparse_guard/runtime").rglob("*.py")

# Of every command: wrong usage, internal error, Ctrl-C, a closed pipe.
COMMON = {0, 2, 70, 130, 141}
# As a README that one reads to its end.
LONGEST_README = 150


def section(heading: str) -> str:
    return REFERENCE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of the rows of all tables, headings left out."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and "`" in line]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def literals(source: Path) -> list[str]:
    """The string constants of a file; what an f-string fills in is a NUL."""
    found = []
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.JoinedStr):
            parts = [p.value if isinstance(p, ast.Constant) else "\0" for p in node.values]
            found.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
            text = node.value
            found.append(text if isinstance(text, str) else text.decode())
    return found


def test_settings_and_their_values() -> None:
    table = section("Settings").partition("\n###")[0]
    documented = {quoted(name)[0]: quoted(values) for name, values, _ in rows(table)}
    folder = documented.pop(settings.EVIDENCE_DIR)
    assert folder == []
    assert documented == {settings.PREFIX + n: list(v) for n, v in settings.CHOICES.items()}


def test_rules_and_build_classes() -> None:
    answers, classes = section("Settings").split("\n### ")[1:]
    assert {quoted(rule)[0] for _, rule, _ in rows(answers)[1:]} == set(get_args(decision.Rule))
    assert {quoted(label)[0] for label, _ in rows(classes)} == set(get_args(build_class.BuildClass))


def test_every_documented_log_line_is_in_the_code() -> None:
    texts = [text for source in SOURCES for text in literals(source)]
    text = section("Log lines")
    table, _, below = text.partition("\n\nBefore vLLM has a log")
    lines = [quoted(line)[0] for _, line, _ in rows(table)] + quoted(below)
    assert len(lines) > 20
    for line in lines:
        for part in filter(None, re.split(r" ?… ?", line)):
            assert any(part in text for text in texts), line


def test_every_log_line_is_documented() -> None:
    levels = {"DEBUG", "INFO", "WARNING", "ERROR"}
    beginnings = []
    for node in ast.walk(ast.parse(Path(messages.__file__).read_text())):
        text: ast.AST | None = None
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            text = node.value.elts[1]
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "text":
            text = node.value
        first = text.values[0] if isinstance(text, ast.JoinedStr) else text
        if isinstance(first, ast.Constant):
            beginnings.append(str(first.value).rstrip(" (")[:40])
    assert len(beginnings) >= 13
    lines = [quoted(line)[0] for level, line, _ in rows(section("Log lines")) if level in levels]
    for beginning in beginnings:
        known = [line for line in lines if line.partition("…")[0].rstrip()[:40] in beginning]
        assert any(line.startswith(beginning[:9]) for line in known), beginning


@pytest.mark.parametrize("command", COMMANDS)
def test_exit_codes_are_those_of_the_help(command: str) -> None:
    documented = {quoted(name)[0]: codes for name, _, codes in rows(section("Exit codes"))}
    assert list(documented) == list(COMMANDS)
    said = re.search(r"Exit\b.*?(?=\n\n|\Z)", hisparse_guard(command, "--help").stdout, re.S)
    in_help = set(map(int, re.findall(r"\b\d+\b", said[0]))) if said else set()
    in_page = set(map(int, re.findall(r"\b\d+\b", documented[command])))
    assert in_page - COMMON == in_help - COMMON


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_files_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


def test_every_page_is_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        for target in re.findall(r"\]\(([^)\s#]+\.md)", page.read_text()):
            waiting.append((page.parent / target).resolve())
    assert set(PAGES) <= reached, set(PAGES) - reached


def test_sizes() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= LONGEST_README
    for page in (ROOT / "docs/how-to").glob("*.md"):
        assert len(page.read_text().splitlines()) <= 60, page


def test_the_version_is_this_one() -> None:
    assert f"\n## {__version__} (" in (ROOT / "CHANGELOG.md").read_text()
    for page in PAGES:
        for version in re.findall(r"hisparse-guard-(\d[\w.]*)\.zip", page.read_text()):
            assert version == __version__, page
