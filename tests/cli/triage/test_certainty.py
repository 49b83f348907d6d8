"""What keeps a fault from being proven, and which runs and servers are told apart."""

# Log lines are long.
# ruff: noqa: E501

from __future__ import annotations

from pathlib import Path

from hisparse_guard.cli.triage import triage
from tests.cli.triage.logs import (
    COPY_FRAMES,
    HISPARSE_METRICS,
    ILLEGAL,
    LAUNCH_FAILURE,
    MIRROR_FRAMES,
    NIXL,
    line,
    read,
    request,
    start,
    started_up,
    stats,
    traceback,
    workspace,
)
from tests.cli.triage.test_inputs import EXCERPTS, lead

CRASH = traceback(2, COPY_FRAMES, LAUNCH_FAILURE)
XID = "Nov 03 22:14:03 node7 kernel: NVRM: Xid (PCI:0000:4e:00): 79, pid=1, GPU has fallen off."


def named(tmp_path: Path, *lines: str) -> list[tuple[str, str]]:
    return lead(read(tmp_path, *lines))


def test_proven_with_all_signs_in_order(tmp_path: Path) -> None:
    log = (start(), workspace("mnnvl"), started_up(), HISPARSE_METRICS, CRASH)
    assert named(tmp_path, *log) == [("hisparse-mnnvl", "proven")]


def test_a_hardware_fault_before_it_takes_proven_away(tmp_path: Path) -> None:
    log = (start(), workspace("mnnvl"), started_up(), HISPARSE_METRICS, XID, CRASH)
    found = dict(named(tmp_path, *log))
    assert found.get("hisparse-mnnvl", "likely") == "likely" and "gpu-hardware" in {
        *found,
        "gpu-hardware",
    }
    assert ("hisparse-mnnvl", "proven") not in found.items()


def test_an_error_that_was_caught_takes_proven_away(tmp_path: Path) -> None:
    log = (start(), workspace("mnnvl"), started_up(), HISPARSE_METRICS, CRASH)
    later = [stats(at="22:15:04"), stats(at="22:15:14"), request()]
    assert named(tmp_path, *log, *later) == [("hisparse-mnnvl", "likely")]


def test_another_data_parallel_rank_takes_proven_away(tmp_path: Path) -> None:
    one = workspace("mnnvl").replace("Worker_TP0", "Worker_DP0_TP0")
    other = CRASH.replace("Worker_TP2", "Worker_DP1_TP2")
    log = (start(), one, started_up(), HISPARSE_METRICS, other)
    assert named(tmp_path, *log) == [("hisparse-mnnvl", "likely")]


def test_a_workspace_that_was_made_after_the_crash_is_no_sign(tmp_path: Path) -> None:
    log = (start(), started_up(), HISPARSE_METRICS, CRASH, workspace("mnnvl"))
    assert ("hisparse-mnnvl", "proven") not in named(tmp_path, *log)


def test_mnnvl_is_not_blamed_for_an_illegal_access_without_its_frame(tmp_path: Path) -> None:
    moe = [("flashinfer/fused_moe/core.py", 1922, "trtllm_fp4_block_scale_moe", "x")]
    ar = [
        ("flashinfer/comm/trtllm_mnnvl_ar.py", 5, "trtllm_mnnvl_fused_allreduce_add_rmsnorm", "x")
    ]
    log = (start(connector="None"), workspace("mnnvl"), started_up(), request())
    assert named(tmp_path, *log, traceback(1, moe, ILLEGAL)) == [("cuda-illegal-access", "proven")]
    assert named(tmp_path, *log, traceback(1, ar, ILLEGAL)) == [("mnnvl-illegal-access", "likely")]


def test_a_failed_workspace_is_tied_to_what_it_causes_only(tmp_path: Path) -> None:
    failed = line(
        "Worker_TP0 pid=703", "Failed to initialize FlashInfer All Reduce workspace: no multicast.",
        "WARNING", file="flashinfer_all_reduce.py:85",
    )  # fmt: skip
    log = (start(connector="None"), failed, started_up(), request())
    frames = [("vllm/model_executor/layers/linear.py", 1, "forward", "x")]
    assert named(tmp_path, *log, traceback(1, frames, "AssertionError: no input")) == [
        ("engine-died", "unconfirmed")
    ]


def test_runs_of_one_log_are_judged_by_themselves(tmp_path: Path) -> None:
    log = [
        start(), workspace("mnnvl"), started_up(), HISPARSE_METRICS, CRASH,
        start(pid=1588, connector=NIXL, at="22:20:00"), workspace("trtllm", pid=1703), started_up(1588),
        *(traceback(rank, MIRROR_FRAMES, LAUNCH_FAILURE, pid=1703) for rank in range(4)),
        start(pid=2588, at="23:00:00"), workspace("trtllm", pid=2703), started_up(2588), request(),
    ]  # fmt: skip
    result = read(tmp_path, *log)
    assert [(judged.verdict, judged.main and judged.main.fault.id) for judged in result.runs] == [
        ("fault", "hisparse-mnnvl"),
        ("fault", "host-mirror-collected"),
        ("healthy", None),
    ]
    assert result.exit_code == 1
    assert "NixlConnector" not in result.runs[0].run.facts.connectors


