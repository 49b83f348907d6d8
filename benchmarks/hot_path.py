"""The getter's hot path and the import of vLLM's module, with the guard and without.

Real vLLM 0.33.0, two gloo ranks as in the conformance tests. Each round starts a fresh interpreter
for every arm, in a new order; a figure is the median over the rounds, a ratio the median of the
rounds' ratios.

Run: ``python -m benchmarks.hot_path [--rounds N]``
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.line import Line, machine, show
from tests.conformance import harness
from tests.support.environments import image_python

RELEASE = "0.33.0"
MODULE = "vllm.distributed.device_communicators.flashinfer_all_reduce"
IMPORT = f"""
import time
import torch
begin = time.perf_counter()
import {MODULE}
print("IMPORT", time.perf_counter() - begin)
"""
TRTLLM = {"VLLM_FLASHINFER_ALLREDUCE_BACKEND": "trtllm"}


@dataclass(frozen=True)
class Arm:
    guarded: bool
    environment: Mapping[str, str]
    hisparse: bool = True


ARMS = {
    "unguarded": Arm(False, TRTLLM),
    "guarded": Arm(True, {}),
    "guarded, observe": Arm(True, {**TRTLLM, "HISPARSE_GUARD_MODE": "observe"}),
    "guarded, no HiSparse": Arm(True, {}, hisparse=False),
}


def _call_ns(arm: Arm) -> float:
    job = {
        "name": "timed",
        "env": dict(arm.environment),
        "start_method": "fork",
        "options": {"hisparse": arm.hisparse},
    }
    guard = harness.guard_path() if arm.guarded else None
    (result,) = harness.run_jobs(RELEASE, [job], guard=guard)
    ranks = result["ranks"]
    if any("error" in rank for rank in ranks):
        raise RuntimeError(ranks)
    return statistics.median(rank["ns"] for rank in ranks)


def _import_s(guarded: bool) -> float:
    path = [*(harness.guard_path() if guarded else []), harness.tree(RELEASE)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM", "PYTHON"))}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, path))
    done = subprocess.run(
        [image_python(), "-c", IMPORT],
        env=environment,
        cwd=Path("/"),
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    (line,) = (x for x in done.stdout.splitlines() if x.startswith("IMPORT "))
    return float(line.split()[1])


def _interleaved(rounds: int, arms: Mapping[str, object], once: object) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in arms}
    order = list(arms)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            found[name].append(once(arms[name]))
    return found


def _ratio(mine: list[float], base: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(mine, base, strict=True))


def lines(rounds: int = 7) -> list[Line]:
    calls = _interleaved(rounds, ARMS, _call_ns)
    imports = _interleaved(rounds, {"unguarded": False, "guarded": True}, _import_s)
    table = []
    for name, times in calls.items():
        median = statistics.median(times)
        if name == "unguarded":
            table.append(Line("get_fi_ar_workspace, unguarded", f"{median:.0f} ns"))
            continue
        ratio = _ratio(times, calls["unguarded"])
        table.append(
            Line(
                f"get_fi_ar_workspace, {name}",
                f"{median:.0f} ns",
                "unguarded",
                f"{median - statistics.median(calls['unguarded']):+.0f} ns",
                f"{ratio:.2f} x",
                "1.00 x",
            )
        )
    plain, guarded = (statistics.median(imports[name]) for name in ("unguarded", "guarded"))
    ratio = _ratio(imports["guarded"], imports["unguarded"])
    table.append(Line("import of vLLM's module, unguarded", f"{plain:.2f} s"))
    table.append(
        Line(
            "import of vLLM's module, guarded",
            f"{guarded:.2f} s",
            "unguarded",
            f"{guarded - plain:+.2f} s",
            f"{ratio:.2f} x",
            "within noise",
        )
    )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    caption = f"{machine()}; vLLM {RELEASE}; medians of {rounds} interleaved rounds"
    show([("hot path and import", lines(rounds))], caption)


if __name__ == "__main__":
    main()
