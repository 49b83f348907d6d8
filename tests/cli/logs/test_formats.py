"""The same log in every format and packing gives the same answer."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path

import pytest
import zstandard

from hisparse_guard.cli.triage import triage
from tests.cli.logs.formats import FORMATS, PART
from tests.cli.triage.logs import (
    COPY_FRAMES,
    HISPARSE_METRICS,
    LAUNCH_FAILURE,
    line,
    request,
    start,
    started_up,
    stats,
    traceback,
    workspace,
)
from tests.cli.triage.test_inputs import lead

CRASH = "\n".join(
    [
        start(),
        workspace("mnnvl"),
        started_up(),
        HISPARSE_METRICS,
        stats(),
        request(),
        traceback(2, COPY_FRAMES, LAUNCH_FAILURE),
    ]
).splitlines()


def answer(tmp_path: Path, data: bytes) -> list[tuple[str, str]]:
    path = tmp_path / "vllm.log"
    path.write_bytes(data)
    return lead(triage([str(path)]))


@pytest.mark.parametrize("name", FORMATS)
def test_a_crash_in_every_format(tmp_path: Path, name: str) -> None:
    text = "\n".join(FORMATS[name](CRASH)) + "\n"
    assert answer(tmp_path, text.encode()) == [("hisparse-mnnvl", "proven")]
    (judged,) = triage([str(tmp_path / "vllm.log")]).runs
    trouble = judged.run.first_trouble()
    assert trouble is not None and trouble.place.rank == "TP2"
    assert trouble.frame == "vllm/v1/worker/gpu/async_utils.py:175 in get_output"


@pytest.mark.parametrize("prefix", ["all", "first", "tag", "none"])
def test_a_traceback_in_every_style(tmp_path: Path, prefix: str) -> None:
    lines = [start(), workspace("mnnvl"), started_up(), HISPARSE_METRICS]
    text = "\n".join([*lines, traceback(2, COPY_FRAMES, LAUNCH_FAILURE, prefix=prefix)]) + "\n"
    assert answer(tmp_path, text.encode()) == [("hisparse-mnnvl", "proven")]


@pytest.mark.parametrize(
    "pack",
    [
        gzip.compress,
        bz2.compress,
        lzma.compress,
        zstandard.compress,
        lambda data: data.decode().encode("utf-16"),
        lambda data: data.decode().encode("utf-16-le"),
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data.replace(b"(Worker", b"\x1b[0;36m(Worker").replace(
            b") ERR", b")\x1b[0m ERR"
        ),
    ],
    ids=["gzip", "bzip2", "xz", "zstd", "utf-16", "utf-16-le", "crlf", "bom", "colour"],
)
def test_every_packing(tmp_path: Path, pack: object) -> None:
    data = pack(("\n".join(CRASH) + "\n").encode())  # type: ignore[operator]
    assert answer(tmp_path, data) == [("hisparse-mnnvl", "proven")]


@pytest.mark.parametrize(
    "stamp",
    [
        "11-03 22:14:04",
        "11-03-2026-22:14:04.931",
        "2026-11-03 22:14:04",
        "22:14:04",
        "11/03 22:14:04",
    ],
)
def test_every_date_format(tmp_path: Path, stamp: str) -> None:
    text = "\n".join(CRASH).replace("11-03 22:14:04", stamp) + "\n"
    assert answer(tmp_path, text.encode()) == [("hisparse-mnnvl", "proven")]
    (judged,) = triage([str(tmp_path / "vllm.log")]).runs
    trouble = judged.run.first_trouble()
    assert trouble is not None and trouble.place.time == stamp


@pytest.mark.parametrize(
    "head",
    [
        "{time} - vllm.v1.engine.core - {level} - ",
        "[{time}] [{level}] vllm: ",
        "{time} {level} core.py:12] ",
    ],
)
def test_a_logging_configuration_of_the_operators_own(tmp_path: Path, head: str) -> None:
    time = "2026-11-03 22:14:04,123"
    lines = [
        f"{head.format(time=time, level='INFO')}vLLM server version 0.33.0, serving model m",
        "INFO:     Application startup complete.",
        f"{head.format(time=time, level='ERROR')}EngineCore encountered a fatal error.",
        "Traceback (most recent call last):",
        '  File "vllm/v1/engine/core.py", line 1, in step',
        "RuntimeError: NCCL error: unhandled system error",
    ]
    assert answer(tmp_path, ("\n".join(lines) + "\n").encode()) == [("nccl-error", "proven")]


def test_several_prefixes_one_inside_the_other(tmp_path: Path) -> None:
    inner = FORMATS["docker"](FORMATS["vllm_json"](CRASH))
    lines = [f"[pod/vllm-0/vllm] 2026-11-03T22:14:04.1Z {text}" for text in inner]
    assert answer(tmp_path, ("\n".join(lines) + "\n").encode()) == [("hisparse-mnnvl", "proven")]


def test_an_error_in_a_json_record_of_any_length_is_not_lost(tmp_path: Path) -> None:
    healthy = [*start(connector="None").splitlines(), started_up(), stats(), request()]
    for size in (PART, 20 * PART, 80 * PART):
        record = {
            "asctime": "2026-11-03 22:14:04", "levelname": "ERROR", "name": "vllm.v1.engine.core",
            "processName": "EngineCore_DP0", "process": 648, "message": "Dumping it: " + "x" * size,
        }  # fmt: skip
        text = "\n".join([*FORMATS["vllm_json"](healthy), json.dumps(record)]) + "\n"
        assert answer(tmp_path, text.encode()) == []
        assert triage([str(tmp_path / "vllm.log")]).exit_code == 4


def test_a_progress_bar_that_was_not_ended_hides_no_error(tmp_path: Path) -> None:
    bar = "Capturing CUDA graphs:  12%|#         | 6/51 [00:01<00:09,  4.7it/s]"
    for join in ("", "\r"):
        error = line(
            "Worker_TP0 pid=703", "torch.AcceleratorError: CUDA error: misaligned address", "ERROR"
        )
        text = "\n".join([*CRASH[:4], bar + join + error]) + "\n"
        assert answer(tmp_path, text.encode()) == [("cuda-error", "proven")]


def test_a_damaged_archive_is_judged_up_to_the_damage(tmp_path: Path) -> None:
    data = gzip.compress(("\n".join(CRASH) + "\n").encode() * 200)
    answer(tmp_path, data[: len(data) // 2])
    result = triage([str(tmp_path / "vllm.log")])
    assert result.exit_code != 0
    assert "reading stopped early" in result.files[0].notes[0]
