"""Two threads that import vLLM at the same time do not hang, on every Python there is here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.startup.guarded import LOOK
from tests.startup.races import RACE
from tests.startup.sandbox import environment, hisparse_folder, write
from tests.support.bundles import bundles
from tests.support.forks import run_forked
from tests.support.interpreters import SUPPORTED, interpreter

__all__ = ["bundles"]

FI = "vllm.distributed.device_communicators.flashinfer_all_reduce"
SECOND = ("vllm.envs", "vllm.config", "vllm.config.vllm", FI)
# The parent package imports some of what is patched, and more before and after it.
PARENT = "import vllm.early\nimport vllm.envs, vllm.config\nimport vllm.late\n"
POINTS = (1, 3, 5)


@pytest.mark.parametrize("version", SUPPORTED)
def test_two_threads(version: str, bundles: dict[str, Path], tmp_path: Path) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no CPython {version} on this machine")
    image = write(
        hisparse_folder(tmp_path / "image"),
        {"vllm/__init__.py": PARENT, "vllm/early.py": "", "vllm/late.py": ""},
    )
    cases = [
        ("zip", first, second, at) for first in ("vllm", FI) for second in SECOND for at in POINTS
    ]
    cases += [(form, "vllm", second, 3) for form in ("", "dir") for second in SECOND]
    jobs = [
        {
            "name": json.dumps([form, first, second, at]),
            "path": [str(bundles[form])] if form else [],
            "code": f"{RACE}{LOOK}race({first!r}, {second!r}, {at})\nprint(backend(), look())",
        }
        for form, first, second, at in cases
    ]
    for name, result in run_forked(jobs, interpreter=python, env=environment([image])).items():
        assert result["exit"] == 0, (name, result)
        errors, guarded = result["stdout"].splitlines()
        backend = "trtllm" if json.loads(name)[0] else "mnnvl"
        assert errors == "errors []" and guarded.startswith(backend), (name, result)
