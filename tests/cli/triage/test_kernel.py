"""What the kernel says of a process counts against the server only where it is the server's."""

# Log lines are long.
# ruff: noqa: E501

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.triage.logs import read, request, start, started_up, stats, workspace
from tests.cli.triage.test_inputs import lead

UP = [start(connector="None"), workspace("trtllm"), started_up(), stats(), request()]
# {0}: comm, {1}: process id.
LINES = {
    "worker-killed": [
        "Memory cgroup out of memory: Killed process {1} ({0}) total-vm:51234kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:936",
        "Out of memory: Killed process {1} ({0}) total-vm:51234kB, anon-rss:1kB",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=cri-containerd-1.scope,mems_allowed=0-1,oom_memcg=/kubepods.slice/pod7,task_memcg=/kubepods.slice/pod7/cri-containerd-1.scope,task={0},pid={1},uid=0",
    ],
    "process-crashed": [
        "{0}[{1}]: segfault at 0 ip 00007f3c2a sp 00007ffd error 4 in libc.so.6[7f3c2a000000+195000]",
        "traps: {0}[{1}] general protection fault ip:7f3c2a sp:7ffd error:0 in libc.so.6[7f3c2a000000+195000]",
    ],
    "gpu-memory-fault": [
        "NVRM: Xid (PCI:0000:4e:00): 31, pid={1}, name={0}, Ch 00000010, intr 00000000. MMU Fault",
        "NVRM: Xid (PCI:0000:4e:00): 13, pid='{1}', name={0}, Graphics SM Warp Exception",
    ],
}  # fmt: skip
SAID = [(fault, text) for fault, texts in LINES.items() for text in texts]
FORMS = [
    "Nov 03 22:14:04 node7 kernel: {}",
    "[88211.100123] {}",
    "[Tue Nov  3 22:14:04 2026] {}",
    "2026-11-03T22:14:04.123456+0000 node7 kernel: {}",
    '{{"_TRANSPORT":"kernel","SYSLOG_IDENTIFIER":"kernel","MESSAGE":"{}","__REALTIME_TIMESTAMP":"1"}}',
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("fault", "text"), SAID)
def test_proven_by_the_process_id_only(tmp_path: Path, fault: str, text: str, form: str) -> None:
    own, other = text.format("VLLM::Worker_TP", 703), text.format("VLLM::Worker_TP", 99703)
    assert lead(read(tmp_path, *UP, form.format(own))) == [(fault, "proven")]
    assert lead(read(tmp_path, *UP, form.format(other))) == [(fault, "likely")]
    # A process id counts in its own name space: another program may have it on the node.
    assert ("proven") not in {
        certainty for _, certainty in lead(read(tmp_path, *UP, form.format(text.format("java", 703))))
    }  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("fault", "text"), SAID)
def test_another_program_is_a_circumstance(
    tmp_path: Path, fault: str, text: str, form: str
) -> None:
    said = form.format(text.format("node_exporter", 4711))
    result = read(tmp_path, *UP, said, request())
    assert (result.exit_code, lead(result)) == (0, [])
    assert "node_exporter" in result.runs[0].circumstances[0]
    # A thread may bear any name: with no sign of life after it nothing is shown.
    assert read(tmp_path, *UP, said).exit_code == 4


def test_hardware_is_every_server_s_on_the_node(tmp_path: Path) -> None:
    said = "Nov 03 22:14:04 node7 kernel: NVRM: Xid (PCI:0000:4e:00): 79, pid=4711, name=Xorg, GPU has fallen off the bus."
    assert lead(read(tmp_path, *UP, said, request())) == [("gpu-hardware", "likely")]
