"""What is said of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hisparse_guard.cli.report.report import judge
from tests.cli.report.judging import judged, verdicts, why
from tests.cli.report.samples import Process, world


def test_verified_on_all_ranks_is_safe(tmp_path: Path) -> None:
    report = judged(tmp_path, *(p.guarded() for p in world()))
    assert (report.verdict, report.exit_code) == ("safe", 0)
    assert "ranks 0-1: workspace verified with backend trtllm" in why(report)


def test_made_without_a_getter_to_verify_is_safe(tmp_path: Path) -> None:
    report = judged(tmp_path, *(p.config().resolve().workspace("made") for p in world()))
    assert report.verdict == "safe"
    assert "made" in why(report)


@pytest.mark.parametrize("answer", [None, (None, False)])
@pytest.mark.parametrize("pinned", [None, "none"])
def test_no_all_reduce_is_safe(tmp_path: Path, answer: Any, pinned: str | None) -> None:
    fields = {"rule": "no-backend", "config_current": pinned is not None}
    processes = [
        p.config().resolve(alone=answer, answer=answer, pinned=pinned, **fields) for p in world()
    ]
    report = judged(tmp_path, *processes)
    assert (report.verdict, report.exit_code) == ("safe", 0)
    assert "FlashInfer all-reduce is off" in why(report)


def test_tensor_parallel_size_one_is_safe(tmp_path: Path) -> None:
    """Nothing resolves there: there is no all-reduce."""
    processes = [Process(rank=None, pid=100 + n).config(tp=1) for n in range(3)]
    report = judged(tmp_path, *processes)
    assert (report.verdict, report.exit_code, len(report.results)) == ("safe", 0, 1)


def test_observe_shows_the_fault(tmp_path: Path) -> None:
    report = judged(tmp_path, *(p.observed() for p in world(mode="observe")))
    assert (report.verdict, report.exit_code) == ("unsafe", 1)
    assert "ranks 0-1: mnnvl workspace under HiSparse" in why(report)
    assert "HISPARSE_GUARD_MODE=enforce" in (report.results[0].judgement.advice or "")


def test_an_mnnvl_workspace_is_never_forgiven(tmp_path: Path) -> None:
    """A quant workspace beside a good primary one, or one that was replaced later."""
    processes = [
        p.guarded().workspace("made", "mnnvl", kind="quant").workspace("verified") for p in world()
    ]
    assert judged(tmp_path, *processes).verdict == "unsafe"


def test_hisparse_seen_after_the_workspace_still_counts(tmp_path: Path) -> None:
    processes = [
        p.config(hisparse=False)
        .resolve(hisparse=False, answer=("mnnvl", True), pinned=None)
        .workspace("made", "mnnvl", expected="mnnvl", hisparse=False)
        .config()
        for p in world()
    ]
    assert judged(tmp_path, *processes).verdict == "unsafe"


@pytest.mark.parametrize(
    ("variable", "advice"),
    [
        ({"VLLM_FLASHINFER_ALLREDUCE_BACKEND": "mnnvl"}, "unset VLLM_FLASHINFER_ALLREDUCE_BACKEND"),
        ({}, "HISPARSE_GUARD_MULTINODE=keep"),
    ],
)
def test_unsafe_says_what_to_change(
    tmp_path: Path, variable: dict[str, str | None], advice: str
) -> None:
    processes = [
        p.config()
        .resolve(answer=("mnnvl", False), alone=("mnnvl", False), rule="multinode", pinned=None)
        .workspace("made", "mnnvl", expected="mnnvl")
        for p in world(environment=variable)
    ]
    report = judged(tmp_path, *processes)
    assert report.verdict == "unsafe"
    assert advice in (report.results[0].judgement.advice or "")


def test_ranks_that_differ_disagree(tmp_path: Path) -> None:
    first, second = world()
    second.config().resolve(answer=None, pinned="none")
    report = judged(tmp_path, first.guarded(), second)
    assert (report.verdict, report.exit_code) == ("disagreement", 1)
    assert "rank 0: trtllm" in why(report) and "rank 1: no FlashInfer all-reduce" in why(report)


def test_one_mnnvl_among_trtllm_is_unsafe_and_the_disagreement_is_told(tmp_path: Path) -> None:
    first, second = world()
    report = judged(tmp_path, first.guarded(), second.observed())
    assert (report.verdict, report.exit_code) == ("unsafe", 1)
    assert "backends differ" in why(report) and "modes differ: enforce, observe" in why(report)


def test_a_rank_that_waits_where_the_others_never_go_is_told(tmp_path: Path) -> None:
    """It hangs in vLLM's collectives and never makes the workspace that would show it."""
    first, second = world()
    second.config().resolve(answer=("mnnvl", True), pinned=None)
    report = judged(tmp_path, first.guarded(), second)
    assert (report.verdict, report.exit_code) == ("disagreement", 1)
    assert "decisions differ: rank 0: trtllm; rank 1: mnnvl" in why(report)


