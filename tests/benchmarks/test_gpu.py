"""The GPU benchmark as far as a machine without a GPU can hold it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from benchmarks.gpu import machine, plan, refusal, table
from benchmarks.gpu.names import BACKEND, KERNELS
from tests.support import environments

ROOT = Path(__file__).resolve().parents[2]
H200 = "NVIDIA H200"


def benchmark(tmp_path: Path, gpus: int, *options: str) -> subprocess.CompletedProcess[str]:
    """`python -m benchmarks.gpu` beside an `nvidia-smi` that names `gpus` GPUs."""
    tools = tmp_path / "bin"
    tools.mkdir()
    smi = tools / "nvidia-smi"
    smi.write_text("#!/bin/sh\n" + f"echo {H200}\n" * gpus)
    smi.chmod(0o755)
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--home", tmp_path / "home", *options],
        cwd=ROOT,
        env={"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_gpu_it_says_what_it_needs(tmp_path: Path) -> None:
    done = benchmark(tmp_path, 0)
    assert done.returncode == 1
    assert done.stderr.startswith("0 NVIDIA GPUs here: this needs two")
    assert "--dry" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("gpus", (1, 2, 8))
def test_the_plan_is_said_before_anything_is_done(tmp_path: Path, gpus: int) -> None:
    done = benchmark(tmp_path, gpus, "--plan")
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert f"GPUs: {gpus} ({H200}" in said
    assert f"Keeps them in: {tmp_path}/home/kernels/.cache/flashinfer" in said
    assert "Fetches first: from PyPI" in said
    assert "Never makes an mnnvl workspace or an NVLink multicast object" in said
    assert ("NCCL: it refuses two ranks on one GPU" in said) == (gpus == 1)
    assert ("each with a GPU of its own" in said) == (gpus > 1)
    assert not (tmp_path / "home").exists()


def test_visible_devices_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "nvidia_smi", lambda field: [H200, H200])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert len(machine.gpu_names()) == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert len(machine.gpu_names()) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine.gpu_names() == ()


def test_a_rank_gets_no_setting_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BACKEND, "mnnvl")
    monkeypatch.setenv("HISPARSE_GUARD_MODE", "off")
    here = machine.Machine((), None, None, sys.executable, (tmp_path,), tmp_path / "kernels")
    found = here.environment([tmp_path / "guard.zip"])
    assert BACKEND not in found and "HISPARSE_GUARD_MODE" not in found
    assert found[KERNELS] == str(tmp_path / "kernels")
    assert found["PYTHONPATH"].split(os.pathsep)[:2] == [str(tmp_path / "guard.zip"), str(tmp_path)]


def test_every_mode_says_what_it_does_not_show() -> None:
    assert set(plan.NOT_SHOWN) == set(plan.DOES) == {"dry", "one", "two"}
    assert all(plan.NOT_SHOWN.values())
    assert [plan.mode(gpus, dry=False) for gpus in (1, 2, 4)] == ["one", "two", "two"]


ROW = {
    "how": "graph",
    "tokens": 1,
    "guarded": 3.0,
    "environment": 3.0,
    "environment again": 3.1,
    "ratio": 1.0,
    "ratio spread": [0.99, 1.01],
    "control": 1.03,
    "control spread": [1.0, 1.05],
}


def test_the_table() -> None:
    results = {
        "date": "2026-12-02T20:00:00+00:00",
        "guard": "0.2.0",
        "mode": "two",
        "hidden": 7168,
        "times": [ROW],
        "errors": [
            {"what": "all-reduce", "dtype": "bfloat16", "tokens": 1, "error": 0.001},
            {"what": "all-reduce", "dtype": "bfloat16", "tokens": 2, "error": float("nan")},
        ],
        "checks": [{"name": "good", "ok": True}, {"name": "bad", "ok": False}],
        "not shown": ["this"],
    }
    page = table.markdown(results)
    assert page.startswith("Measured 2026-12-02, guard 0.2.0, two GPUs")
    assert "| graph | 1 | 3.0 | 3.0 | 1.000 (0.990 to 1.010) | 1.030 (1.000 to 1.050) |" in page
    assert "| all-reduce | bfloat16 | 1 to 2 | nan |" in page, "what was not written is not hidden"
    assert "- ok: good\n- **failed**: bad\n" in page
    assert "- not shown: this" in page


REFUSED = """
import json
from benchmarks.gpu.refusal import Asked, Refusal
import flashinfer.comm as comm, flashinfer.comm.mnnvl as mnnvl, flashinfer.comm.mixed_comm
refusal = Refusal()
found = {}
for backend in ("mnnvl", "auto", "mnnvl-cutedsl"):
    try:
        comm.create_allreduce_fusion_workspace(backend=backend, world_size=2, rank=0)
        found[backend] = "made"
    except Asked as asked:
        found[backend] = "refused"
calls = [name for name in dir(mnnvl.cuda) if name.startswith("cuMulticast")]
for name in ("cuMulticastCreate", "cuMulticastAddDevice", "cuMulticastBindMem"):
    try:
        getattr(flashinfer.comm.mixed_comm.cuda, name)()
        found[name] = "called"
    except Asked:
        found[name] = "refused"
mnnvl.cuda.cuMulticastCreate = print
try:
    refusal.check()
    found["put back"] = "not seen"
except RuntimeError:
    found["put back"] = "refused"
print(json.dumps(found))
"""


def test_real_flashinfer_can_make_no_multicast_object() -> None:
    done = subprocess.run(
        [environments.image_python(), "-c", REFUSED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 7 and set(found.values()) == {"refused"}, found


@pytest.mark.parametrize("module", ("rank", "kernels"))
def test_what_touches_a_gpu_refuses_first(module: str) -> None:
    text = (ROOT / f"benchmarks/gpu/{module}.py").read_text()
    body = text[text.index("Refusal()") :]
    assert re.search(r"import (torch|flashinfer)|from flashinfer", body), "looked in the right part"
    before = text[: text.index("Refusal()")]
    assert not re.search(r"^\s*(import|from) (torch|flashinfer)", before, re.MULTILINE)


def test_a_call_that_was_not_refused_ends_the_rank() -> None:
    with pytest.raises(RuntimeError, match="nothing is run here"):
        refusal.Refusal._expect(lambda: None)
    made = refusal.Refusal.__new__(refusal.Refusal)
    made.places = [(SimpleNamespace(create=print), "create", ModuleType)]
    with pytest.raises(RuntimeError, match="nothing is run here"):
        made.check()
