"""A real Ray actor, its environment set before, by `runtime_env`, and after its start."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.startup.sandbox import environment, vllm_folder
from tests.support.bundles import bundled
from tests.support.environments import ray_python

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

DRIVER = Path(__file__).with_name("driver.py")


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundled(tmp_path_factory.mktemp("bundle") / "guard.zip")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return vllm_folder(tmp_path / "image")


def actor(
    path: list[Path],
    *,
    runtime_env: dict[str, str] | None = None,
    late: dict[str, str] | None = None,
    plugins: bool = False,
) -> dict[str, Any]:
    """What the actor of a driver started with `path` on PYTHONPATH found."""
    job = {"runtime_env": runtime_env, "late": late, "plugins": plugins}
    done = subprocess.run(
        [ray_python(), DRIVER, json.dumps(job)],
        env=environment(
            path,
            RAY_USAGE_STATS_ENABLED="0",
            RAY_ENABLE_UV_RUN_RUNTIME_ENV="0",
            # The node listens on loopback.
            RAY_NODE_IP_ADDRESS="127.0.0.1",
        ),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    lines = [line[7:] for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert len(lines) == 1, f"exit {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"
    found: dict[str, Any] = json.loads(lines[0])
    assert found.pop("parent"), "the actor is no process of its own"
    return found


def test_set_before_the_driver_starts(guard: Path, image: Path) -> None:
    found = actor([guard, image])
    assert found == {"at_import": True, "armed": True, "wrapt": False, "mode": None}


def test_set_by_runtime_env(guard: Path, image: Path) -> None:
    path = os.pathsep.join(map(str, [guard, image]))
    found = actor([image], runtime_env={"PYTHONPATH": path, "HISPARSE_GUARD_MODE": "observe"})
    assert found == {"at_import": True, "armed": True, "wrapt": False, "mode": "observe"}


def test_arriving_after_the_interpreter_started(guard: Path, image: Path) -> None:
    # PYTHONPATH is read at the interpreter's start alone: too late for a way in …
    late = {"PYTHONPATH": os.pathsep.join(map(str, [guard, image]))}
    found = actor([image], late=late, plugins=True)
    assert (found["at_import"], found["armed"]) == (False, False)
    # … while the settings are in time, since they are read at the first decision.
    found = actor([guard, image], late={"HISPARSE_GUARD_MODE": "observe"})
    assert found == {"at_import": True, "armed": True, "wrapt": False, "mode": "observe"}


def test_installed_it_comes_in_as_vllms_plugin(
    installed: Path, image: Path, tmp_path: Path
) -> None:
    # No PYTHONPATH for the actors at all: what pip installed is found in site-packages.
    import wrapt

    wrapt_only = tmp_path / "wrapt"
    wrapt_only.mkdir()
    (wrapt_only / "wrapt").symlink_to(Path(wrapt.__file__).parent)
    found = actor([installed, image, wrapt_only], plugins=True)
    assert (found["at_import"], found["armed"]) == (False, True)