def test_a_rank_that_is_only_behind_does_not_disagree(tmp_path: Path) -> None:
    """A leaky build answers trtllm inside the context, and mnnvl outside it."""
    first, second = (p.config().resolve(pinned=None) for p in world(mode="observe"))
    first.resolve(answer=("mnnvl", True), pinned=None).workspace("made", "mnnvl")
    assert "differ" not in why(judged(tmp_path, first, second))


def test_a_rank_that_was_switched_off_late_is_not_guarded(tmp_path: Path) -> None:
    first, second = world()
    second.mode, second.known = "off", True
    second.lines[0] = second.lines[0].replace('"mode":"enforce"', '"mode":"off"')
    report = judged(tmp_path, first.guarded(), second.config())
    assert (report.verdict, report.results[0].judgement.missing) == ("partly guarded", [1])


def test_ranks_that_saw_different_configs_disagree(tmp_path: Path) -> None:
    first, second = world()
    second.config(hisparse=False).resolve(hisparse=False, answer=("mnnvl", True), pinned=None)
    report = judged(tmp_path, first.guarded(), second)
    assert report.verdict == "disagreement"
    assert "HiSparse was seen by rank 0, and off in rank 1" in why(report)


def test_groups_of_one_world_may_differ(tmp_path: Path) -> None:
    """TP 2 x DP 2: one group spans nodes and cannot have trtllm, the other can."""
    processes = world(4, group=2)
    for process in processes[:2]:
        process.guarded()
    for process in processes[2:]:
        fields = {"rule": "multinode", "pinned": None}
        process.config().resolve(answer=(None, False), alone=("mnnvl", False), **fields)
    report = judged(tmp_path, *processes)
    assert (report.verdict, len(report.results)) == ("safe", 1)


def test_fewer_ranks_than_the_world_is_partly_guarded(tmp_path: Path) -> None:
    report = judged(tmp_path, *(p.guarded() for p in world(8)[:5]))
    assert (report.verdict, report.exit_code) == ("partly guarded", 1)
    assert report.results[0].judgement.missing == [5, 6, 7]
    assert "5 of 8 ranks reported; no evidence from ranks 5-7" in why(report)


def test_the_world_counts_not_the_group(tmp_path: Path) -> None:
    """A whole tensor parallel group reported, and the other replica's did not."""
    report = judged(tmp_path, *(p.guarded() for p in world(4, group=2)[:2]))
    assert report.verdict == "partly guarded"


def test_ranks_known_only_later(tmp_path: Path) -> None:
    """The first lines of a process have no rank yet: the latest known one counts."""
    report = judged(tmp_path, *(p.guarded() for p in world()))
    assert [process.rank for process in report.results[0].server.workers] == [0, 1]
    assert [process.world_size for process in report.results[0].server.workers] == [2, 2]


def test_a_failed_workspace(tmp_path: Path) -> None:
    processes = [
        p.config()
        .resolve()
        .workspace("failed", None, error="RuntimeError: nvcc not found", serves="NCCL")
        for p in world()
    ]
    report = judged(tmp_path, *processes)
    assert (report.verdict, report.exit_code) == ("failed", 4)
    assert "ranks 0-1: RuntimeError: nvcc not found; NCCL serves instead" in why(report)
    assert "doctor" in (report.results[0].judgement.advice or "")


def test_a_failure_that_was_made_good(tmp_path: Path) -> None:
    """vLLM tries trtllm where mnnvl cannot be made."""
    processes = [
        p.config().resolve().workspace("failed", "mnnvl", error="no multicast").workspace("made")
        for p in world()
    ]
    report = judged(tmp_path, *processes)
    assert report.verdict == "safe"
    assert "a workspace failed, another serves: no multicast" in why(report)


def test_a_quant_workspace_that_fails_leaves_the_primary(tmp_path: Path) -> None:
    processes = [p.guarded().workspace("failed", None, kind="quant", error="oom") for p in world()]
    assert judged(tmp_path, *processes).verdict == "safe"


def test_a_workspace_that_fails_on_one_rank_is_a_disagreement(tmp_path: Path) -> None:
    first, second = world()
    second.config().resolve().workspace("failed", None, error="no memory")
    assert judged(tmp_path, first.guarded(), second).verdict == "disagreement"


def test_no_workspace_yet_is_unproven(tmp_path: Path) -> None:
    report = judged(tmp_path, *(p.config().resolve() for p in world()))
    assert (report.verdict, report.exit_code) == ("unproven", 4)


def test_strict_that_refused_is_told(tmp_path: Path) -> None:
    forced: dict[str, str | None] = {"VLLM_FLASHINFER_ALLREDUCE_BACKEND": "mnnvl"}
    processes = [
        p.config().resolve(
            *(("mnnvl", False), ("mnnvl", False)), rule="env", env_backend="mnnvl", pinned=None
        )
        for p in world(mode="strict", environment=forced)
    ]
    report = judged(tmp_path, *processes)
    assert (report.verdict, report.exit_code) == ("unproven", 4)
    assert "mode strict refuses the mnnvl workspace" in why(report)
    assert "unset VLLM_FLASHINFER_ALLREDUCE_BACKEND" in (report.results[0].judgement.advice or "")


