"""A real `vllm serve` whose real workers are cured by nothing but the zip on PYTHONPATH."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.support.bundles import bundled
from tests.support.environments import opentelemetry_path, server_python
from tests.support.server import Server, serve

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("server")]

EXTENSION = Path(__file__).with_name("extension")

# vLLM's own form: "(Worker_TP0 pid=71) INFO 11-30 21:50:01 [guard.py:1] hisparse-guard: …".
PREFIX = re.compile(
    r"\((?P<process>\w+) pid=(?P<pid>\d+)\)(?:\x1b\[[\d;]*m)* "
    r"(?P<level>[A-Z]+) [\d-]+ [\d:.]+ \[[^\]]+\] hisparse-guard: (?P<text>.*)"
)


def post(server: Server, path: str, body: dict[str, Any]) -> Any:
    request = Request(
        server.base_url + path,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urlopen(request, timeout=120) as response:
        return json.loads(response.read())


def rpc(server: Server, method: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = post(server, "/collective_rpc", {"method": method})["results"]
    return found


def tokens(server: Server) -> list[list[int]]:
    """What the server answers to a fixed prompt, sampled with a fixed seed and greedily."""
    answers = []
    for sampling in ({"temperature": 0}, {"temperature": 1.0, "seed": 7}):
        body = {
            "model": server.model,
            "prompt": [11, 23, 47, 91, 5, 64],
            "max_tokens": 24,
            "ignore_eos": True,
            "return_token_ids": True,
            **sampling,
        }
        (choice,) = post(server, "/v1/completions", body)["choices"]
        assert len(choice["token_ids"]) == 24, choice
        answers.append(choice["token_ids"])
    return answers


def log_lines(server: Server) -> list[str]:
    text = server.log.read_text(errors="replace")
    return [line for line in text.splitlines() if "hisparse-guard: " in line]


def arm(tmp_path: Path, name: str, path: list[Path], **env: str) -> dict[str, Any]:
    """One server: what its workers answer in the scenario, its tokens, its lines in the log."""
    with serve(
        server_python(),
        log=tmp_path / f"{name}.log",
        env={
            "PYTHONPATH": os.pathsep.join(map(str, [*path, EXTENSION])),
            "VLLM_SERVER_DEV_MODE": "1",
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
            **env,
        },
        extra_args=("--worker-extension-cls", "probe_extension.Probe"),
    ) as server:
        found: dict[str, Any] = {"before": tokens(server), "quiet": log_lines(server)}
        found["workers"] = rpc(server, "lazy_workspace")
        found["after"] = tokens(server)
        found["lines"] = log_lines(server)
        found["alive"] = "EngineCore" in " ".join(server.processes().values())
    return found


@pytest.fixture(scope="module")
def zip_guard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundled(tmp_path_factory.mktemp("bundle") / "the guard.zip")


@pytest.fixture(scope="module")
def unguarded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return arm(tmp_path_factory.mktemp("control"), "unguarded", [])


def test_without_the_guard_the_fault_is_there(unguarded: dict[str, Any]) -> None:
    assert [w["backend"] for w in unguarded["workers"]] == ["mnnvl", "mnnvl"]
    assert [w["guard"] for w in unguarded["workers"]] == [None, None]
    assert [w["wrapt"] for w in unguarded["workers"]] == [None, None]
    assert unguarded["lines"] == []
    assert unguarded["before"] == unguarded["after"]


ARMS = ["zip", "opentelemetry behind", "opentelemetry in front"]


@pytest.mark.parametrize("name", ARMS)
def test_the_zip_cures_the_workers(
    name: str, zip_guard: Path, unguarded: dict[str, Any], tmp_path: Path
) -> None:
    path = [zip_guard]
    if "opentelemetry" in name:
        theirs = opentelemetry_path()
        auto = theirs / "opentelemetry" / "instrumentation" / "auto_instrumentation"
        path = [auto, zip_guard] if "front" in name else [zip_guard, auto]
        path.append(theirs)
    found = arm(tmp_path, "guarded", path)
    workers = found["workers"]
    assert [w["backend"] for w in workers] == ["trtllm", "trtllm"], found["lines"]
    assert [w["made"] for w in workers] == [["trtllm"], ["trtllm"]]
    for worker in workers:
        assert worker["guard"] == f"{zip_guard}/hisparse_guard/__init__.py"
        if "opentelemetry" in name:
            assert worker["opentelemetry"] == "TracerProvider"
            assert worker["wrapt"].startswith(str(opentelemetry_path()))
        else:
            assert worker["wrapt"] is None

    # It serves, and the same tokens as without the guard.
    assert found["alive"]
    assert found["before"] == found["after"] == unguarded["before"]

    # HiSparse not seen yet: not a word. Then every worker's lines, whole, with vLLM's prefix.
    assert found["quiet"] == []
    parsed = [PREFIX.fullmatch(line) for line in found["lines"]]
    assert None not in parsed, found["lines"]
    by_pid: dict[int, list[str]] = {}
    for match in parsed:
        assert match is not None
        assert match["process"].startswith("Worker_TP")
        by_pid.setdefault(int(match["pid"]), []).append(match["text"])
    assert by_pid.keys() == {w["pid"] for w in workers}
    for texts in by_pid.values():
        assert texts[0].startswith("armed ")
        assert sum(t.startswith("armed ") for t in texts) == 1, texts
        verified = [t for t in texts if t.startswith("workspace verified: backend=trtllm")]
        assert len(verified) == 1, texts
        assert [t for t in texts if t.startswith("context miss")], texts
