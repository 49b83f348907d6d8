"""Each of the inputs on which the first triage was wrong gives what it has to give."""

from __future__ import annotations

from pathlib import Path

import pytest

from hisparse_guard.cli.triage import Triage, triage

DATA = Path(__file__).parents[2] / "data" / "triage"
EXCERPTS = Path(__file__).parents[2] / "data" / "logs"

# file, exit code, the findings that lead, as (fault, certainty)
ROWS: list[tuple[str, int, list[tuple[str, str]]]] = [
    ("two-pods-blank-prefix.log", 1, [("host-mirror-collected", "likely")]),
    ("engine-died-old.log", 1, [("engine-died", "unconfirmed")]),
    ("hang-while-serving.log", 1, [("hang-under-load", "likely")]),
    ("traceback-alone-nccl.log", 1, [("nccl-error", "proven")]),
    ("gloo-closure-before-worker-death.log", 1, [("gloo-timeout", "proven")]),
    ("illegal-address-of-another-kernel-while-serving.log", 1, [("cuda-illegal-access", "proven")]),
    ("graph-replay-without-hisparse.log", 1, [("cuda-launch-failure", "proven")]),
    ("kv-transfer-failed-while-answering-200.log", 1, [("kv-transfer-failed", "proven")]),
    ("only-500-on-messages.log", 4, []),
    ("trouble-after-500-lines.log", 1, [("custom-all-reduce-failed", "proven")]),
    ("client-hides-death-as-shutdown.log", 1, [("worker-died", "unconfirmed")]),
    ("client-forges-rpc-timeout.log", 0, []),
    ("client-forges-in-request-id.log", 0, []),
    ("client-url-names-trtllm.log", 1, [("hisparse-mnnvl", "likely")]),
    ("client-line-split-by-cri.log", 0, []),
    ("client-url-names-cuda-error.log", 4, []),
    ("number-where-done-stands.log", 0, []),
    ("world-size-of-5000-digits.log", 0, []),
    ("ray-worker-died-033.log", 1, [("worker-died", "unconfirmed")]),
    ("messages-500.log", 4, []),
    ("xid-31.log", 1, [("gpu-memory-fault", "likely")]),
    ("no-token-for-minutes.log", 1, [("hang-under-load", "likely")]),
    ("api-server-died-at-start.log", 1, [("never-came-up", "unconfirmed")]),
    ("process-traceback.log", 1, [("engine-died", "unconfirmed")]),
    ("start-ends-in-traceback.log", 1, [("never-came-up", "unconfirmed")]),
    ("moe-kernel-illegal-access.log", 1, [("cuda-illegal-access", "proven")]),
    ("long-timestamps.log", 1, [("cuda-illegal-access", "proven")]),
    ("hisparse-only-mentioned.log", 1, [("cuda-launch-failure", "proven")]),
    ("mnnvl-line-then-trtllm.log", 1, [("host-mirror-collected", "unconfirmed")]),
    (
        "two-pods-tail-unlabelled.log",
        1,
        [("hisparse-mnnvl-waiting", "proven"), ("cuda-launch-failure", "proven")],
    ),
    ("one-line-of-another-program.log", 4, []),
    ("ramp-failed.log", 4, []),
]
# Real excerpts, as published.
PUBLISHED: list[tuple[str, int, list[tuple[str, str]]]] = [
    ("main-crash.log", 1, [("hisparse-mnnvl", "proven")]),
    ("mirror-collected.txt", 1, [("host-mirror-collected", "likely")]),
    ("replay-faulting.txt", 1, [("host-mirror-replay", "likely")]),
    # One line of a start: no health is shown by it.
    ("fixed-ok.log", 4, []),
    ("serve-command.sh", 3, []),
    ("evalscope-summary.txt", 3, []),
]


def lead(result: Triage) -> list[tuple[str, str]]:
    """The findings that follow from no other, of all runs."""
    return [
        (one.fault.id, one.certainty)
        for judged in result.runs
        for one in judged.findings
        if one.follows_from is None
    ]


def test_every_input_has_a_row() -> None:
    assert {name for name, _, _ in ROWS} == {path.name for path in DATA.glob("*.log")}


@pytest.mark.parametrize(("name", "code", "named"), ROWS)
def test_input(name: str, code: int, named: list[tuple[str, str]]) -> None:
    paths = [str(DATA / name)]
    if (DATA / name).with_suffix(".json").exists():
        paths.append(str((DATA / name).with_suffix(".json")))
    result = triage(paths)
    assert (result.exit_code, lead(result)) == (code, named)


