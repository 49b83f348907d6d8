"""vLLM 0.33.0 with FlashInfer 0.7.4, whose kernel waits, in place of the pinned 0.7.2.post1.

The guard does not depend on the kernel: it decides and verifies the same with both.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import harness
from tests.conformance.jobs import GUARD_JOBS, results_of
from tests.support import flashinfer

VLLM = "0.33.0"
PINNED, WAITING = "0.7.2.post1", "0.7.4"
# Jobs that the other tests have run on this release, with the FlashInfer that it pins.
JOBS = ("lazy", "no_standalone", "fused_op", "recreate", "hot_path", "env-trtllm")
ALONE = ("lazy", "no_standalone", "fused_op")
PROGRAM = Path(__file__).with_name("flashinfer_dispatch.py")

pytestmark = pytest.mark.xdist_group(VLLM)


@functools.cache
def run(guarded: bool) -> dict[str, Any]:
    """The results of `JOBS` with the FlashInfer whose kernel waits."""
    labels = JOBS if guarded else ALONE
    path = [*(harness.guard_path() if guarded else []), *in_front(WAITING)]
    found = harness.run_jobs(VLLM, [GUARD_JOBS[label] for label in labels], guard=path)
    return dict(zip(labels, found, strict=True))


def in_front(version: str) -> list[Path]:
    return [] if version == PINNED else [flashinfer.release(version, importable=True)]


def ranks(version: str, label: str, *, guarded: bool) -> list[dict[str, Any]]:
    if version == PINNED:
        results = results_of(VLLM)
        found = results.guarded(label) if guarded else results.plain(label)
    else:
        result = run(guarded)[label]
        found = result["ranks"]
        assert len(found) == 2, result["log"][-3000:]
    for rank in found:
        assert "error" not in rank, rank.get("traceback")
    return [{key: value for key, value in rank.items() if key != "pid"} for rank in found]


def lines(version: str, label: str) -> list[str]:
    """The guard's lines in the log of a guarded job."""
    if version == PINNED:
        return results_of(VLLM).log(label)
    return [x for x in str(run(True)[label]["log"]).splitlines() if "hisparse-guard" in x]


@pytest.mark.parametrize("version", [PINNED, WAITING])
def test_flashinfer_takes_vllms_call(version: str) -> None:
    path = [*in_front(version), harness.tree(VLLM)]
    code = f"{PROGRAM.read_text()}{harness.LEAVE}"
    forks = harness.forks("vllm", *(["flashinfer"] if version != PINNED else []))
    done = forks.run({"name": version, "path": list(map(str, path)), "code": code})
    assert done["exit"] == 0, done["stderr"][-3000:]
    assert json.loads(done["stdout"].splitlines()[-1]) == {
        "version": version,
        "available": True,
        "made": ["TRTLLMAllReduceFusionWorkspace", "MNNVLAllReduceFusionWorkspace"],
    }


@pytest.mark.parametrize("name", JOBS)
def test_guarded_it_is_trtllm_as_with_the_pinned_release(name: str) -> None:
    found = ranks(WAITING, name, guarded=True)
    assert {rank["backend"] for rank in found} == {"trtllm"}
    assert {made for rank in found for made in rank["made"]} == {"trtllm"}
    assert found == ranks(PINNED, name, guarded=True)
    assert any("backend=trtllm" in line for line in lines(WAITING, name))


@pytest.mark.parametrize(("version", "label"), [(PINNED, "races"), (WAITING, "waits")])
def test_the_first_line_names_release_and_kernel_class(version: str, label: str) -> None:
    armed = [line for line in lines(version, "lazy") if "armed by" in line]
    assert len(armed) == 2
    assert all(f"FlashInfer {version}" in line for line in armed)
    assert all(f"kernel class {label}" in line for line in armed)


@pytest.mark.parametrize("name", ALONE)
def test_vllm_alone_makes_mnnvl_with_both(name: str) -> None:
    for version in (PINNED, WAITING):
        assert {rank["backend"] for rank in ranks(version, name, guarded=False)} == {"mnnvl"}
