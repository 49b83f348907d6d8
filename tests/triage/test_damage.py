"""Damaged, strange and hostile input: a clear answer each time, nothing lost, no crash."""

# Log lines are long.
# ruff: noqa: E501

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hisparse_guard.cli.app import run_app
from hisparse_guard.cli.triage import reader, triage
from tests.triage.cases import CASES
from tests.triage.logs import (
    COPY_FRAMES,
    DATA,
    HISPARSE_METRICS,
    LAUNCH_FAILURE,
    excerpt,
    line,
    request,
    served,
    start,
    stats,
    traceback,
    workspace,
)

CRASH = excerpt("main-crash.log")


def write(tmp_path: Path, data: str | bytes) -> str:
    path = tmp_path / "vllm.log"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


def named(path: str) -> list[str]:
    return [f"{f.fault.id} {f.certainty}" for _, j in triage([path]).lives for f in j.findings]


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "empty"),
        (b"\n\n\n", "not a vLLM log"),
        (b"hello\nworld\n", "not a vLLM log"),
        (b"2026-11-03 ERROR com.example.Main - java.lang.RuntimeException: x\n", "not a vLLM log"),
        (os.urandom(200_000), "not a vLLM log"),
        (b"\x00" * 100_000, "not a vLLM log"),
        (
            b"\x7fELF" + os.urandom(5000) + b"RuntimeError: %s\x00ERROR\x00died\x00",
            "not a vLLM log",
        ),
    ],
    ids=["nothing", "blank", "words", "another program", "random", "NULs", "a binary"],
)
def test_no_log(tmp_path: Path, data: bytes, word: str) -> None:
    result = triage([write(tmp_path, data)])
    assert (result.exit_code, result.files[0].kind, result.verdict) == (3, word, "no log")


