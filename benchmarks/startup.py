"""What a process pays that never imports vLLM: time to start and memory, beside its peers.

Every arm starts the same interpreter with ``-c pass``, one after another in each round and in a
new order each round. Nothing writes byte code; the arms named "source" have none, the others bring
it, as bundled. The first version (0.1) is taken from the repository's history.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.row import Row
from tests.support.environments import injectors_python

ROOT = Path(__file__).resolve().parent.parent
# The last commit with the runtime of 0.1.
FIRST_VERSION = "fe772eb"
PLAIN = "plain Python"
EMPTY, EMPTY_ZIP = "empty sitecustomize", "empty sitecustomize, zip"
# The guard is counted over an empty file in the same kind of place: compiling even that one costs.
EMPTY_SOURCE, EMPTY_ZIP_SOURCE = f"{EMPTY}, source", f"{EMPTY_ZIP}, source"
# What is asked for is 0.2 ms, of starts that differ by 5 ms from one to the next.
ROUNDS = 480
# They take long, and are measured in each eighth round.
PEERS, EVERY = ("autowrapt", "OpenTelemetry", "ddtrace"), 8
MEMORY_RUNS = 11
MEMORY = """
for line in open("/proc/self/smaps_rollup"):
    if line.startswith(("Private_Clean", "Private_Dirty")):
        print(line.split()[1])
"""
PROMISED = {"guard, folder": "+0.2 ms", "guard, folder, source": "+1.0 ms"}


@dataclass(frozen=True)
class Arm:
    """One way to start the interpreter, and the arm that it is compared with."""

    environment: Mapping[str, str]
    base: str = EMPTY


def layouts(scratch: Path, python: Path) -> dict[str, Path]:
    """The guard as it is put on PYTHONPATH, by the name of its arm."""
    folder, archive = scratch / "guard", scratch / "guard.zip"
    for place in (folder, archive):
        subprocess.run(
            [sys.executable, "-m", "hisparse_guard", "bundle", place, "--python", python],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    source = scratch / "source"
    shutil.copytree(folder, source, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    source_zip = scratch / "source.zip"
    with zipfile.ZipFile(archive) as whole, zipfile.ZipFile(source_zip, "w") as out:
        for entry in whole.infolist():
            if not entry.filename.endswith(".pyc"):
                out.writestr(entry, whole.read(entry))
    return {
        "guard, folder": folder,
        "guard, folder, source": source,
        "guard, zip": archive,
        "guard, zip, source": source_zip,
    }


def first_version(scratch: Path, python: Path) -> dict[str, Path]:
    """The first version in a folder, with byte code and without.

    Raises:
        subprocess.CalledProcessError: this is no git checkout with that commit.
    """
    names = ("sitecustomize.py", "hisparse_guard/__init__.py", "hisparse_guard/runtime")
    archived = subprocess.run(
        ["git", "-C", ROOT, "archive", FIRST_VERSION, *names], check=True, stdout=subprocess.PIPE
    ).stdout
    source, folder = scratch / "first-source", scratch / "first"
    for place in (source, folder):
        with tarfile.open(fileobj=io.BytesIO(archived)) as files:
            files.extractall(place, filter="data")
    subprocess.run([python, "-m", "compileall", "-q", folder], check=True)
    return {"first version, folder": folder, "first version, folder, source": source}


def arms(scratch: Path, python: Path) -> dict[str, Arm]:
    """The guard in its layouts, what it is compared with, and its peers."""
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

    bases = {"zip": EMPTY_ZIP, "folder, source": EMPTY_SOURCE, "zip, source": EMPTY_ZIP_SOURCE}
    places = {**layouts(scratch, python), **first_version(scratch, python)}
    return {
        PLAIN: Arm({}, ""),
        EMPTY: on_path(empty, PLAIN),
        EMPTY_SOURCE: on_path(empty_source, PLAIN),
        EMPTY_ZIP: on_path(empty_zip, PLAIN),
        EMPTY_ZIP_SOURCE: on_path(empty_zip_source, PLAIN),
        **{
            name: on_path(place, bases.get(name.partition(", ")[2], EMPTY))
            for name, place in places.items()
        },
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


def environment(more: Mapping[str, str]) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", **more}


def _start_ms(python: Path, arm: Arm) -> float:
    begin = time.perf_counter()
    process = os.posix_spawn(python, [str(python), "-c", "pass"], environment(arm.environment))
    _, status = os.waitpid(process, 0)
    took = time.perf_counter() - begin
    if status:
        raise RuntimeError(f"exit status {status} with {dict(arm.environment)}")
    return took * 1000


def _memory_mb(python: Path, arm: Arm) -> float:
    done = subprocess.run(
        [python, "-c", MEMORY],
        env=environment(arm.environment),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return sum(map(int, done.stdout.split())) / 1024


def rows() -> Iterator[Row]:
    """Starts of a process, then its memory."""
    python = injectors_python()
    with tempfile.TemporaryDirectory() as scratch:
        known = arms(Path(scratch), python)
        times: dict[str, list[float]] = {name: [] for name in known}
        for arm in known.values():
            _start_ms(python, arm)  # into the page cache
        quick = [name for name in known if name not in PEERS]
        for number in range(ROUNDS):
            names = quick if number % EVERY else list(known)
            for name in random.sample(names, len(names)):
                times[name].append(_start_ms(python, known[name]))
        for name, arm in known.items():
            base = times.get(arm.base, ())
            base = base[::EVERY] if name in PEERS else base
            yield Row(f"start: {name}", "ms", times[name], arm.base, base, PROMISED.get(name, ""))
        memory = {
            name: [_memory_mb(python, known[name]) for _ in range(MEMORY_RUNS)]
            for name in ("guard, folder", EMPTY)
        }
    yield Row(
        "memory: guard, folder", "MB", memory["guard, folder"], EMPTY, memory[EMPTY], "+0.5 MB"
    )
