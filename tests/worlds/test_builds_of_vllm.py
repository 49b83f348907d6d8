"""Whatever a vLLM looks like, the program behaves as without the guard, plus at most one error."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from difflib import ndiff
from typing import Any

import pytest

from tests.worlds import import_ways
from tests.worlds.batch import guard_lines, laid_out, other_lines, run, trouble

# One process runs them all: the fixture is what costs.
pytestmark = pytest.mark.xdist_group("shapes")

SHAPES = {shape.name: shape for shape in import_ways.every()}

# name: (HiSparse on, environment)
SETTINGS: dict[str, tuple[bool, dict[str, str]]] = {
    "no-hisparse": (False, {}),
    "observe": (True, {"HISPARSE_GUARD_MODE": "observe", "HISPARSE_GUARD_MULTINODE": "keep"}),
    "enforce": (True, {"HISPARSE_GUARD_MULTINODE": "keep"}),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("shapes")
    paths = {
        name: str(laid_out(shape, root / str(number)))
        for number, (name, shape) in enumerate(SHAPES.items())
    }

    def of(run_name: tuple[str, bool]) -> dict[str, dict[str, Any]]:
        setting, guarded = run_name
        hisparse, env = SETTINGS[setting]
        cases = [
            {
                "name": name,
                "path": [paths[name]],
                "env": {"SHAPE_HISPARSE": "1" if hisparse else "0", **env},
                "main": shape.main,
            }
            for name, shape in SHAPES.items()
        ]
        return run(cases, guarded)

    runs = [("no-hisparse", False), ("observe", False), *((s, True) for s in SETTINGS)]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(runs, pool.map(of, runs), strict=True))


def either(text: str) -> str:
    """What the program printed, whichever of the two backends it got."""
    text = text.replace("mnnvl", "BACKEND").replace("trtllm", "BACKEND")
    return re.sub(r"\('BACKEND', (True|False)\)", "('BACKEND', ANY)", text)


def differences(guarded: str, unguarded: str) -> list[str]:
    lines = ndiff(unguarded.splitlines(), guarded.splitlines())
    return [line for line in lines if line[0] in "-+"]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", SHAPES)
def test_the_program_behaves_as_without(name: str, setting: str, results: Any) -> None:
    unguarded = results["no-hisparse" if setting == "no-hisparse" else "observe", False][name]
    guarded = results[setting, True][name]
    same = either if setting == "enforce" else str
    assert differences(same(guarded["stdout"]), same(unguarded["stdout"])) == []
    assert guarded["exit"] == unguarded["exit"]
    assert other_lines(guarded["stderr"]) == other_lines(unguarded["stderr"])
    said = guard_lines(guarded["stderr"])
    if setting == "no-hisparse":
        # A config that cannot be read is said in every process: it might hide HiSparse.
        assert [line for line in said if "internal error" not in line] == []
    assert len(trouble(guarded["stderr"])) <= 1, said
    assert "verified: backend=None" not in guarded["stderr"]


def test_the_guard_was_there(results: Any) -> None:
    # The comparison proves nothing if nothing is guarded.
    plain = results["enforce", True]["missing-nothing"]
    assert "backend='trtllm'" in plain["stdout"], plain
    assert "backend='mnnvl'" not in plain["stdout"], plain
    alone = results["observe", False]["missing-nothing"]
    assert "backend='mnnvl'" in alone["stdout"] and alone["stderr"] == "", alone
    observed = results["observe", True]["missing-nothing"]
    assert "workspace at risk" in observed["stderr"], observed
