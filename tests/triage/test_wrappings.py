"""The same log in every runtime's clothes gives the same answer with the same numbers."""

# Log lines are long.
# ruff: noqa: E501

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hisparse_guard.cli.triage import triage
from hisparse_guard.cli.triage.lines import parse
from tests.triage.logs import (
    DATA,
    LAUNCH_FAILURE,
    MIRROR_FRAMES,
    NIXL,
    excerpt,
    request,
    served,
    start,
    stats,
    traceback,
    workspace,
)


def docker(text: str) -> str:
    return json.dumps(
        {"log": text + "\n", "stream": "stderr", "time": "2026-11-03T22:14:04.123456789Z"},
        separators=(",", ":"),
        ensure_ascii=False,
    )


def ansi(text: str) -> str:
    text = re.sub(r"^(\(\w+ pid=\d+\))", "\x1b[0;36m\\1\x1b[0;0m", text)
    return re.sub(r"\b(INFO|ERROR)\b(?=[ :])", "\x1b[31m\\1\x1b[0m", text, count=1)


WRAPPINGS: dict[str, Callable[[str], str]] = {
    "docker": docker,
    "docker-ansi": lambda text: docker(ansi(text)),
    "cri": lambda text: f"2026-11-03T22:14:04.123456789Z stderr F {text}",
    "cri-offset": lambda text: f"2026-11-03T22:14:04.123456789+01:00 stdout F {text}",
    "kubectl-timestamps": lambda text: f"2026-11-03T22:14:04.123456789Z {text}",
    "kubectl-prefix": lambda text: f"[pod/vllm-decode-0/server] {text}",
    "stern": lambda text: f"vllm-decode-0 | {text}",
    "compose": lambda text: f"vllm-1  | {text}",
    "journald": lambda text: f"Nov 03 22:14:04 node-7 vllm[588]: {text}",
    "journald-iso": lambda text: f"2026-11-03T22:14:04+0000 node-7 vllm[588]: {text}",
    "journald-json": lambda text: json.dumps({"MESSAGE": text, "_PID": "588"}),
    "journald-bytes": lambda text: json.dumps(
        {"MESSAGE": list(ansi(text).encode()), "_PID": "588"}, separators=(",", ":")
    ),
    "ansi": ansi,
    "crlf": lambda text: text + "\r",
    "compose-ansi-docker": lambda text: f"\x1b[33mvllm-1  | \x1b[0m{docker(ansi(text))}",
    "systemd-cat-cri": lambda text: (
        f"Nov 03 22:14:04 node-7 kubelet[9]: 2026-11-03T22:14:04.1Z stderr F {text}"
    ),
}


def decode_log(prefix: str) -> str:
    return "\n".join(
        [
            start(connector=NIXL),
            workspace("trtllm"),
            served(),
            *(request() for _ in range(7)),
            stats(),
            *(traceback(rank, MIRROR_FRAMES, LAUNCH_FAILURE, prefix=prefix) for rank in range(4)),
            request(500),
        ]
    )


def answer(path: Path) -> list[object]:
    return [
        [
            (
                finding.fault.id,
                finding.certainty,
                finding.ranks,
                [line.number for line in finding.evidence],
            )
            for finding in judged.findings
        ]
        + [
            judged.life.done_before_fault,
            judged.life.requests_failed,
            sorted(judged.life.facts),
            sorted(judged.life.connectors),
            list(judged.life.ranks),
        ]
        for _, judged in triage([str(path)]).lives
    ]


@pytest.mark.parametrize("name", WRAPPINGS)
@pytest.mark.parametrize("log", ["crash", "decode"])
def test_same_answer(tmp_path: Path, name: str, log: str) -> None:
    text = excerpt("main-crash.log") if log == "crash" else decode_log("all")
    plain, wrapped = tmp_path / "plain.log", tmp_path / "wrapped.log"
    plain.write_text(text)
    wrapped.write_text("\n".join(WRAPPINGS[name](line) for line in text.splitlines()) + "\n")
    expected = answer(plain)
    assert expected[0], "nothing named"
    assert answer(wrapped) == expected


@pytest.mark.parametrize("prefix", ["all", "first", "tag", "none"])
@pytest.mark.parametrize("name", ["docker", "cri", "compose", "ansi", "crlf"])
def test_tracebacks_with_the_prefix_anywhere(tmp_path: Path, prefix: str, name: str) -> None:
    path = tmp_path / "vllm.log"
    text = decode_log(prefix)
    path.write_text("\n".join(WRAPPINGS[name](line) for line in text.splitlines()))
    (life,) = answer(path)
    finding = life[0]  # type: ignore[index]
    assert finding[:2] == ("host-mirror-collected", "likely")
    numbered = text.splitlines()
    shown = "\n".join(numbered[number - 1] for number in finding[3])
    assert "_finish_mirror_phase" in shown
    assert "unspecified launch failure" in shown
    if prefix in ("all", "tag"):
        assert finding[2] == ("TP0", "TP1", "TP2", "TP3")


def test_interleaved_workers(tmp_path: Path) -> None:
    traces = [traceback(rank, MIRROR_FRAMES, LAUNCH_FAILURE).splitlines() for rank in range(4)]
    mixed = [line for four in zip(*traces, strict=True) for line in four]
    path = tmp_path / "vllm.log"
    path.write_text("\n".join([start(connector=NIXL), workspace("trtllm"), served(), *mixed]))
    (_, judged), *_ = triage([str(path)]).lives
    assert judged.findings[0].fault.id == "host-mirror-collected"
    assert set(judged.findings[0].ranks) == {"TP0", "TP1", "TP2", "TP3"}
    from hisparse_guard.cli.triage.core import same_step

    assert same_step(judged.life) is True