def test_folder_and_missing_file_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (str(tmp_path), str(tmp_path / "no.log")):
        assert run_app(["triage", name]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and name in error


def test_first_and_last_line_cut(tmp_path: Path) -> None:
    # Cut within the first line behind "FlashInfer", and within the last one.
    path = write(
        tmp_path, "2 [flashinfer_all_reduce.py:252] " + CRASH[CRASH.index("Initialized") : -30]
    )
    assert named(path) == ["hisparse-mnnvl proven"]


@pytest.mark.parametrize("at", range(0, len(CRASH), 97))
def test_cut_anywhere(tmp_path: Path, at: int) -> None:
    for data in (CRASH[:at], CRASH[at:]):
        assert triage([write(tmp_path, data)]).exit_code in (0, 1, 3, 4)
    # As long as the error is whole, it is not called healthy.
    if "unspecified launch failure" in CRASH[:at]:
        assert triage([write(tmp_path, CRASH[:at])]).exit_code == 1


def test_invalid_utf8_in_evidence(tmp_path: Path) -> None:
    data = CRASH.encode().replace(b"workspace with", b"workspace with").replace(
        b"Error getting async", b"\xff\xfe Error getting \xc3\x28 async"
    )  # fmt: skip
    path = write(tmp_path, b"\xef\xbb\xbf" + data)
    assert named(path) == ["hisparse-mnnvl proven"]
    json.dumps(triage([path]).to_json())


@pytest.mark.parametrize("place", ["before", "after", "alone"])
def test_lines_of_megabytes(tmp_path: Path, place: str) -> None:
    junk = "x" * 3_000_000
    lines = CRASH.splitlines()
    if place == "before":
        lines[0] = junk + lines[0]
    elif place == "after":
        lines[13] = lines[13] + junk
    else:
        lines.insert(5, junk * 4)
    path = write(tmp_path, "\n".join(lines))
    assert named(path) == ["hisparse-mnnvl proven"]
    result = triage([path])
    numbers = [line.number for line in result.lives[0][1].findings[0].evidence]
    assert 1 in numbers and (15 if place == "alone" else 14) in numbers
    assert len(json.dumps(result.to_json())) < 60_000


def test_one_line_longer_than_any_buffer(tmp_path: Path) -> None:
    words = " ".join(CRASH.splitlines())
    path = write(tmp_path, "y" * (2 * reader.LONGEST) + words + "z" * (2 * reader.LONGEST))
    result = triage([path])
    assert result.exit_code == 1
    assert result.files[0].lines == 1


def test_a_prompt_is_not_evidence(tmp_path: Path) -> None:
    words = (
        "torch.AcceleratorError: CUDA error: unspecified launch failure at _finish_mirror_phase; "
        "Initialized FlashInfer Allreduce norm fusion workspace with backend=mnnvl; HiSparseConnector"
    )
    log = "\n".join(
        [
            start(),
            workspace("trtllm"),
            served(),
            line("APIServer pid=588", f"Received request cmpl-1: prompt: '{words}', params: "
                 "SamplingParams(n=1), prompt_token_ids: None, lora_request: None.", file="logger.py:43"),
            line("APIServer pid=588", f"Received request cmpl-2: prompt: '{words}', pa", file="logger.py:43"),
            line("APIServer pid=588", f"response_body={{{words}}}", file="log_response.py:141"),
        ]
    )  # fmt: skip
    result = triage([write(tmp_path, log)])
    assert result.exit_code == 0
    assert result.lives[0][1].life.count("launch_failure") == 0


@pytest.mark.parametrize(
    "head",
    ['{"log":"', '{"log":"cut', '{"log":"a\\n","stream":"std', '{"log":"a\\', '{"x":1} ', "{"],
)
def test_cut_json_with_another_process_behind_it(tmp_path: Path, head: str) -> None:
    lines = CRASH.splitlines()
    lines[13] = head + lines[13]
    del lines[14:]
    assert named(write(tmp_path, "\n".join(lines))) == ["hisparse-mnnvl proven"]


def test_two_processes_in_one_line(tmp_path: Path) -> None:
    log = CRASH.replace("\n(Worker_TP2", request().replace("\n", "") + "(Worker_TP2")
    assert named(write(tmp_path, log)) == ["hisparse-mnnvl proven"]
    assert triage([write(tmp_path, log)]).lives[0][1].findings[0].ranks == ("TP2",)


def test_secrets_are_masked_in_all_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "hf_abcdefghijklmnopqrstuvwx"
    log = "\n".join(
        [
            f"export HF_TOKEN={secret} CUDA_LAUNCH_BLOCKING=1",
            start(),
            workspace("mnnvl"),
            HISPARSE_METRICS,
            traceback(0, COPY_FRAMES, f"{LAUNCH_FAILURE} api_key='{secret}'"),
        ]
    )
    path = write(tmp_path, log)
    for words in (["triage", path], ["triage", "--json", path]):
        assert run_app(words) == 1
        out = capsys.readouterr().out
        assert "***" in out
        assert secret not in out and "not-to-be-shown" not in out


def test_error_that_no_entry_describes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = "\n".join(
        [
            start(connector="None"),
            served(),
            traceback(
                0, [("vllm/v1/sample/sampler.py", 12, "sample", "f()")], "KeyError: 'logits'"
            ),
            line("EngineCore_DP0 pid=648", "EngineCore encountered a fatal error.", "ERROR"),
        ]
    )
    path = write(tmp_path, log)
    assert run_app(["triage", path]) == 4
    out = capsys.readouterr().out
    assert "KeyError: 'logits'" in out and "EngineCore encountered a fatal error" in out


def test_errors_that_end_nothing_stay_healthy_and_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = "\n".join(
        [
            start(),
            workspace("trtllm"),
            served(),
            line("APIServer pid=588", "Error in preprocessing prompt inputs", "ERROR"),
            request(),
        ]
    )
    assert run_app(["triage", write(tmp_path, log)]) == 0
    assert "Error in preprocessing prompt inputs" in capsys.readouterr().out


def test_failed_requests_without_a_reason_are_not_healthy(tmp_path: Path) -> None:
    log = "\n".join([start(), workspace("trtllm"), served(), request(), request(500)])
    result = triage([write(tmp_path, log)])
    assert result.exit_code == 4
    assert result.lives[0][1].life.requests_failed == 1


def test_crash_loop_of_thousands_is_bounded(tmp_path: Path) -> None:
    one = "\n".join([start(connector="None"), traceback(0, [], "KeyError: 'x'")]) + "\n"
    path = write(tmp_path, one * 600)
    result = triage([path])
    log = result.files[0]
    assert len(log.lives) + log.lives_dropped == 600
    assert result.exit_code == 4
    assert result.lives[-1][1].life.number == 600


def test_error_storm_counts_every_line(tmp_path: Path) -> None:
    storm = "\n".join(traceback(0, COPY_FRAMES, LAUNCH_FAILURE) for _ in range(3000))
    path = write(tmp_path, "\n".join([start(), workspace("mnnvl"), HISPARSE_METRICS, storm]))
    (_, judged), *_ = triage([path]).lives
    assert judged.life.count("cuda_error") == 3000
    assert judged.findings[0].fault.id == "hisparse-mnnvl"


@pytest.mark.parametrize("size", [64, 1000, 4096])
def test_block_borders_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    log = "\n".join(
        [start(), workspace("mnnvl"), served(), *(request() for _ in range(50)), stats(),
         traceback(1, COPY_FRAMES, LAUNCH_FAILURE, prefix="first"), request(500), request()]
    )  # fmt: skip
    path = write(tmp_path, log)
    expected = triage([path]).to_json()
    monkeypatch.setattr(reader, "BLOCK", size)
    assert triage([path]).to_json() == expected


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A log of a known fault with bytes, lines and order tampered with."""
    data = draw(st.sampled_from([case[2] for case in CASES] + [CRASH])).encode()
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.integers(0, 7))
        at = draw(st.integers(0, max(0, len(data) - 1)))
        to = min(len(data), at + draw(st.integers(0, 400)))
        if kind == 0:
            data = data[:at] + draw(st.binary(max_size=40)) + data[at:]
        elif kind == 1:
            data = data[:at] + data[to:]
        elif kind == 2:
            data = data[at:] + data[:at]
        elif kind == 3:
            lines = data.split(b"\n")
            data = b"\n".join(draw(st.permutations(lines)) if len(lines) < 60 else lines[::-1])
        elif kind == 4:
            data = data.replace(
                b"\n", draw(st.sampled_from([b"\r\n", b"\r", b"", b"\n\n", b"\\n"]))
            )
        elif kind == 5:
            data = b'{"log":"' + data
        elif kind == 6:
            data = data[:to] + data[at:]
        else:
            data = data.replace(b"pid=", draw(st.sampled_from([b"pid=9", b"pid=", b"pid=x", b"("])))
    return data


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=mutated())
def test_mutations_never_crash_and_evidence_is_in_the_log(tmp_path: Path, data: bytes) -> None:
    from hisparse_guard.cli.triage.render import text

    path = write(tmp_path, data)
    result = triage([path])
    assert result.exit_code in (0, 1, 3, 4)
    answer = json.loads(json.dumps(result.to_json()))
    assert answer["exit_code"] == result.exit_code
    assert text(result)
    count = data.count(b"\n") + (0 if data.endswith(b"\n") or not data else 1)
    assert result.files[0].lines == count
    lines = data.split(b"\n")
    for _, judged in result.lives:
        for finding in judged.findings:
            for evidence in finding.evidence:
                assert lines[evidence.number - 1], "evidence on an empty line"
        launches = judged.life.count("launch_failure")
        assert launches <= data.count(b"unspecified launch failure") + data.count(
            b"LaunchFailure"
        ) + data.count(b"719") + data.count(b"LAUNCH_FAILED")
    if b"unspecified launch failure" in data:
        assert result.exit_code != 0, "a launch failure was called healthy"


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=3000))
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    assert triage([write(tmp_path, data)]).exit_code in (0, 1, 3, 4)


def test_real_excerpts_are_untouched() -> None:
    assert len(list(DATA.iterdir())) >= 6


def test_archive_is_named(tmp_path: Path) -> None:
    import zipfile

    path = tmp_path / "logs.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("vllm.log", CRASH)
    result = triage([str(path)])
    assert result.exit_code == 3
    assert any("unpack it" in note for note in result.files[0].notes)
