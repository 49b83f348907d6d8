"""Whole ramps against a real `vllm serve` (on the CPU, two tensor-parallel ranks)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.ramp.process import Ramp, contents, ramp
from tests.support.environments import server_python
from tests.support.server import serve

pytestmark = pytest.mark.slow

SMALL = ("--isl", "200", "--osl", "24")


def test_a_whole_ramp_then_one_whose_engine_is_killed(tmp_path: Path) -> None:
    """One server for both: it takes half a minute to start."""
    healthy, killed = tmp_path / "healthy", tmp_path / "killed"
    healthy.mkdir()
    killed.mkdir()
    archive = healthy / "record.tar.gz"
    with serve(server_python(), log=tmp_path / "server.log") as server:
        found = ramp(
            healthy,
            server.base_url,
            server.model,
            *("--levels", "1,2,4", "--requests", "2,4,8", *SMALL),
            *("--archive", archive, "--server-log", server.log),
        )
        assert found.code == 0, found.out + found.err
        assert found.counts == [(1, 2, 0), (2, 4, 0), (4, 8, 0)]
        assert found.document["after"] == {"health": None, "probe": None, "listed": True}
        for level in found.document["levels"]:
            assert level["prompt_tokens"] == [200]
            assert level["output_tokens_per_s"] > 0
            assert 0 < level["itl_ms"]["median"] <= level["itl_ms"]["p99"]
        held = contents(archive)
        (log,) = [name for name in held if "/server-logs/" in name]
        assert b"vLLM" in held[log]

        running = Ramp(
            killed,
            server.base_url,
            server.model,
            *("--levels", "1,4,8", "--requests", "2,40,16", "--isl", "200", "--osl", "200"),
        )
        deadline = time.monotonic() + 180
        while _running(server.base_url) < 4:
            assert time.monotonic() < deadline and running.process.poll() is None
            time.sleep(0.05)
        os.kill(server.pid_of("EngineCore"), signal.SIGKILL)
        found = running.finish()
    assert found.code == 1, found.out + found.err
    first, second = found.counts
    assert first == (1, 2, 0)
    assert second[0] == 4 and second[2] > 0
    assert found.document["verdict"] == "failed"
    assert found.document["engine_dead"]
    assert found.document["first_failure"]["level"] == 4
    assert found.document["levels_not_run"] == [{"concurrency": 8, "planned": 16}]
    assert not found.document["after"]["listed"]


def _running(url: str) -> int:
    with urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return sum(
        int(float(line.split()[-1]))
        for line in text.splitlines()
        if line.startswith("vllm:num_requests_running{")
    )