def test_vllm_json_format_with_its_traceback_in_one_line(tmp_path: Path) -> None:
    trace = traceback(2, MIRROR_FRAMES, LAUNCH_FAILURE, prefix="none")
    record = {
        "asctime": "11-03 22:14:04",
        "levelname": "ERROR",
        "name": "vllm.v1.executor.multiproc_executor",
        "processName": "Worker_TP2",
        "process": 705,
        "message": "WorkerProc hit an exception.",
        "exc_info": trace,
    }
    path = tmp_path / "vllm.json.log"
    path.write_text(json.dumps(record) + "\n")
    (_, judged), *_ = triage([str(path)]).lives
    assert judged.findings[0].fault.id == "host-mirror-collected"
    assert judged.findings[0].ranks == ("TP2",)


@pytest.mark.parametrize(
    ("name", "pack"), [("x.log.gz", gzip.compress), ("x.log", gzip.compress), ("x.bz2", bz2.compress), ("x.xz", lzma.compress)]
)  # fmt: skip
def test_packed(tmp_path: Path, name: str, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / name
    path.write_bytes(pack((DATA / "main-crash.log").read_bytes()))
    assert answer(path) == answer(DATA / "main-crash.log")


def test_packed_and_cut_short_is_judged_as_far_as_it_goes(tmp_path: Path) -> None:
    packed = gzip.compress((DATA / "main-crash.log").read_bytes() * 200, 1)
    path = tmp_path / "cut.gz"
    path.write_bytes(packed[: len(packed) // 2])
    result = triage([str(path)])
    assert result.exit_code == 1
    assert any("stopped early" in note for note in result.files[0].notes)


def test_standard_input_also_packed() -> None:
    for data in (
        (DATA / "main-crash.log").read_bytes(),
        gzip.compress((DATA / "main-crash.log").read_bytes()),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "hisparse_guard", "triage", "--json", "-"],
            input=data,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 1, done.stderr
        assert json.loads(done.stdout)["lives"][0]["findings"][0]["id"] == "hisparse-mnnvl"


@pytest.mark.parametrize(
    ("raw", "label", "pid", "level", "time", "source", "rank", "message"),
    [
        (b"(Worker_TP2 pid=705) ERROR 11-03 22:14:04 [a.py:1] boom", "Worker_TP2", 705, "ERROR", "11-03 22:14:04", "a.py:1", "TP2", "boom"),
        (b"(Worker pid=9) (Worker_DP1_TP3_EP7 pid=10) INFO 11-03 22:14:04 [a.py:1] x", "Worker_DP1_TP3_EP7", 10, "INFO", "11-03 22:14:04", "a.py:1", "DP1 TP3", "x"),
        (b"(VllmWorker rank=3 pid=906) INFO 03-15 17:24:17 [pynccl.py:69] x", "VllmWorker", 906, "INFO", "03-15 17:24:17", "pynccl.py:69", "rank 3", "x"),
        (b"(VllmWorkerProcess pid=73) ERROR 06-13 01:30:49 multiproc_worker_utils.py:225] x", "VllmWorkerProcess", 73, "ERROR", "06-13 01:30:49", "multiproc_worker_utils.py:225", None, "x"),
        (b"(RayWorkerWrapper pid=539, ip=10.0.0.1) ERROR 03-27 10:29:13 [w.py:6] x", "RayWorkerWrapper", 539, "ERROR", "03-27 10:29:13", "w.py:6", None, "x"),
        (b"(APIServer pid=1) INFO:     Started server process [1]", "APIServer", 1, "INFO", None, None, None, "Started server process [1]"),
        (b"ERROR [core.py:1330] EngineCore failed to start.", None, None, "ERROR", None, "core.py:1330", None, "EngineCore failed to start."),
        (b"(EngineCore) ERROR core.py:1177   File", "EngineCore", None, "ERROR", None, "core.py:1177", None, "  File"),
        (b"[rank3]:[E1012 22:31:22.267261276 ProcessGroupNCCL.cpp:607] x", None, None, None, None, None, "rank 3", "[rank3]:[E1012 22:31:22.267261276 ProcessGroupNCCL.cpp:607] x"),
        (b"Loading: 50%|###  | 1/2\r(Worker_TP1 pid=7) INFO 11-03 22:14:04 [a.py:1] x", "Worker_TP1", 7, "INFO", "11-03 22:14:04", "a.py:1", "TP1", "x"),
    ],
)  # fmt: skip
def test_parts_of_a_line(
    raw: bytes,
    label: str | None,
    pid: int | None,
    level: str | None,
    time: str | None,
    source: str | None,
    rank: str | None,
    message: str,
) -> None:
    (line,) = parse("f", 1, raw)
    assert (line.label, line.pid, line.level, line.time, line.source, line.rank, line.message) == (
        label, pid, level, time, source, rank, message,
    )  # fmt: skip


def test_reader_gives_back_every_line_of_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    from hisparse_guard.cli.triage import reader

    monkeypatch.setattr(reader, "BLOCK", 700)
    log = decode_log("first").encode()
    numbered: dict[int, bytes] = {}
    selector = reader.Selector()
    for block in reader.blocks(io.BytesIO(log), print, lambda size: None):
        for found in selector.select(block):
            assert found.number not in numbered, "a line came twice"
            numbered[found.number] = found.raw
    lines = log.split(b"\n")
    for number, raw in numbered.items():
        assert lines[number - 1] == raw
    assert set(range(1, len(lines) + 1)) - set(numbered) == {
        n for n, raw in enumerate(lines, 1) if not raw
    }