@pytest.mark.parametrize(("name", "code", "named"), PUBLISHED)
def test_published_excerpt(name: str, code: int, named: list[tuple[str, str]]) -> None:
    result = triage([str(EXCERPTS / name)])
    assert (result.exit_code, lead(result)) == (code, named)


def test_two_pods_are_two_servers() -> None:
    result = triage([str(DATA / "two-pods-blank-prefix.log")])
    prefill, decode = result.runs
    assert (prefill.run.origin, decode.run.origin) == ("vllm-prefill-0 vllm", "vllm-decode-0 vllm")
    assert "workspace_mnnvl" not in decode.run.seen and not prefill.findings


def test_the_worker_death_follows_from_the_gloo_closure() -> None:
    (judged,) = triage([str(DATA / "gloo-closure-before-worker-death.log")]).runs
    assert [(f.fault.id, f.follows_from) for f in judged.findings] == [
        ("gloo-timeout", None),
        ("worker-died", "gloo-timeout"),
    ]


@pytest.mark.parametrize(
    ("name", "frame"),
    [
        ("moe-kernel-illegal-access.log", "core.py:1922 in trtllm_fp4_block_scale_moe"),
        ("illegal-address-of-another-kernel-while-serving.log", "tvm_ffi.py:287 in func"),
        ("long-timestamps.log", "linear.py:1426 in forward"),
        ("hisparse-only-mentioned.log", "async_utils.py:175 in get_output"),
    ],
)
def test_the_frame_is_named(name: str, frame: str) -> None:
    (judged,) = triage([str(DATA / name)]).runs
    trouble = judged.run.first_trouble()
    assert trouble is not None and trouble.frame is not None and trouble.frame.endswith(frame)


def test_long_time_stamps_give_rank_and_time() -> None:
    (judged,) = triage([str(DATA / "long-timestamps.log")]).runs
    trouble = judged.run.first_trouble()
    assert trouble is not None
    assert (trouble.place.rank, trouble.place.time) == ("TP7", "04-28-2026-15:50:31.931")


def test_a_standstill_says_since_when_and_for_how_long() -> None:
    (judged,) = triage([str(DATA / "no-token-for-minutes.log")]).runs
    assert judged.stall is not None
    assert (judged.stall.since.time, judged.stall.seconds) == ("11-03 22:10:00", 540)


def test_garbled_output_is_explained_by_the_failed_transfer_first() -> None:
    path = str(DATA / "kv-transfer-failed-while-answering-200.log")
    result = triage([path], symptoms=["garbled"])
    (judged,) = result.runs
    assert [(f.fault.id, f.follows_from) for f in judged.findings] == [
        ("kv-transfer-failed", None),
        ("hisparse-garbled-output", "kv-transfer-failed"),
    ]


def test_the_verdict_does_not_depend_on_the_length(tmp_path: Path) -> None:
    lines = (DATA / "trouble-after-500-lines.log").read_text().splitlines()
    short = tmp_path / "short.log"
    short.write_text("\n".join([lines[0], lines[-1]]) + "\n")
    assert lead(triage([str(short)])) == [("custom-all-reduce-failed", "proven")]


@pytest.mark.parametrize(
    "ramp",
    [
        '{"tool": "hisparse-guard ramp", "verdict": "failed", "levels": []}',
        '{"tool": "hisparse-guard ramp", "verdict": "passed", "levels": []}',
        '{"tool": "hisparse-guard ramp", "levels": [{"done": 3, "failed": 0}]}',
        '{"tool": "hisparse-guard ramp", "verdict": "passed", "partial": true,'
        ' "levels": [{"done": 3, "failed": 0}]}',
        '{"tool": "hisparse-guard ramp", "verdict": "passed",'
        ' "levels": [{"done": 3, "failed": 1}]}',
    ],
)
def test_a_ramp_that_did_not_pass_is_never_health(tmp_path: Path, ramp: str) -> None:
    (tmp_path / "ramp.json").write_text(ramp)
    log = str(DATA / "number-where-done-stands.log")
    assert triage([log, str(tmp_path / "ramp.json")]).exit_code == 4


def test_a_ramp_that_passed_makes_nothing_better(tmp_path: Path) -> None:
    good = (
        '{"tool": "hisparse-guard ramp", "verdict": "passed", "levels": [{"done": 3, "failed": 0}]}'
    )
    (tmp_path / "ramp.json").write_text(good)
    healthy, unclear = (
        DATA / f"{n}.log" for n in ("number-where-done-stands", "only-500-on-messages")
    )
    assert triage([str(healthy), str(tmp_path / "ramp.json")]).exit_code == 0
    assert triage([str(unclear), str(tmp_path / "ramp.json")]).exit_code == 4
    assert triage([str(tmp_path / "ramp.json")]).exit_code == 3
