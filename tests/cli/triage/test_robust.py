"""No input breaks triage, and none makes it stand still."""

# Log lines are long.
# ruff: noqa: E501

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hisparse_guard.cli.triage import triage
from hisparse_guard.cli.triage.render import page
from tests.cli.logs.formats import FORMATS
from tests.cli.triage.logs import (
    COPY_FRAMES,
    LAUNCH_FAILURE,
    armed,
    line,
    request,
    shm_wait,
    start,
    started_up,
    stats,
    traceback,
    workspace,
)

SIZE = 400_000
ACCESS = '(APIServer pid=588) INFO:     10.0.0.9:4711 - "GET /{} HTTP/1.1" 404 Not Found\n'
# What once took minutes: 0.1 to 1 MB each.
STALLS: dict[str, Callable[[], str]] = {
    "conc": lambda: "conc done " * (SIZE // 10),
    "blank": lambda: "\n" * SIZE,
    "blanks": lambda: " " * SIZE + "\n" + "\t \n" * (SIZE // 3),
    "dashes": lambda: ("-" * 79 + "\n") * (SIZE // 80),
    "totals": lambda: "Total / Success / Failed " * (SIZE // 25) + "\n",
    "total lines": lambda: "Total / Success / Failed\n" * (SIZE // 25),
    "long urls": lambda: ACCESS.format("a" * 65536) * (SIZE // 65536),
    "one long access": lambda: ACCESS.format("a" * 240_000),
    "workspace": lambda: "workspace: " * (65536 // 11) + "\n",
    "pods": lambda: "".join(f"[pod/p{n}/vllm] {request()}\n" for n in range(5000)),
    "stern pods": lambda: "".join(f"p{n} vllm {request()}\n" for n in range(5000)),
    "quotes": lambda: '{"log":"' * (SIZE // 8) + "\n",
    "braces": lambda: '{"a":' * (SIZE // 5) + "\n",
    "brackets": lambda: "[" * SIZE + "\n",
    "tags": lambda: "(Worker pid=1) " * (SIZE // 15) + "\n",
    "frames": lambda: '  File "x", line 1, in y\n' * (SIZE // 25),
    "tracebacks": lambda: "Traceback (most recent call last):\n" * (SIZE // 35),
    "chained": lambda: "ValueError\nDuring handling of the above\n" * (SIZE // 40),
    "parts": lambda: "2026-11-03T22:14:04Z stderr P aaaa\n" * (SIZE // 35),
    "escapes": lambda: "\x1b[0m" * (SIZE // 4) + "\n",
    "returns": lambda: "10%|#|\r" * (SIZE // 7) + "\n",
    "errors": lambda: "".join(
        line(f"Worker_TP{n} pid={n}", f"it went wrong {n}", "ERROR") + "\n" for n in range(4000)
    ),
    "nuls": lambda: "\0" * SIZE,
}


@pytest.mark.parametrize("name", STALLS)
def test_no_stall(tmp_path: Path, name: str) -> None:
    """That each ends is the check: the first triage took minutes for some."""
    path = tmp_path / "vllm.log"
    path.write_text(STALLS[name](), encoding="utf-8")
    result = triage([str(path)])
    assert result.exit_code in (3, 4)
    assert len(page(result, False).splitlines()) <= 25


PIECES = [
    *start().splitlines(), workspace("mnnvl"), workspace("trtllm"), started_up(), stats(), stats(gen=0.0),
    request(), request(500), armed(0), shm_wait(1), *traceback(2, COPY_FRAMES, LAUNCH_FAILURE).splitlines(),
    '{"log":"x\\n","stream":"stderr"}', "[pod/a/b] x", "NVRM: Xid (PCI:0000:4e:00): 79, x",
    "hisparse-guard: world_size=" + "9" * 5000, "conc done fail", "1 2 x",
    "Avg prompt throughput: 9e999 tokens/s, Avg generation throughput: 1.1.1 tokens/s, Running: 1 reqs",
]  # fmt: skip
JUNK = st.one_of(
    st.sampled_from(PIECES),
    st.text(max_size=60),
    st.builds(
        lambda piece, at, text: piece[:at] + text + piece[at:],
        st.sampled_from(PIECES), st.integers(0, 200), st.text(max_size=20),
    ),
    st.builds(lambda piece, n: piece[:n], st.sampled_from(PIECES), st.integers(0, 200)),
    st.builds(
        lambda piece, n: piece.replace("0", str(n)), st.sampled_from(PIECES), st.integers(0, 10**40)
    ),
)  # fmt: skip
TRIED = settings(
    max_examples=120, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip


@TRIED
@given(
    lines=st.lists(JUNK, max_size=30),
    name=st.sampled_from(sorted(FORMATS)),
    encoding=st.sampled_from(["utf-8", "utf-16", "latin-1"]),
    cut=st.integers(0, 3000),
)
def test_no_text_breaks_it(
    tmp_path: Path, lines: list[str], name: str, encoding: str, cut: int
) -> None:
    text = "\n".join(FORMATS[name]([text.replace("\ud800", "") for text in lines]))
    path = tmp_path / "vllm.log"
    path.write_bytes(text.encode(encoding, "replace")[cut if cut < 300 else 0 :])
    result = triage([str(path)], symptoms=["slow"])
    assert result.exit_code in (1, 3, 4)
    assert len(page(result, False).splitlines()) <= 25
    page(result, True)
    result.to_json()


@TRIED
@given(data=st.binary(max_size=3000))
def test_no_bytes_break_it(tmp_path: Path, data: bytes) -> None:
    for begin in (b"", b"\x1f\x8b", b"BZh9", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"):
        path = tmp_path / "vllm.log"
        path.write_bytes(begin + data)
        assert triage([str(path)]).exit_code in (1, 3, 4)


def test_only_patterns_of_linear_time() -> None:
    import hisparse_guard.cli.triage as package

    for path in Path(package.__file__).parent.glob("*.py"):
        assert "import re\n" not in path.read_text(encoding="utf-8"), path.name


def test_an_internal_error_has_its_own_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hisparse_guard.__main__ import main

    def broken(*_: object) -> None:
        raise ZeroDivisionError("planted")

    path = tmp_path / "vllm.log"
    path.write_text(start() + "\n")
    monkeypatch.setattr("hisparse_guard.cli.triage.examine.judge", broken)
    monkeypatch.setattr(sys, "argv", ["hisparse-guard", "triage", str(path)])
    assert main() == 70
    assert "planted" in capsys.readouterr().err


def test_who_reads_no_further_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text("\n".join(line(f"Worker_TP{n} pid={n}", "x", "ERROR") for n in range(3000)))
    command = [sys.executable, "-m", "hisparse_guard", "triage", "--json", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode != 70


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO((start() + "\n").encode()))
    monkeypatch.setattr(sys, "stdin", stream)
    assert triage(["-"]).exit_code == 4
