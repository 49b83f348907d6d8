"""Which processes make a server, and which runs are shown to have ended."""

from __future__ import annotations

import json
from pathlib import Path

from hisparse_guard.cli.report.report import Report, judge
from tests.cli.report.judging import judged, verdicts, why
from tests.cli.report.samples import Process, world


def test_two_servers_side_by_side(tmp_path: Path) -> None:
    prefill = world(rendezvous="tcp://127.0.0.1:1111", instance="p")
    decode = world(rendezvous="tcp://127.0.0.1:2222", instance="d", pid=200)
    report = judged(tmp_path, *(p.guarded() for p in prefill), *(p.observed() for p in decode))
    assert verdicts(report) == ["unsafe", "safe"]
    assert [result.server.latest for result in report.results] == [True, True]


def test_a_server_over_nodes(tmp_path: Path) -> None:
    """Instance ids and parents are a node's own there; the meeting address is not."""
    processes = [
        Process(
            rank=r, world=4, host=f"node-{r // 2}", pid=100 + r, ppid=50 + r // 2,
            instance=f"i{r // 2}", start=20.0 * (r // 2),
        ).guarded()
        for r in range(4)
    ]  # fmt: skip
    report = judged(tmp_path, *processes)
    assert verdicts(report) == ["safe"]
    assert report.results[0].server.hosts == ["node-0", "node-1"]


def test_workers_that_make_their_own_config(tmp_path: Path) -> None:
    """Then each has an instance id of its own; the meeting address is what they share."""
    processes = world()
    for number, process in enumerate(processes):
        process.instance = f"own-{number}"
    report = judged(tmp_path, *(p.guarded() for p in processes))
    assert verdicts(report) == ["safe"]


def test_restarts_are_runs_of_their_own(tmp_path: Path) -> None:
    """The same pids, files and address: a container that restarts. The worst verdict leads."""
    first = [p.observed() for p in world(mode="observe")]
    second = [p.guarded() for p in world(start=600.0, instance="def456")]
    report = judged(tmp_path, *first, *second)
    assert verdicts(report) == ["unsafe", "safe"]
    assert [result.server.latest for result in report.results] == [False, True]
    assert (report.verdict, report.exit_code) == ("unsafe", 1)
    assert len({result.server.identifier for result in report.results}) == 2


def test_a_rank_that_starts_after_the_others_met_is_of_another_run(tmp_path: Path) -> None:
    """Half of the first run is not guarded; a rank of the second must not fill its place."""
    first = world(instance=None)[0].guarded()
    second = world(start=600.0, instance=None, pid=200)
    report = judged(tmp_path, first, *(p.guarded() for p in reversed(second)))
    assert sorted(verdicts(report)) == ["partly guarded", "safe"]


def test_containers_that_share_a_host_name_share_pids_too(tmp_path: Path) -> None:
    """Two containers on the host's network, each with its own pid 7."""
    processes = [Process(rank=r, world=2, pid=7, start=0.1 * r).guarded() for r in (0, 1)]
    for number, process in enumerate(processes):
        process.write(tmp_path / str(number))
    report = judge([tmp_path])
    assert [len(result.server.workers) for result in report.results] == [2]
    assert report.verdict == "safe"


def test_clocks_that_differ_much_are_not_safe(tmp_path: Path) -> None:
    first, second = Process(rank=0), Process(rank=1, host="node-b", start=10800.0)
    report = judged(tmp_path, first.guarded(), second.guarded())
    assert report.verdict == "partly guarded"
    assert "clocks of nodes differ" in (report.results[0].judgement.advice or "")


def test_without_an_address_the_instance_counts(tmp_path: Path) -> None:
    processes = [p.guarded() for p in world(rendezvous=None)]
    other = [p.guarded() for p in world(rendezvous=None, instance="other", start=0.5, pid=200)]
    assert verdicts(judged(tmp_path, *processes, *other)) == ["safe", "safe"]


def test_without_either_the_parent_counts(tmp_path: Path) -> None:
    processes = [p.guarded() for p in world(rendezvous=None, instance=None)]
    other = Process(rendezvous=None, instance=None, ppid=51, pid=300).guarded()
    assert sorted(verdicts(judged(tmp_path, *processes, other))) == ["partly guarded", "safe"]


def test_replicas_with_worlds_of_their_own(tmp_path: Path) -> None:
    """Data parallelism of a dense model: one instance, one world a replica."""
    processes = [
        process.guarded()
        for replica in range(2)
        for process in world(rendezvous=f"tcp://127.0.0.1:{4000 + replica}", pid=100 + 10 * replica)
    ]
    api = Process(rank=None, pid=5, ppid=1, start=-9.0).config()
    report = judged(tmp_path, api, *processes)
    assert verdicts(report) == ["safe", "safe"]
    assert all(
        [process.pid for process in result.server.others] == [5] for result in report.results
    )


def test_forked_workers(tmp_path: Path) -> None:
    """A forked child is a process of its own, with the configs that its parent had seen."""
    processes = [p.config().resolve().workspace() for p in world(instance=None)]
    report = judged(tmp_path, Process(rank=None, pid=50, ppid=1, start=-5.0).config(), *processes)
    assert verdicts(report) == ["safe"]
    assert len(report.results[0].server.others) == 1


def test_lost_lines_and_errors_cap_the_verdict(tmp_path: Path) -> None:
    first, second = (p.guarded() for p in world())
    first.line("error", message="a fresh decision differs from the pin", detail="none, trtllm")
    del second.lines[1]
    report = judged(tmp_path, first, second)
    assert report.verdict == "unproven"
    assert "a fresh decision differs from the pin (none, trtllm)" in why(report)
    assert "1 line of evidence lost" in why(report)


def test_errors_of_a_servers_other_processes_count(tmp_path: Path) -> None:
    other = Process(rank=None, pid=50, ppid=1, start=-5.0)
    other.config().line("error", message="no wrapt here", detail=None)
    report = judged(tmp_path, other, *(p.guarded() for p in world()))
    assert (report.verdict, len(report.results)) == ("unproven", 1)


def test_a_start_that_was_not_guarded_is_not_hidden_by_the_next(tmp_path: Path) -> None:
    """A container that restarts: the first API server has the process id of the second, which is
    the parent of the workers. Workers of the first have no evidence."""
    first = Process(rank=None, pid=50, ppid=1, start=-900.0, instance="first").config()
    second = Process(rank=None, pid=50, ppid=1, start=-9.0, instance="second").config()
    report = judged(tmp_path, first, second, *(p.guarded() for p in world(instance="second")))
    assert (report.verdict, len(report.results)) == ("unproven", 2)
    safe = next(r for r in report.results if r.judgement.verdict == "safe")
    assert [process.start for process in safe.server.others] == [second_start(second)]


def second_start(process: Process) -> str:
    return str(json.loads(process.lines[0])["start"])


def test_half_of_one_run_and_half_of_the_next_are_no_whole(tmp_path: Path) -> None:
    """Without a decision and without an instance, only the times tell them apart."""
    processes = world(instance=None)
    processes[1] = world(instance=None, start=600.0)[1]
    for process in processes:
        process.known = True
        process.config().workspace("made").workspace()
    assert judged(tmp_path, *processes).verdict in ("partly guarded", "unproven")


def test_an_error_of_the_first_start_is_not_held_against_the_next(tmp_path: Path) -> None:
    first = Process(rank=None, pid=50, ppid=1, start=-900.0, instance="first").config()
    first.line("error", message="no wrapt here", detail=None)
    early = world(pid=200, start=-890.0, instance="own", rendezvous="tcp://10.0.0.1:1")
    second = Process(rank=None, pid=50, ppid=1, start=-9.0, instance="second").config()
    processes = [first, second, *early, *world(instance="second")]
    for process in processes[2:]:
        process.guarded()
    report = judged(tmp_path, *processes)
    assert [result.judgement.verdict for result in report.results] == ["unproven", "safe"]
    assert report.results[0].server.workers[0].pid == 200


def test_a_child_that_a_worker_forked_is_no_rank(tmp_path: Path) -> None:
    """torch.distributed still tells it the rank of its parent."""
    first, second = (p.guarded() for p in world())
    child = Process(pid=300, ppid=100, start=5.0)
    child.lines[0] = child.lines[0].replace("sitecustomize", "fork")
    child.known = True
    report = judged(tmp_path, first, second, child.config())
    assert verdicts(report) == ["safe"]
    assert [process.pid for process in report.results[0].server.others] == [300]


def test_a_launcher_of_two_servers(tmp_path: Path) -> None:
    """What it saw of the one server says nothing of the other, and needs workers of its own."""
    launcher = Process(rank=None, pid=50, ppid=1, start=-9.0, instance="off")
    launcher.config(hisparse=False).instance = "on"
    launcher.config()
    off = [
        p.config(hisparse=False)
        .resolve(hisparse=False, answer=("mnnvl", True), pinned=None)
        .workspace("made", "mnnvl", expected="mnnvl", hisparse=False)
        for p in world(instance="off")
    ]
    assert judged(tmp_path, launcher, *off).verdict == "unproven"
    on = world(pid=200, instance="on", rendezvous="tcp://10.0.0.1:2", start=60.0)
    report = judged(tmp_path, *(p.guarded() for p in on))
    assert verdicts(report) == ["safe", "not HiSparse"]


def test_replicas_without_an_all_reduce_that_cannot_be_put_together(tmp_path: Path) -> None:
    """Tensor parallel size 1, several commands: nothing says that they are one world, and no rank
    waits for another."""
    processes = [Process(rank=r, pid=100 + r, ppid=50 + r, instance=f"i{r}") for r in (0, 1)]
    for process in processes:
        process.known = True
        process.config(tp=1, data_parallel_size=2)
    assert judged(tmp_path, *processes).verdict == "unproven"


def test_containers_with_one_host_name_have_api_servers_of_one_process_id(tmp_path: Path) -> None:
    """The workers of the second are not guarded: the first one's do not stand for them."""
    first = Process(rank=None, pid=1, ppid=0, start=-9.0, instance="first").config()
    second = Process(rank=None, pid=1, ppid=0, start=-8.0, instance="second").config()
    core = Process(rank=None, pid=50, ppid=1, start=-5.0, instance="first").config()
    workers = [p.guarded() for p in world(instance="first")]
    report = judged(tmp_path, first, second, core, *workers)
    assert verdicts(report) == ["unproven", "safe"]
    assert [process.instances for process in report.results[0].server.others] == [["second"]]


def test_a_replica_without_evidence_is_missed(tmp_path: Path) -> None:
    """Data parallelism of a dense model: the API server's config is for two replicas."""
    api = Process(rank=None, pid=5, ppid=1, start=-9.0).config(data_parallel_size=2)
    report = judged(tmp_path, api, *(p.guarded() for p in world()))
    assert report.verdict == "unproven"
    assert "config is for 4 ranks" in why(report)
    other = world(pid=200, rendezvous="tcp://127.0.0.1:2222")
    assert verdicts(judged(tmp_path, *(p.guarded() for p in other))) == ["safe", "safe"]


def test_an_engine_core_without_workers_is_not_hidden_by_another(tmp_path: Path) -> None:
    """Two replicas whose configs have been made independent (data parallel size 1), of one
    instance; the workers of the second are not guarded. The API server may have no evidence."""
    cores = [Process(rank=None, pid=pid, ppid=5, start=-5.0).config() for pid in (50, 51)]
    processes = [p.guarded() for p in world()]
    report = judged(tmp_path / "cores", *cores, *processes)
    assert (verdicts(report), report.exit_code) == (["unproven"], 4)
    assert "process 51 of node-a: saw HiSparse and started none of the workers" in why(report)
    api = Process(rank=None, pid=5, ppid=1, start=-9.0).config()
    api.write(tmp_path / "cores")
    assert judge([tmp_path / "cores"]).verdict == "unproven"
    # With one core all is well, and under Ray it is not its workers' parent.
    assert judged(tmp_path / "one", api, cores[0], *processes).verdict == "safe"
    assert judged(tmp_path / "ray", cores[1], *processes).verdict == "safe"


def test_a_rank_that_was_given_another_way(tmp_path: Path) -> None:
    """It takes part in no all-reduce that the others do by FlashInfer."""
    first = Process(rank=0, environment={"VLLM_ALLREDUCE_USE_FLASHINFER": "0"})
    report = judged(tmp_path, first.guarded(), Process(rank=1, pid=101).guarded())
    assert report.verdict == "unproven"
    assert "VLLM_ALLREDUCE_USE_FLASHINFER differs" in why(report)


# What is shown to have ended


def latest(report: Report) -> list[bool]:
    return [result.server.latest for result in report.results]


def test_silence_is_no_end(tmp_path: Path) -> None:
    """Another run of the same model on the same host, at another address, days later."""
    first = [p.observed() for p in world(mode="observe")]
    second = [
        p.guarded() for p in world(start=9e5, instance="x", pid=300, rendezvous="tcp://10.0.0.1:1")
    ]
    report = judged(tmp_path, *first, *second)
    assert (verdicts(report), latest(report)) == (["unsafe", "safe"], [True, True])


def test_every_worker_has_to_have_ended(tmp_path: Path) -> None:
    first, second = (p.observed() for p in world(mode="observe"))
    first.line("end", dropped=0).write(tmp_path)
    second.write(tmp_path)
    assert latest(judge([tmp_path])) == [True]
    second.lines.clear()
    second.line("end", dropped=0).write(tmp_path)
    assert latest(judge([tmp_path])) == [False]


def test_a_process_id_that_was_used_again_is_an_end(tmp_path: Path) -> None:
    first = [p.observed() for p in world(mode="observe")]
    later = [p.config(hisparse=False) for p in world(start=9e5, instance="x")]
    report = judged(tmp_path, *first, *later)
    assert latest(report)[0] is False and report.verdict == "unsafe"


def test_a_loopback_address_of_another_host_is_no_successor(tmp_path: Path) -> None:
    address = "tcp://127.0.0.1:29500"
    first = [p.observed() for p in world(mode="observe", rendezvous=address)]
    second = [p.guarded() for p in world(start=9e5, host="node-b", pid=300, rendezvous=address)]
    assert latest(judged(tmp_path, *first, *second)) == [True, True]
