"""One classifier, two front ends: `doctor` names the build class that the running guard names."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from hisparse_guard.cli.doctor.examine import examine
from tests.conformance import harness
from tests.support import environments
from tests.support.bundles import hisparse_guard

# The fixture is what costs: one interpreter that has loaded torch.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("doctor agrees")]

CLASSES = {
    "0.19.1": "no-hisparse",
    "0.24.0": "no-hisparse",
    "0.25.1": "no-hisparse",
    "0.29.0": "no-hisparse",
    "0.30.0": "unguarded",
    "0.31.0": "unguarded",
    "0.32.0": "unguarded",
    "0.33.0": "unguarded",
    "0.34.0": "fixed",
    "fork-0.24": "unguarded",
    "leaky": "leaky",
    "fixed-backend": "fixed",
    "fixed-choice": "fixed",
}
# What the guard tells of itself in a process that has imported vLLM: no more of it, since older
# releases want packages that newer ones do not.
RUNNING = """
import json
import vllm

from hisparse_guard.runtime import telemetry
armed = telemetry._recorder.armed
print(json.dumps([armed.how, armed.build_class]))
"""


def test_every_release_is_here() -> None:
    assert set(environments.RELEASES) <= set(CLASSES)


@pytest.fixture(scope="module")
def running() -> dict[str, dict[str, Any]]:
    """What the guard says in a process of each tree, a fork of one that has loaded the rest."""
    jobs = []
    for name in CLASSES:
        path = [*harness.guard_path(), harness.tree(name)]
        jobs.append({"name": name, "path": list(map(str, path)), "code": RUNNING})
    return harness.forks("vllm").run_all(jobs)


@pytest.mark.parametrize("name", CLASSES)
def test_both_name_the_same_class(name: str, running: dict[str, dict[str, Any]]) -> None:
    said = running[name]["stdout"].splitlines()
    assert said, running[name]
    assert json.loads(said[-1]) == ["sitecustomize", CLASSES[name]]

    python = str(environments.image_python())
    path = os.pathsep.join(map(str, [*harness.guard_path(), harness.tree(name)]))
    variables = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": path}
    result = examine([python, "-m", "vllm.entrypoints.cli.main", "serve"], variables)
    assert result.seen is not None
    assert result.seen["classified"]["build"]["label"] == CLASSES[name]
    assert result.seen["imported"] == []
    concerned = CLASSES[name] != "no-hisparse"
    assert result.verdict.advice == ("needed" if concerned else "not needed")
    texts = [one.text for one in result.findings if one.topic == "host mirror"]
    expected = name in environments.HISPARSE_RELEASES or name in ("leaky", "fixed-backend")
    if expected:
        assert "skips the host mirror under FULL CUDA graphs" in texts[0]


@pytest.mark.parametrize(
    ("name", "advice"),
    [("mended", "not needed here: every caller"), ("0.34.0", "needed here: ")],
)
def test_the_guard_can_go_only_where_no_caller_leaves_it_open(name: str, advice: str) -> None:
    path = os.pathsep.join(map(str, [*harness.guard_path(), harness.tree(name)]))
    command = [environments.image_python(), "-m", "vllm.entrypoints.cli.main", "serve"]
    done = hisparse_guard("doctor", "--", *command, PYTHONPATH=path)
    assert done.returncode == 0, done
    assert done.stdout.startswith(advice)
