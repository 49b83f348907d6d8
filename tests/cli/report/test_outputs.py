"""The report as a table, as JSON, as a page and as metrics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.report.samples import Process, world
from tests.support.bundles import hisparse_guard
from tests.support.command import run_here

ROOT = Path(__file__).resolve().parents[3]
NASTY = "x\"'<script>alert(1)</script>\\\n[bold]{{7*7}}\x1b[31m"


def report(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_here("report", *arguments, env={**os.environ, "COLUMNS": "140"})


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    """Two servers: one safe with an API server, one unsafe and with a hostile model name."""
    folder = tmp_path / "evidence"
    Process(rank=None, pid=50, ppid=1, start=-5.0).config().write(folder)
    for process in world():
        process.guarded().write(folder)
    for process in world(host="node-b", rendezvous="tcp://b:1", instance="b", mode="observe"):
        process.config(model=NASTY).observed().write(folder)
    return folder


class Page(HTMLParser):
    """Collects what a browser would fetch or run, and checks that every tag is closed."""

    VOID = frozenset({"meta", "br", "hr", "img", "input", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.mark.parametrize(
    ("prepare", "code", "word"),
    [
        (lambda p: p.guarded(), 0, "safe"),
        (lambda p: p.observed(), 1, "unsafe"),
        (lambda p: p.config().resolve(alone=None, answer=None, rule="no-backend"), 0, "safe"),
        (lambda p: p.config().resolve(), 4, "unproven"),
    ],
)
def test_exit_codes(tmp_path: Path, prepare: object, code: int, word: str) -> None:
    for process in world():
        prepare(process).write(tmp_path)  # type: ignore[operator]
    done = report(tmp_path)
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.startswith(f"{word}: ")


def test_half_guarded(tmp_path: Path) -> None:
    world()[0].guarded().write(tmp_path)
    done = report(tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("partly guarded: ")
    assert "no evidence from rank 1" in done.stdout


def test_an_empty_folder_is_no_evidence(tmp_path: Path) -> None:
    done = report(tmp_path)
    assert (done.returncode, done.stdout.split(":")[0]) == (3, "no evidence")


def test_wrong_usage_is_one_line_and_exit_2(tmp_path: Path) -> None:
    for arguments in (
        [],
        [tmp_path / "nothing"],
        [tmp_path, "--prometheus", tmp_path / "metrics.txt"],
        [tmp_path, "--html", tmp_path / "no" / "such" / "folder.html"],
    ):
        done = report(*arguments)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert done.stderr.count("\n") == 1 and "report: " in done.stderr


def test_the_table(evidence: Path) -> None:
    done = report(evidence)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith("unsafe: ")
    assert any("0/2" in line and "mnnvl (made)" in line and "observe" in line for line in lines)
    assert any("1/2" in line and "trtllm (verified)" in line for line in lines)
    assert "and 1 other process, not judged as workers" in done.stdout
    assert "flashinfer_all_reduce.py:190 in get_fi_ar_workspace" in done.stdout
    assert "\x1b" not in done.stdout and "[bold]" in done.stdout
    assert "about the evidence" not in done.stdout
    assert all(line == line.rstrip() for line in lines)


def test_no_letter_in_a_page_hides_or_turns_others(tmp_path: Path) -> None:
    """Neither in a field nor in a list of them."""
    for process in world(host="node\u202ea\x1b[31m"):
        process.guarded().write(tmp_path, f"{process.pid}.jsonl")
    assert report(tmp_path, "--html", tmp_path / "page.html").returncode == 0
    page = (tmp_path / "page.html").read_text()
    assert "node\\u202ea\\x1b[31m" in page
    assert all(c.isprintable() or c in "\n\t" for c in page)


def test_many_equal_workers_are_folded(tmp_path: Path) -> None:
    for process in world(64):
        process.guarded().write(tmp_path)
    lines = report(tmp_path).stdout.splitlines()
    assert any(line.split()[:2] == ["0-63", "safe"] for line in lines)
    assert len(lines) < 15


def test_of_many_servers_only_the_bad_have_tables(tmp_path: Path) -> None:
    for number in range(25):
        for process in world(pid=100 + 2 * number, rendezvous=f"tcp://a:{number}"):
            (process.observed() if number == 7 else process.guarded()).write(tmp_path)
    lines = report(tmp_path).stdout.splitlines()
    assert sum(line.startswith("safe  ") for line in lines) == 24
    assert [line.split()[:2] for line in lines if "mnnvl (made)" in line] == [["0-1", "unsafe"]]
    assert not any("trtllm (verified)" in line for line in lines)


def test_missing_ranks_have_a_row(tmp_path: Path) -> None:
    for process in world(8)[:5]:
        process.guarded().write(tmp_path)
    lines = report(tmp_path).stdout.splitlines()
    assert "  5-7   no evidence" in lines


def test_a_terminal_that_is_not_utf8_costs_no_answer(tmp_path: Path) -> None:
    for process in world():
        process.guarded().config(model="modèle…").write(tmp_path)
    done = hisparse_guard("report", tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("safe: ")


@pytest.mark.parametrize("form", ["--json", None])
def test_a_full_disk_is_no_verdict(evidence: Path, form: str | None) -> None:
    command = [
        sys.executable,
        "-m",
        "hisparse_guard",
        "report",
        evidence,
        *([form] if form else []),
    ]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, check=False, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
    said = "hisparse-guard: cannot write the output: the disk is full\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_json_is_all_there_is(evidence: Path) -> None:
    done = report(evidence, "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["exit_code"], found["verdict"]) == (1, 1, "unsafe")
    bad, good = found["servers"]
    assert [worker["verdict"] for worker in bad["workers"]] == ["unsafe", "unsafe"]
    assert bad["workers"][0]["workspace"]["backend"] == "mnnvl"
    assert good["workers"][1]["workspace"] == {
        "backend": "trtllm",
        "verified": True,
        "all": ["trtllm"],
        "failed": False,
        "error": None,
        "serves": None,
        "mismatch": None,
    }
    assert good["misses"][0]["ranks"] == [0, 1]
    site = found["sites"][good["misses"][0]["site"]]
    assert site["stack"][0]["function"] == "profile_cudagraph_memory"
    assert (site["vllm_alone"], site["used"]) == ("mnnvl", "trtllm")
    assert found["sites"][bad["misses"][0]["site"]]["used"] == "mnnvl"
    assert good["timeline"][0]["event"] == "armed"
    assert found["evidence"]["processes"] == 5


def test_the_page_is_self_contained_and_escapes(evidence: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    done = report(evidence, "--html", target)
    assert (done.returncode, done.stderr) == (1, "")
    text = target.read_text()
    page = Page(text)
    assert page.open == []
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "a"}
    for tag, attributes in page.tags:
        assert not {"src", "href", "srcset", "action", "data"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")], tag
    assert "url(" not in text and "@import" not in text
    assert "default-src 'none'" in text and "prefers-color-scheme: dark" in text
    assert any("<script>alert(1)</script>" in word for word in page.words)
    assert "{{7*7}}" in text
    # The verdict is what a person reads first.
    words = [word.strip() for word in page.words if word.strip()]
    assert words[words.index("hisparse-guard report") + 1] == "unsafe"
    assert sum(tag == "details" for tag, _ in page.tags) == 3
    assert "profile_cudagraph_memory" in text


def test_metrics_are_read_by_prometheus_own_parser(evidence: Path, tmp_path: Path) -> None:
    target = tmp_path / "guard.prom"
    target.write_text("old\n")
    target.chmod(0o600)
    done = report(evidence, "--prometheus", target)
    assert (done.returncode, done.stderr) == (1, "")
    families = {f.name: f for f in text_string_to_metric_families(target.read_text())}
    true = {
        (sample.labels["server"].partition("@")[0], sample.labels["verdict"])
        for sample in families["hisparse_guard_server_verdict"].samples
        if sample.value == 1
    }
    assert true == {("tcp://b:1", "unsafe"), ("tcp://10.0.0.1:29500", "safe")}
    workers = families["hisparse_guard_worker_verdict"].samples
    assert [(s.labels["rank"], s.labels["backend"]) for s in workers] == [
        ("0", "mnnvl"),
        ("1", "mnnvl"),
        ("0", "trtllm"),
        ("1", "trtllm"),
    ]
    assert families["hisparse_guard_report_exit_code"].samples[0].value == 1
    # node_exporter refuses a file with timestamps or a series twice.
    series = [
        (s.name, tuple(sorted(s.labels.items()))) for f in families.values() for s in f.samples
    ]
    assert len(series) == len(set(series))
    assert all(s.timestamp is None for f in families.values() for s in f.samples)
    assert list(tmp_path.glob(".guard*")) == []
    assert target.stat().st_mode & 0o044 == 0o044


def test_a_page_that_cannot_be_written_leaves_the_old_one(evidence: Path, tmp_path: Path) -> None:
    from hisparse_guard.cli.output import replace_file

    target = tmp_path / "report.html"
    target.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        replace_file(target, "\ud800")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["report.html"]


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    """/dev/stdout is a link, and root could replace it."""
    from hisparse_guard.cli.output import replace_file

    target, link = tmp_path / "report.html", tmp_path / "link.html"
    link.symlink_to(target)
    for content in ("first", b"second"):
        replace_file(link, content)
        assert link.is_symlink()
    assert target.read_text() == "second"


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from hisparse_guard.cli.app import run_app; run_app(['report', '--help']);"
        "sys.exit(bool({'jinja2', 'prometheus_client', 'multiprocessing'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)


def test_a_reader_that_leaves_is_no_verdict(evidence: Path) -> None:
    command = [sys.executable, "-m", "hisparse_guard", "report", str(evidence)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert (process.wait(), process.stderr.read()) == (141, b"")
    process.stderr.close()


def test_the_kernel_class_is_in_every_form(tmp_path: Path) -> None:
    for process in world():
        process.lines[0] = process.lines[0][:-1] + ',"kernel_class":"races"}'
        process.guarded().write(tmp_path)
    html, prom = tmp_path / "page.html", tmp_path / "guard.prom"
    done = report(tmp_path, "--html", html, "--prometheus", prom)
    assert done.returncode == 0
    assert "kernel class races: " in done.stdout and "0.7.4" in done.stdout
    assert "Kernel class races: " in html.read_text()
    assert 'kernel_class="races"' in prom.read_text()
    (server,) = json.loads(report(tmp_path, "--json").stdout)["servers"]
    assert "0.7.4" in server["kernel_classes"]["races"]
    assert server["workers"][0]["kernel_class"] == "races"
