"""``report`` over 1,000 workers x 1,000 lines: wall time and memory.

Evidence as `HISPARSE_GUARD_TRACE_CONTEXT=1` makes it in a large fleet: 125 servers of 8 ranks,
each worker with 250 call sites at four running counts, stacks of 12 frames that the workers have
in common. Memory is the sum over the command and the processes it starts, read from
``/proc/*/smaps_rollup`` (Pss) every 20 ms.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.row import Row
from tests.cli.report.samples import Process

ROOT = Path(__file__).resolve().parent.parent
DEPTH = 12


def stack(site: int) -> list[dict[str, object]]:
    return [
        {
            "file": f"/usr/local/lib/python3.12/dist-packages/vllm/v1/worker/module_{site % 97}.py",
            "line": 40 + 7 * frame + site % 400,
            "function": f"function_{site % 53}_{frame}",
        }
        for frame in range(DEPTH)
    ]


def make(folder: Path, workers: int, lines: int) -> int:
    """Writes the evidence.

    Returns:
        Its size in bytes.
    """
    stacks = [stack(site) for site in range(max(1, lines // 4))]
    for number in range(workers):
        server, rank = divmod(number, 8)
        process = Process(
            rank=rank,
            world=min(8, workers),
            host=f"node-{server}",
            pid=1000 + rank,
            ppid=900,
            rendezvous=f"tcp://node-{server}:29500",
            instance=f"instance-{server}",
        ).config()
        process.resolve()
        site = count = 0
        while len(process.lines) < lines - 2:
            process.miss(
                count=10**count,
                origin="trace",
                where=stacks[site][-1],
                stack=stacks[site],
                left_s=0.1 * site + number,
            )
            site += 1
            if site == len(stacks):
                site, count = 0, count + 1
        process.workspace("made").workspace()
        process.write(folder / process.host)
    return sum(path.stat().st_size for path in folder.rglob("*.jsonl"))


def _memory(pid: int) -> int:
    """Pss of a process and its children, in bytes."""
    total = 0
    for one in [pid, *_children(pid)]:
        try:
            text = Path(f"/proc/{one}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(x.split()[1]) for x in text.splitlines() if x.startswith("Pss:")) * 1024
    return total


def _children(pid: int) -> list[int]:
    found = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *_children(int(child))]
    except OSError:
        pass
    return found


def measure(folder: Path, *options: str) -> tuple[float, float, int, int]:
    """Runs the command once.

    Returns:
        Wall time in seconds, processor time in seconds (of its children too), peak memory in
        bytes, exit code.
    """
    command = [sys.executable, "-m", "hisparse_guard", "report", str(folder), *options]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        peak = max(peak, _memory(process.pid))
        time.sleep(0.02)
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return wall, spent, peak, process.returncode


def rows(workers: int = 1000, lines_each: int = 1000, runs: int = 3) -> Iterator[Row]:
    """Raises:
    RuntimeError: report did not find the evidence safe.
    """
    with tempfile.TemporaryDirectory(prefix="report-scale-") as scratch:
        folder = Path(scratch)
        megabytes = make(folder, workers, lines_each) / 1e6
        print(f"{workers} workers x {lines_each} lines, {megabytes:.0f} MB", flush=True)
        for options in ((), ("--json",), ("--html", str(folder / "report.html"))):
            found = [measure(folder, *options) for _ in range(runs)]
            if any(code for *_, code in found):
                raise RuntimeError("report did not find the evidence safe")
            wall, used, peak, _ = zip(*found, strict=True)
            what = " ".join(["report", *options[:1]])
            yield Row(what, "s", wall, promised="3 s")
            yield Row(f"{what}, processor time", "s", used)
            yield Row(
                f"{what}, peak memory", "MB", [size / 1e6 for size in peak], promised="200 MB"
            )
