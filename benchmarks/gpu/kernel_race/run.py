#!/usr/bin/env python3
"""FlashInfer's mnnvl all-reduce kernel under NVIDIA's race detector, release by release.

    pip install --no-deps --target old flashinfer-python==0.7.2.post1
    pip install --no-deps --target new flashinfer-python==0.7.4
    python benchmarks/gpu/kernel_race/run.py old new --out results

For each folder `kernel.cu` is compiled with the headers in it (nvcc, for the GPU that is there)
and run on one GPU, first bare, then under `compute-sanitizer` with racecheck, memcheck and
synccheck, each run with a time limit. One ordinary buffer stands for the multicast pointer: no
multicast object and no FlashInfer workspace is ever made. See docs/kernel-class.md.

A table and the same as JSON are written to --out. Exit 0: all was measured, whatever it shows;
1: a kernel could not be compiled or started.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
SOURCE = Path(__file__).with_name("kernel.cu")
# Tool, launches in a run. One launch too, lest a slow run be taken for one that does not end.
ARMS = (("none", 20000), ("racecheck", 1), ("racecheck", 50), ("memcheck", 50), ("synccheck", 50))
TOKENS = 16


def label(folder: Path) -> str:
    sys.path.insert(0, str(ROOT))
    from hisparse_guard.runtime.telemetry.build_class import kernel_class

    return kernel_class([str(folder / "flashinfer")]).label


def release(folder: Path) -> str:
    (metadata,) = folder.glob("flashinfer_python-*.dist-info")
    return metadata.name.removesuffix(".dist-info").split("-")[1]


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def compiled(folder: Path, binary: Path) -> Path:
    capability = output("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader", "-i", "0")
    # Clusters of FlashInfer's builds: 9.0a, 10.0a, ….
    target = capability.replace(".", "") + "a"
    data = folder / "flashinfer" / "data"
    command = ["nvcc", "-std=c++17", "-O2", "-lineinfo", "--expt-relaxed-constexpr", "-w"]
    command += ["-gencode", f"arch=compute_{target},code=sm_{target}"]
    command += ["-I", str(data / "include"), "-I", str(data / "spdlog" / "include")]
    subprocess.run([*command, "-o", str(binary), str(SOURCE)], check=True)
    return binary


def run_once(binary: Path, tool: str, launches: int, limit: float) -> dict[str, Any]:
    """One run: whether it ended within `limit` seconds, and what it said."""
    command = [str(binary), str(TOKENS), str(launches)]
    if tool != "none":
        command = ["compute-sanitizer", "--tool", tool, *command]
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=limit)
        ended = True
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        ended = False
    hazards = re.search(r"RACECHECK SUMMARY: (\d+) hazard", text)
    errors = re.search(r"ERROR SUMMARY: (\d+) error", text)
    wrong = re.search(r"wrong_rows=(\d+)", text)
    return {
        "tool": tool,
        "launches": launches,
        "ended": ended,
        "seconds": round(time.monotonic() - started, 1),
        "exit": process.returncode if ended else None,
        "wrong_rows": int(wrong[1]) if wrong else None,
        "hazards": int(hazards[1]) if hazards else None,
        "errors": int(errors[1]) if errors else None,
        "output_end": text[-500:],
    }


def finding(run: dict[str, Any], limit: float) -> str:
    if not run["ended"]:
        return f"no end within {limit:g} s"
    found = [f"ended in {run['seconds']:g} s", f"exit {run['exit']}"]
    named = (("hazards", "hazards"), ("errors", "errors"), ("wrong_rows", "wrong rows"))
    return ", ".join(found + [f"{run[key]} {name}" for key, name in named if run[key] is not None])


def table(result: dict[str, Any]) -> str:
    about = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
    lines = [f"Measured {result['date']}: {about}.", ""]
    lines += [f"{result['tokens']} tokens of hidden size 7168, bfloat16, two ranks' data."]
    lines += ["Rows of the first three launches and of every thousandth are compared.", ""]
    lines += [
        "| FlashInfer | kernel class | tool | launches a run | each run |",
        "|---|---|---|---|---|",
    ]
    for measured in result["releases"]:
        for tool, launches in ARMS:
            runs = [r for r in measured["runs"] if (r["tool"], r["launches"]) == (tool, launches)]
            found = "; ".join(finding(r, result["limit_s"]) for r in runs)
            lines.append(
                f"| {measured['release']} | {measured['class']} | {tool} | {launches} | {found} |"
            )
    return "\n".join(lines) + "\n"


def machine() -> dict[str, str]:
    query = ("nvidia-smi", "-i", "0", "--format=csv,noheader")
    sanitizer = re.search(r"(?m)^Version (.*)$", output("compute-sanitizer", "--version"))
    toolkit = re.search(r"release ([\d.]+)", output("nvcc", "--version"))
    return {
        "gpu": output(*query, "--query-gpu=name"),
        "driver": output(*query, "--query-gpu=driver_version"),
        "CUDA": toolkit[1] if toolkit else "?",
        "compute-sanitizer": sanitizer[1] if sanitizer else "?",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=40, help="seconds a run may take")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each arm of racecheck")
    options = parser.parse_args()
    result: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": machine(),
        "tokens": TOKENS,
        "limit_s": options.limit,
        "releases": [],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for number, folder in enumerate(options.folders):
            binary = compiled(folder, Path(scratch, f"kernel{number}"))
            measured: dict[str, Any] = {
                "release": release(folder),
                "class": label(folder),
                "runs": [],
            }
            result["releases"].append(measured)
            for tool, launches in ARMS:
                for _ in range(options.repeat if tool == "racecheck" else 1):
                    run = run_once(binary, tool, launches, options.limit)
                    measured["runs"].append(run)
                    print(
                        measured["release"], tool, launches, finding(run, options.limit), flush=True
                    )
                    # Written after each run: what was measured survives an interruption.
                    name = f"{result['date']}-{result['machine']['gpu'].replace(' ', '-')}"
                    (options.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
                    (options.out / f"{name}.md").write_text(table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
