"""Beside real injectors, in every order on PYTHONPATH: both stay in force."""

from __future__ import annotations

import itertools
import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hisparse_guard.cli.launchers import follow
from tests.startup.sandbox import environment, vllm_folder, write
from tests.support.bundles import bundled
from tests.support.environments import injectors_python, wrapt_path

pytestmark = pytest.mark.slow

# What each injector visibly does in a process that it is in force in.
PROGRAM = """
import json, sqlite3, sys, threading

def of_guard():
    return "hisparse_guard.runtime.activate" in sys.modules

import vllm.config
out = {"guard_at_import": of_guard(), "runs": getattr(sys, "runs", 0)}
# As vLLM itself loads its plugins: unprotected.
import importlib.metadata
for entry in importlib.metadata.entry_points(group="vllm.general_plugins"):
    entry.load()()
out["guard"] = of_guard()
out["ddtrace"] = [
    getattr(sqlite3, "_datadog_patch", False),
    any(getattr(m, "loaded", False) for n, m in sys.modules.items() if n.endswith("sitecustomize")),
]
provider = sys.modules.get("opentelemetry.trace")
out["opentelemetry"] = [
    provider and type(provider.get_tracer_provider()).__name__,
    hasattr(threading.Thread.start, "__wrapped__"),
]
out["autowrapt"] = getattr(vllm.config, "seen_by_autowrapt", False)
import wrapt
out["wrapt"] = [wrapt.__version__, wrapt.__file__]
thread = threading.Thread(target=lambda: None)
thread.start()
thread.join()
print(json.dumps(out))
"""


@cache
def site_packages() -> Path:
    (found,) = injectors_python().parent.parent.glob("lib/python*/site-packages")
    return found


def ddtrace() -> Path:
    return site_packages() / "ddtrace" / "bootstrap"


def opentelemetry() -> Path:
    return site_packages() / "opentelemetry" / "instrumentation" / "auto_instrumentation"


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundled(tmp_path_factory.mktemp("bundle") / "guard.zip")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """vLLM's name, a hook that autowrapt is to load, and a sitecustomize that all shadow."""
    return write(
        vllm_folder(tmp_path / "image"),
        {
            "program.py": PROGRAM,
            "hook.py": "def hook(module):\n    module.seen_by_autowrapt = True\n",
            "hook-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: hook\nVersion: 1.0\n",
            "hook-1.0.dist-info/entry_points.txt": "[the.group]\nvllm.config = hook:hook\n",
            "sitecustomize.py": "import sys\nsys.runs = getattr(sys, 'runs', 0) + 1\n",
        },
    )


def started(path: list[Path], image: Path, tmp_path: Path) -> dict[str, Any]:
    """What the program sees, and whether coverage measured it."""
    config = tmp_path / "coveragerc"
    config.write_text(f"[run]\nparallel = true\ndata_file = {tmp_path}/data/.coverage\n")
    (tmp_path / "data").mkdir(exist_ok=True)
    for old in (tmp_path / "data").iterdir():
        old.unlink()
    done = subprocess.run(
        [injectors_python(), image / "program.py"],
        env=environment(
            [*path, image],
            AUTOWRAPT_BOOTSTRAP="the.group",
            COVERAGE_PROCESS_START=str(config),
            DD_TRACE_AGENT_URL="http://127.0.0.1:1",
            DD_INSTRUMENTATION_TELEMETRY_ENABLED="false",
            DD_REMOTE_CONFIGURATION_ENABLED="false",
            DD_TRACE_VLLM_ENABLED="false",
            OTEL_TRACES_EXPORTER="none",
            OTEL_METRICS_EXPORTER="none",
            OTEL_LOGS_EXPORTER="none",
        ),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done
    assert "guard" not in done.stderr, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    code = """
import json, sys, coverage
data = coverage.CoverageData(sys.argv[1])
data.read()
print(json.dumps(sorted(data.measured_files())))
"""
    files: set[str] = set()
    for data in (tmp_path / "data").iterdir():
        read = subprocess.run(
            [injectors_python(), "-c", code, data], capture_output=True, text=True, check=True
        )
        files |= set(json.loads(read.stdout))
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**found, "coverage": str(image / "program.py") in files}


GUARD, DDTRACE, OPENTELEMETRY = "guard", "ddtrace", "opentelemetry"
ORDERS = [
    order
    for others in ([], [DDTRACE], [OPENTELEMETRY], [DDTRACE, OPENTELEMETRY])
    for order in itertools.permutations([GUARD, *others])
]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_both_stay_in_force(
    order: tuple[str, ...], guard: Path, image: Path, tmp_path: Path
) -> None:
    folders = {GUARD: guard, DDTRACE: ddtrace(), OPENTELEMETRY: opentelemetry()}
    path = [folders[name] for name in order]
    alone = started([f for f in path if f != guard], image, tmp_path)
    assert (alone["guard_at_import"], alone["guard"]) == (False, False)
    assert (alone["autowrapt"], alone["coverage"]) == (True, True)
    if DDTRACE in order:
        # Behind OpenTelemetry's sitecustomize ddtrace's is lost too, with or without the guard.
        lost = OPENTELEMETRY in order and order.index(OPENTELEMETRY) < order.index(DDTRACE)
        assert alone["ddtrace"] == [not lost, not lost]
    if OPENTELEMETRY in order:
        assert alone["opentelemetry"] == ["TracerProvider", True]

    both = started(path, image, tmp_path)
    # OpenTelemetry's sitecustomize hands on to none: behind it vLLM's plugin loading is the way.
    shadowed = OPENTELEMETRY in order and order.index(OPENTELEMETRY) < order.index(GUARD)
    assert both.pop("guard_at_import") is not shadowed
    assert both.pop("guard") is True
    del alone["guard_at_import"], alone["guard"]
    assert both == alone


@pytest.mark.parametrize("version", ["1.14.1", "1.17.3", "2.0.1"])
@pytest.mark.parametrize("front", [True, False], ids=["guard in front", "guard behind"])
def test_whatever_wrapt_the_image_has(
    version: str, front: bool, guard: Path, image: Path, tmp_path: Path
) -> None:
    theirs = [opentelemetry(), wrapt_path(version)]
    alone = started(theirs, image, tmp_path)
    assert alone["opentelemetry"] == ["TracerProvider", True]
    assert alone["wrapt"] == [version, str(wrapt_path(version) / "wrapt" / "__init__.py")]
    both = started([guard, *theirs] if front else [*theirs, guard], image, tmp_path)
    assert both.pop("guard_at_import") is front
    assert both.pop("guard") is True
    del alone["guard_at_import"], alone["guard"]
    assert both == alone


@pytest.mark.parametrize("path", ["", "/one", "/one::/two", ":/one"])
@pytest.mark.parametrize("launcher", ["ddtrace-run", "opentelemetry-instrument"])
def test_their_launchers_are_followed_to_the_path_that_they_pass_on(
    launcher: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = str(injectors_python().with_name(launcher))
    env = {**environment([]), "PYTHONPATH": path}
    passed_on = subprocess.run(
        [command, "/bin/sh", "-c", 'echo "$PYTHONPATH"'],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = follow([command, str(injectors_python()), "-m", "vllm"], env)
    assert found.unknown is None
    assert found.environment["PYTHONPATH"] == passed_on.stdout.strip()
