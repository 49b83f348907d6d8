"""The start on real vLLM: threads that import at the same time, and modules executed again.

One interpreter has loaded torch and the like; each case is a fork of it that imports vLLM.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import harness
from tests.startup.guarded import LOOK
from tests.startup.races import CROWD, RACE
from tests.support.bundles import bundles
from tests.support.environments import vllm_release

__all__ = ["bundles"]

pytestmark = pytest.mark.slow

FI = "vllm.distributed.device_communicators.flashinfer_all_reduce"
SECOND = ("vllm.envs", "vllm.config", "vllm.config.vllm", FI)
ALL = f"import vllm.envs, vllm.config, {FI}\nprint(look())\n"
AGAIN = f"""
import importlib, importlib.util
{ALL}
for name in (FI, "vllm.config.vllm", CONFIG, "vllm.envs"):
    importlib.reload(sys.modules[name])
print(look())
for name in (FI, "vllm.config.vllm", CONFIG, "vllm.envs"):
    del sys.modules[name]
{ALL}
register()
print(look())
"""


def races() -> list[tuple[str, str, str, int]]:
    """(form of the guard, first import, second import, at which module of vLLM)"""
    few = [("vllm", second, at) for second in SECOND for at in (1, 3)]
    more = [(FI, second, at) for second in ("vllm.envs", "vllm.config") for at in (5, 20, 60)]
    guarded = [("zip" if n % 2 else "dir", *case) for n, case in enumerate([*few, *more])]
    return [*guarded, *(("", *case) for case in few[::2])]


@pytest.fixture(
    scope="module",
    # The two releases side by side, each in one test process.
    params=[
        pytest.param(name, marks=pytest.mark.xdist_group(f"start on {name}"))
        for name in ("0.30.0", "0.33.0")
    ],
)
def results(request: pytest.FixtureRequest, bundles: dict[str, Path]) -> dict[str, dict[str, Any]]:
    release = str(vllm_release(request.param))
    forms = {"": [release], **{form: [str(path), release] for form, path in bundles.items()}}
    jobs = [
        {
            "name": f"race {json.dumps(case)}",
            "path": forms[case[0]],
            "code": f"{RACE}{LOOK}race({case[1]!r}, {case[2]!r}, {case[3]})\n{ALL}{harness.LEAVE}",
        }
        for case in races()
    ]
    for form, path in forms.items():
        jobs.append({"name": f"again {form}", "path": path, "code": LOOK + AGAIN + harness.LEAVE})
        crowd = f"{CROWD}{LOOK}crowd()\n{ALL}{harness.LEAVE}"
        jobs += [{"name": f"crowd {form} {n}", "path": path, "code": crowd} for n in (1, 2)]
    return harness.forks("vllm").run_all(jobs)


def flags(line: str) -> set[int]:
    found: dict[str, int] = json.loads(line.replace("'", '"'))
    assert len(found) == 5, found
    return set(found.values())


def test_two_threads(results: dict[str, dict[str, Any]]) -> None:
    for case in races():
        result = results[f"race {json.dumps(case)}"]
        assert result["exit"] == 0, (case, result)
        errors, *_, look = result["stdout"].splitlines()
        assert errors == "errors []", (case, result)
        assert flags(look) == {1 if case[0] else 0}, (case, result)


@pytest.mark.parametrize("form", ["", "dir", "zip"])
def test_executed_again(form: str, results: dict[str, dict[str, Any]]) -> None:
    result = results[f"again {form}"]
    assert result["exit"] == 0, result
    looks = [line for line in result["stdout"].splitlines() if line.startswith("{")]
    assert [flags(look) for look in looks] == [{1 if form else 0}] * 4, result


@pytest.mark.parametrize("form", ["", "dir", "zip"])
def test_50_threads(form: str, results: dict[str, dict[str, Any]]) -> None:
    for number in (1, 2):
        result = results[f"crowd {form} {number}"]
        assert result["exit"] == 0, result
        (kinds,) = [x[6:] for x in result["stdout"].splitlines() if x.startswith("kinds ")]
        assert set(json.loads(kinds)) <= {"partly imported"}, result
        # What the crowd left half imported is imported again, and then is guarded.
        assert flags(result["stdout"].splitlines()[-1]) == {1 if form else 0}, result
