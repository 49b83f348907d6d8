"""What each call costs in a worker of real vLLM, with the guard and without.

One rank on gloo, set up as in the conformance tests. The guarded arm and the bare one, which gets
`trtllm` by vLLM's own variable, run in fresh processes in turn.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks.row import Row
from tests.conformance import harness

RELEASE = "0.33.0"
ROUNDS = 5
BARE = "vLLM alone"
ARMS: dict[str, dict[str, Any]] = {
    BARE: {"guard": False, "env": {"VLLM_FLASHINFER_ALLREDUCE_BACKEND": "trtllm"}},
    "guarded": {"guard": True, "env": {}},
    BARE + ", no HiSparse": {"guard": False, "env": {}, "hisparse": False},
    "guarded, no HiSparse": {"guard": True, "env": {}, "hisparse": False},
}
PROMISED = {
    "config context, in and out, no HiSparse": "2.5 times",
    "getter, verified": "the same",
    "getter held outside vLLM": "+1 µs",
    "getter held outside vLLM, no HiSparse": "+1 µs",
    "getter after a failed creation": "+1 µs",
}


def _once(guard: bool, env: dict[str, str], hisparse: bool = True) -> dict[str, float]:
    """Microseconds a call, by its name."""
    job = {
        "name": "timed",
        "env": env,
        "start_method": "fork",
        "ranks": 1,
        "options": {"hisparse": hisparse},
    }
    (result,) = harness.run_jobs(RELEASE, [job], guard=harness.guard_path() if guard else None)
    (rank,) = result["ranks"]
    if "error" in rank:
        raise RuntimeError(rank)
    found: dict[str, float] = rank["microseconds"]
    return found


def rows() -> Iterator[Row]:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ARMS}
    for number in range(ROUNDS):
        # Each arm first in its turn.
        names = list(ARMS)[::-1] if number % 2 else list(ARMS)
        for name in names:
            found[name].append(_once(**ARMS[name]))
    for guarded, bare in (
        ("guarded", BARE),
        ("guarded, no HiSparse", BARE + ", no HiSparse"),
    ):
        for call in found[guarded][0]:
            mine, base = ([run[call] for run in found[arm]] for arm in (guarded, bare))
            if statistics.median(base) > 0:
                kind = call + guarded.removeprefix("guarded")
                yield Row(kind, "µs", mine, bare, base, PROMISED.get(kind, ""))
