"""What a process pays when it imports vLLM: the guard's runtime, wrapt's import included.

In a fresh interpreter that has imported torch, as vLLM does; processor time, from source and with
byte code. Compared with the import of wrapt alone from the same place.
"""

from __future__ import annotations

import random
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.row import Row
from benchmarks.startup import environment, layouts
from tests.support.environments import image_python

RUNTIME = "hisparse_guard.runtime.activate"
WRAPT = "hisparse_guard._vendored.wrapt"
TIMED = """
import sys, time
import torch
sys.path.insert(0, sys.argv[1])
begin = time.process_time()
__import__(sys.argv[2])
print((time.process_time() - begin) * 1000)
"""
MEMORY = """
import sys
import torch
def private():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private"))
sys.path.insert(0, sys.argv[1])
before = private()
__import__(sys.argv[2])
print((private() - before) / 1024)
"""
ROUNDS = 15


def _once(script: str, place: Path, module: str) -> float:
    done = subprocess.run(
        [image_python(), "-c", script, place, module],
        env=environment({}),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return float(done.stdout)


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as scratch:
        places = layouts(Path(scratch), image_python())
        source, compiled = places["guard, folder, source"], places["guard, folder"]
        arms = {
            "wrapt, source": (TIMED, source, WRAPT),
            "runtime, source": (TIMED, source, RUNTIME),
            "wrapt": (TIMED, compiled, WRAPT),
            "runtime": (TIMED, compiled, RUNTIME),
            "memory": (MEMORY, compiled, RUNTIME),
            "memory of wrapt": (MEMORY, compiled, WRAPT),
        }
        found: dict[str, list[float]] = {name: [] for name in arms}
        for _ in range(ROUNDS):
            for name in random.sample(list(arms), len(arms)):
                found[name].append(_once(*arms[name]))
    yield Row(
        "activation, from source",
        "ms",
        found["runtime, source"],
        "import of wrapt alone, from source",
        found["wrapt, source"],
        "<= 25 ms",
    )
    yield Row(
        "activation, byte code", "ms", found["runtime"], "import of wrapt alone", found["wrapt"]
    )
    yield Row(
        "memory of the activated guard",
        "MB",
        found["memory"],
        "wrapt alone",
        found["memory of wrapt"],
    )