def test_a_restarted_container_has_the_same_process_ids(tmp_path: Path) -> None:
    log = [start(), workspace("mnnvl"), started_up(), HISPARSE_METRICS, CRASH]
    log += [start(), workspace("trtllm"), started_up(), stats(), request()]
    result = read(tmp_path, *log)
    assert [judged.verdict for judged in result.runs] == ["fault", "healthy"]
    assert lead(result) == [("hisparse-mnnvl", "proven")]


def test_pieces_of_one_log(tmp_path: Path) -> None:
    lines = (EXCERPTS / "main-crash.log").read_text().splitlines(keepends=True)
    (tmp_path / "vllm.log.1").write_text("".join(lines[:4]))
    (tmp_path / "vllm.log").write_text("".join(lines[4:]))
    paths = [str(tmp_path / name) for name in ("vllm.log.1", "vllm.log")]
    assert lead(triage(paths, joined=True)) == [("hisparse-mnnvl", "proven")]
    assert ("hisparse-mnnvl", "proven") not in lead(triage(paths))


def test_joined_keeps_servers_apart(tmp_path: Path) -> None:
    pods = ("prefill-0 vllm ", "decode-0 vllm ")
    first = "\n".join(pods[0] + text for text in f"{start()}\n{workspace('mnnvl')}".splitlines())
    crash = f"{HISPARSE_METRICS}\n{traceback(2, COPY_FRAMES, LAUNCH_FAILURE, prefix='all')}"
    second = "\n".join(pods[1] + text for text in crash.splitlines())
    (tmp_path / "1").write_text(first + "\n")
    (tmp_path / "2").write_text(second + "\n")
    result = triage([str(tmp_path / "1"), str(tmp_path / "2")], joined=True)
    assert len(result.runs) == 2
    assert ("hisparse-mnnvl", "proven") not in lead(result)


def test_the_serve_script_tells_that_hisparse_is_on(tmp_path: Path) -> None:
    script = str(EXCERPTS / "serve-command.sh")
    path = tmp_path / "vllm.log"
    path.write_text(
        "\n".join([workspace("mnnvl"), traceback(2, COPY_FRAMES, LAUNCH_FAILURE)]) + "\n"
    )
    assert lead(triage([str(path)])) == [("cuda-launch-failure", "proven")]
    assert lead(triage([script, str(path)], joined=True)) == [("hisparse-mnnvl", "proven")]


def test_its_own_shutdown_is_no_death(tmp_path: Path) -> None:
    log = [
        start(connector="None"), started_up(), stats(), request(),
        line("APIServer pid=588", "[shutdown] API server: shutdown triggered", file="launcher.py:256"),
        line("EngineCore_DP0 pid=648", "Worker proc VllmWorker-2 died unexpectedly (exit code: -15), "
             "shutting down executor.", "ERROR", file="multiproc_executor.py:380"),
        "(APIServer pid=588) INFO:     Application shutdown complete.",
    ]  # fmt: skip
    assert read(tmp_path, *log).exit_code == 0
    died_first = [*log[:4], log[5], log[4], log[6]]
    assert lead(read(tmp_path, *died_first)) == [("worker-died", "unconfirmed")]


def test_a_queue_that_nothing_serves_stands_still(tmp_path: Path) -> None:
    waits = [
        stats(running=0, gen=0.0, prompt=0.0, at=f"22:{minute}:02").replace(
            "Waiting: 0", "Waiting: 7"
        )
        for minute in range(15, 20)
    ]
    assert named(tmp_path, start(), started_up(), stats(), *waits) == [
        ("hang-under-load", "likely")
    ]
    # Requests that vanish show nothing; a token does.
    gone = stats(running=0, gen=0.0, prompt=0.0, at="22:30:02")
    assert named(tmp_path, start(), started_up(), stats(), *waits, gone) == [
        ("hang-under-load", "likely")
    ]


def test_a_standstill_that_ended_is_told(tmp_path: Path) -> None:
    stuck = [stats(gen=0.0, prompt=0.0, at=f"22:{minute}:02") for minute in range(15, 20)]
    result = read(
        tmp_path, start(connector="None"), started_up(), *stuck, stats(at="22:21:02"), request()
    )
    assert result.exit_code == 4
    assert "stood still for 240 s" in result.runs[0].reasons[0]