def test_one_rank_without_a_workspace_is_unproven(tmp_path: Path) -> None:
    first, second = world()
    report = judged(tmp_path, first.guarded(), second.config().resolve())
    assert report.verdict == "unproven"
    assert "rank 1: HiSparse seen, no workspace made yet" in why(report)


def test_hisparse_without_workers_is_unproven(tmp_path: Path) -> None:
    report = judged(tmp_path, Process(rank=None).config(tp=8))
    assert (report.verdict, report.exit_code) == ("unproven", 4)


@pytest.mark.parametrize(("size", "verdict"), [(2, "not HiSparse"), (8, "unproven")])
def test_hisparse_off_has_to_be_shown_for_each_rank(
    tmp_path: Path, size: int, verdict: str
) -> None:
    processes = [
        p.config(hisparse=False)
        .resolve(hisparse=False, answer=("mnnvl", True), pinned=None)
        .workspace("made", "mnnvl", expected="mnnvl", hisparse=False)
        for p in world(size)[:2]
    ]
    assert judged(tmp_path, *processes).verdict == verdict


def test_bystanders_alone_are_not_concerned(tmp_path: Path) -> None:
    """Nothing is written of a process that decides nothing, but where it is traced."""
    process = Process(rank=None)
    process.lines[0] = process.lines[0].replace('"trace_context":false', '"trace_context":true')
    process.config(hisparse=False).line("end", dropped=0)
    report = judged(tmp_path, process)
    assert (report.verdict, report.exit_code) == ("not HiSparse", 0)
    assert (len(report.results), len(report.bystanders)) == (0, 1)


def test_evidence_cut_short_is_unproven(tmp_path: Path) -> None:
    first, second = world()
    first.config(hisparse=False).write(tmp_path)
    second.config(hisparse=False).write(tmp_path).write_text(second.text[:-90])
    assert judge([tmp_path]).verdict == "unproven"


def test_nothing_at_all_is_no_evidence(tmp_path: Path) -> None:
    assert (judge([tmp_path]).verdict, judge([tmp_path]).exit_code) == ("no evidence", 3)
    (tmp_path / "hisparse-guard-a-1.jsonl").write_text("hello\n")
    assert judge([tmp_path]).verdict == "unproven"


def test_only_processes_that_resolved_are_judged(tmp_path: Path) -> None:
    """API server, engine core and a throw-away child arm and see the config too."""
    report = judged(
        tmp_path,
        Process(rank=None, pid=10, ppid=1, start=-9.0).config(),
        Process(rank=None, pid=50, ppid=10, start=-5.0, instance=None).config(),
        Process(rank=None, pid=77, ppid=50, start=4.0).config(),
        *(p.guarded() for p in world(ppid=50)),
    )
    assert verdicts(report) == ["safe"]
    assert [process.pid for process in report.results[0].server.others] == [10, 50, 77]


# What newer guards write


def test_groups_by_name_and_creations(tmp_path: Path) -> None:
    processes = world(guard="0.2.0")
    for process in processes:
        process.config().resolve(group="3", used="trtllm", upstream="mnnvl", target="trtllm")
        process.workspace("made", group="3", creation=1).workspace(group="3", creation=1)
        process.workspace("destroyed", None, creation=1, group_rank=None, group_size=None)
        process.workspace("made", group="3", creation=2)
    report = judged(tmp_path, *processes)
    assert report.verdict == "safe", why(report)
    assert len(report.results[0].server.workers[0].groups) == 1


def test_a_re_creation_that_failed_leaves_the_rank_without(tmp_path: Path) -> None:
    processes = [p.guarded() for p in world()]
    for process in processes:
        process.workspace("destroyed", None, creation=1)
    processes[0].workspace("made", creation=2)
    processes[1].workspace("failed", None, creation=2, error="no memory")
    assert judged(tmp_path, *processes).verdict == "disagreement"


def test_two_groups_by_name_and_one_without_a_rank(tmp_path: Path) -> None:
    """Both ranks name themselves the first of a group."""
    processes = world()
    for process in processes:
        process.config().resolve(group="3", group_rank=0).workspace("made", group="3", group_rank=0)
    assert judged(tmp_path, *processes).verdict == "unproven"


def test_as_many_records_as_a_guard_writes_may_hide_others(tmp_path: Path) -> None:
    first, second = (p.guarded() for p in world())
    for number in range(1000):
        first.miss(origin="trace", where={"file": "f.py", "line": number, "function": "f"})
    assert judged(tmp_path, first, second).verdict == "unproven"


def test_images_that_differ_are_told(tmp_path: Path) -> None:
    first, second = (p.guarded() for p in world())
    second.lines = [line.replace("0.33.0", "0.32.0") for line in second.lines]
    assert "vLLM versions differ: 0.32.0, 0.33.0" in why(judged(tmp_path, first, second))
