"""Whole ramps against a real `vllm serve` (on the CPU, two tensor-parallel ranks)."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.cli.ramp.process import Ramp, contents, ramp
from tests.support.environments import server_python
from tests.support.server import serve

pytestmark = pytest.mark.slow

SMALL = ("--isl", "200", "--osl", "24")


def test_ramps_on_one_server_until_its_engine_is_killed(tmp_path: Path) -> None:
    """One server for all: it takes half a minute to start."""
    folders = [tmp_path / name for name in ("healthy", "again", "talking", "killed")]
    for folder in folders:
        folder.mkdir()
    healthy, again, talking, killed = folders
    archive = healthy / "record.tar.gz"
    with serve(server_python(), log=tmp_path / "server.log") as server:
        where = (server.base_url, server.model)
        found = ramp(
            healthy,
            *where,
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
        assert b"Starting vLLM" in held["record/server-logs/1.log"]
        assert json.loads(held["record/record.json"])["verdicts"] == {"triage": "healthy"}
        assert found.document["generator"]["tokens_counted"]
        # Of a model with random weights an answer may be special tokens alone.
        assert all("no garbage" in one for one in found.document["not_shown"])
        assert _metric(server.base_url, "vllm:prefix_cache_queries_total") > 0
        hits = _metric(server.base_url, "vllm:prefix_cache_hits_total")
        # Of known answers, asked more than once; not of the load.
        assert hits < 200

        # The same seed sends the same prompts: now the cache does help.
        seed = str(found.document["load"]["seed"])
        words = ("--levels", "1", "--requests", "2", *SMALL, "--seed", seed)
        assert ramp(again, *where, *words).counts == [(1, 2, 0)]
        more = _metric(server.base_url, "vllm:prefix_cache_hits_total")
        assert more >= hits + 2 * 100

        # A seed of its own: with another the prompts may be a token longer or shorter.
        words = ("--multi-turn", "--conversations", "2", "--turns", "3", "--levels", "2")
        found = ramp(talking, *where, *words, *SMALL, "--turn-isl", "30", "--seed", "7")
        assert (found.code, found.counts) == (0, [(2, 6, 0)])
        assert found.document["levels"][0]["prompt_tokens"] == [200, 254, 308]
        assert _metric(server.base_url, "vllm:prefix_cache_hits_total") > more

        running = Ramp(
            killed,
            *where,
            *("--levels", "1,4,8", "--requests", "2,80,16", "--isl", "200", "--osl", "100"),
        )
        # Three at once: the second level has begun (the first has one and a known prompt).
        deadline = time.monotonic() + 600
        while _metric(server.base_url, "vllm:num_requests_running") < 3:
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


def _metric(url: str, name: str) -> float:
    with urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{"))
