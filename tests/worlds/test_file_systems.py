"""Evidence folders in a bad state, full disks, and descriptors that run out."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.batch import Program, guard_lines

# One process runs them all: what they are compared with is what costs.
pytestmark = pytest.mark.xdist_group("inside")


def _file(path: Path) -> None:
    path.write_text("")


def _dangling(path: Path) -> None:
    path.symlink_to(path / "nowhere")


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _anyones(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def _nothing(path: Path) -> None:
    pass


# What is there before; what the setting says, where it is not that folder.
FOLDERS: dict[str, tuple[Callable[[Path], Any], str | None]] = {
    "file": (_file, None),
    "dangling": (_dangling, None),
    "loop": (_loop, None),
    "fifo": (os.mkfifo, None),
    "anyones": (_anyones, None),
    "below-a-file": (_file, "{}/below"),
    "device": (_nothing, "/dev/full"),
    "read-only-system": (_nothing, "/proc/evidence"),
    "of-the-kernel": (_nothing, "/proc/self/fd"),
    "long": (_nothing, "{}/" + "x" * 5000),
    "no-utf8": (_nothing, "/proc/\udcff\udcfe"),
    "a-tilde": (_nothing, "/proc/~/$HOME/{{}}/%s"),
}


def test_an_evidence_folder_in_a_bad_state(program: Program, tmp_path: Path) -> None:
    cases = []
    for name, (prepare, value) in FOLDERS.items():
        prepare(tmp_path / name)
        folder = (value or "{}").format(tmp_path / name)
        cases.append({"env": {"HISPARSE_GUARD_EVIDENCE_DIR": folder}})
    for name, result in zip(FOLDERS, program.run(cases), strict=True):
        program.as_guarded(result)
        said = [x for x in guard_lines(result["stderr"]) if "no evidence is written" in x]
        assert len(said) == 1, (name, result["stderr"])


WRITE = """
import os
real = os.write
def write(descriptor, data):
    if descriptor > 2:
        {}
    return real(descriptor, data)
os.write = write
"""
THE_FILE = """
import os, socket
folder = os.environ["HISPARSE_GUARD_EVIDENCE_DIR"]
os.makedirs(folder)
file = f"{folder}/hisparse-guard-{socket.gethostname()}-{os.getpid()}.jsonl"
"""

# Done by the program itself; each may write some evidence before, and none after.
SPOILED = {
    "disk-full": WRITE.format("raise OSError(28, 'No space left on device')"),
    "disk-full-in-the-line": WRITE.format("return real(descriptor, data[:10])"),
    "no-descriptors": """
import inspect, os, resource
import vllm.config, vllm.envs, vllm.fused
free = os.open("/dev/null", os.O_RDONLY)
os.close(free)
resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))
""",
    "the-file-is-a-folder": THE_FILE + "os.mkdir(file)",
    "the-file-is-a-link": THE_FILE + "os.symlink('/etc/passwd', file)",
    "the-file-is-a-fifo": THE_FILE + "os.mkfifo(file)",
}


def test_evidence_that_is_spoiled_while_it_is_written(program: Program, tmp_path: Path) -> None:
    cases = [
        {"env": {"HISPARSE_GUARD_EVIDENCE_DIR": str(tmp_path / name)}, "before": code}
        for name, code in SPOILED.items()
    ]
    for name, result in zip(SPOILED, program.run(cases), strict=True):
        program.as_guarded(result)
        said = [x for x in guard_lines(result["stderr"]) if "evidence" in x]
        assert said, (name, result["stderr"])


def test_a_missing_evidence_folder_is_made(program: Program, tmp_path: Path) -> None:
    folder = tmp_path / "with" / "its" / "parents"
    (result,) = program.run([{"env": {"HISPARSE_GUARD_EVIDENCE_DIR": str(folder)}}])
    program.as_guarded(result, 0)
    assert not [line for line in guard_lines(result["stderr"]) if "evidence" in line]
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) & 0o022 == 0
    events = [json.loads(line)["event"] for line in file.read_text().splitlines()]
    assert events[0] == "armed" and "workspace" in events
