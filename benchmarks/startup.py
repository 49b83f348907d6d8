"""What a process pays that never imports vLLM: time to start and memory, beside its peers.

Every arm starts the same interpreter with ``-c pass``, one after another in each round and in a
new order each round; a tax is the median over the rounds of the difference to its base *in the
same round*, so that a drift of the machine cancels. Nothing writes byte code; the arms named
"source" have none, the others bring it, as installed or bundled.

Run: ``python -m benchmarks.startup [--rounds N]``
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.line import Line, machine, show
from tests.support.environments import injectors_python

ROOT = Path(__file__).resolve().parent.parent
PLAIN = "plain Python"
EMPTY, EMPTY_ZIP = "empty sitecustomize", "empty sitecustomize, zip"
# The guard is counted over an empty file in the same kind of place: compiling even that one costs.
EMPTY_SOURCE, EMPTY_ZIP_SOURCE = f"{EMPTY}, source", f"{EMPTY_ZIP}, source"
PEERS = ("autowrapt", "OpenTelemetry", "ddtrace")
MEMORY_RUNS = 11
MEMORY = """
for line in open("/proc/self/smaps_rollup"):
    if line.startswith(("Private_Clean", "Private_Dirty")):
        print(line.split()[1])
"""


@dataclass(frozen=True)
class Arm:
    """One way to start the interpreter.

    Attributes:
        base: the arm that its tax is counted over.
    """

    environment: Mapping[str, str]
    base: str = EMPTY


@dataclass(frozen=True)
class Row:
    """What one arm cost.

    Attributes:
        start_ms: median of a whole start and end of the process, milliseconds.
        tax_ms: median over the rounds of the difference to `base`, milliseconds.
        ratio: `tax_ms` over the guard's (a folder with byte code); None for what has no tax.
        memory_mb: private memory at the end over that of `base`, megabytes (median).
    """

    arm: str
    start_ms: float
    base: str | None
    tax_ms: float | None
    ratio: float | None
    memory_mb: float | None


def arms(scratch: Path, python: Path) -> dict[str, Arm]:
    """The guard in its layouts, what it is compared with, and its peers."""

    def bundle(name: str) -> Path:
        command = [sys.executable, "-m", "hisparse_guard", "bundle", scratch / name]
        subprocess.run(
            [*command, "--python", python],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        return scratch / name

    folder, archive = bundle("guard"), bundle("guard.zip")
    source = scratch / "source"
    shutil.copytree(folder, source, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    source_zip = scratch / "source.zip"
    with zipfile.ZipFile(archive) as whole, zipfile.ZipFile(source_zip, "w") as out:
        for entry in whole.infolist():
            if not entry.filename.endswith(".pyc"):
                out.writestr(entry, whole.read(entry))
    empty, empty_source = scratch / "empty", scratch / "empty-source"
    for place in (empty, empty_source):
        place.mkdir()
        (place / "sitecustomize.py").write_text("")
    # In a zip, where byte code lies beside its source, and in a folder, where it does not.
    for beside in (["-b"], []):
        subprocess.run([python, "-m", "compileall", "-q", *beside, empty], check=True)
    empty_zip, empty_zip_source = scratch / "empty.zip", scratch / "empty-source.zip"
    for place, names in (
        (empty_zip, ("sitecustomize.py", "sitecustomize.pyc")),
        (empty_zip_source, ("sitecustomize.py",)),
    ):
        with zipfile.ZipFile(place, "w") as out:
            for name in names:
                out.write(empty / name, name)
    (site,) = python.parent.parent.glob("lib/python*/site-packages")
    auto = site / "opentelemetry" / "instrumentation" / "auto_instrumentation"

    def on_path(entry: Path, base: str = EMPTY, **more: str) -> Arm:
        return Arm({"PYTHONPATH": str(entry), **more}, base)

    return {
        PLAIN: Arm({}, ""),
        EMPTY: on_path(empty, PLAIN),
        EMPTY_SOURCE: on_path(empty_source, PLAIN),
        EMPTY_ZIP: on_path(empty_zip, PLAIN),
        EMPTY_ZIP_SOURCE: on_path(empty_zip_source, PLAIN),
        "guard, folder": on_path(folder),
        "guard, folder, source": on_path(source, EMPTY_SOURCE),
        "guard, zip": on_path(archive, EMPTY_ZIP),
        "guard, zip, source": on_path(source_zip, EMPTY_ZIP_SOURCE),
        "autowrapt": Arm({"AUTOWRAPT_BOOTSTRAP": "no.such.group"}, PLAIN),
        "OpenTelemetry": on_path(
            auto,
            PLAIN,
            OTEL_TRACES_EXPORTER="none",
            OTEL_METRICS_EXPORTER="none",
            OTEL_LOGS_EXPORTER="none",
        ),
        "ddtrace": on_path(
            site / "ddtrace" / "bootstrap",
            PLAIN,
            DD_TRACE_AGENT_URL="http://127.0.0.1:1",
            DD_INSTRUMENTATION_TELEMETRY_ENABLED="false",
            DD_REMOTE_CONFIGURATION_ENABLED="false",
        ),
    }


def _environment(arm: Arm) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", **arm.environment}


def _start_ms(python: Path, arm: Arm) -> float:
    begin = time.perf_counter()
    process = os.posix_spawn(python, [str(python), "-c", "pass"], _environment(arm))
    _, status = os.waitpid(process, 0)
    took = time.perf_counter() - begin
    if status:
        raise RuntimeError(f"exit status {status} with {dict(arm.environment)}")
    return took * 1000


def _memory_mb(python: Path, arm: Arm) -> float:
    done = subprocess.run(
        [python, "-c", MEMORY], env=_environment(arm), stdout=subprocess.PIPE, text=True, check=True
    )
    return sum(map(int, done.stdout.split())) / 1024


def measure(rounds: int) -> list[Row]:
    """Measures all arms, interleaved.

    Args:
        rounds: starts of each arm; the peers' are among them.
    """
    python = injectors_python()
    with tempfile.TemporaryDirectory() as scratch:
        known = arms(Path(scratch), python)
        times: dict[str, list[float]] = {name: [] for name in known}
        order = list(known)
        for arm in known.values():
            _start_ms(python, arm)  # into the page cache
        for _ in range(rounds):
            random.shuffle(order)
            for name in order:
                times[name].append(_start_ms(python, known[name]))
        memory = {
            name: statistics.median(_memory_mb(python, arm) for _ in range(MEMORY_RUNS))
            for name, arm in known.items()
        }
    taxes = {
        name: statistics.median(
            mine - base for mine, base in zip(times[name], times[arm.base], strict=True)
        )
        for name, arm in known.items()
        if arm.base
    }
    own = taxes["guard, folder"]
    return [
        Row(
            name,
            statistics.median(times[name]),
            arm.base or None,
            taxes.get(name),
            taxes[name] / own if name in taxes and own > 0 else None,
            memory[name] - memory[arm.base] if arm.base else None,
        )
        for name, arm in known.items()
    ]


# What is promised of a process that never imports vLLM, over an empty sitecustomize.
TARGETS = {"guard, folder": "<= 0.3 ms", "guard, folder, source": "<= 0.8 ms"}


def lines(rounds: int = 100) -> list[Line]:
    """A peer's ratio is its tax over the guard's, as a folder with byte code."""
    rows = measure(rounds)
    table = []
    for row in rows:
        target = "at least 50 x" if row.arm in PEERS else TARGETS.get(row.arm, "")
        table.append(
            Line(
                row.arm,
                f"{row.start_ms:.1f} ms",
                row.base or "",
                f"{row.tax_ms:+.2f} ms" if row.tax_ms is not None else "",
                f"{row.ratio:.0f} x guard" if row.ratio is not None and row.arm in PEERS else "",
                target,
            )
        )
    guard = next(row for row in rows if row.arm == "guard, folder")
    table.append(
        Line(
            "memory of a process, guard, folder",
            "",
            EMPTY,
            f"{guard.memory_mb:+.2f} MB",
            "",
            "<= 0.5 MB",
        )
    )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    caption = f"{machine()}; medians of {rounds} interleaved starts"
    show([("start of a process without vLLM", lines(rounds))], caption)


if __name__ == "__main__":
    main()
