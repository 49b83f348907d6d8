"""The guard with FlashInfer's real kernels on two GPUs of one host: ``make gpu``.

Says what it will do, does it, and writes JSON and a table. On one GPU it does what one allows.
See docs/gpu.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import shutil
import signal
import sys
from pathlib import Path

from benchmarks.gpu import machine, plan
from benchmarks.gpu.machine import ROOT, Machine
from benchmarks.gpu.run import Run

LATER = "0.7.4"
FETCHES = (
    "from PyPI, once, into ~/.cache/hisparse-guard: vLLM 0.33.0 without compiled parts, FlashInfer "
    f"0.7.2.post1, torch and what else vLLM asks for (about 8 GB), FlashInfer {LATER} (0.6 GB)"
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--python", help="the ranks' interpreter, with vLLM (default: made from PyPI, and kept)"
    )
    parser.add_argument(
        "--path",
        type=Path,
        action="append",
        default=[],
        help="with --python: a folder that holds vLLM or what it needs",
    )
    parser.add_argument(
        "--flashinfer",
        type=Path,
        action="append",
        default=[],
        help="with --python: a folder that holds a FlashInfer release; several run one by one "
        "(default: the interpreter's own)",
    )
    parser.add_argument(
        "--home", type=Path, help="kept kernels and logs (default: ~/.cache/hisparse-guard/gpu)"
    )
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/gpu/results")
    parser.add_argument("--hidden", type=int, default=7168, help="default: DeepSeek-V3.2's 7168")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    parser.add_argument(
        "--limit", type=float, default=3600, help="seconds a release; what is not done fails"
    )
    parser.add_argument("--plan", action="store_true", help="say what would be done, and end")
    parser.add_argument(
        "--dry",
        action="store_true",
        help="no GPU, gloo in place of the kernels: checks this script; writes no results",
    )
    return parser.parse_args()


def fetched() -> tuple[str, list[tuple[Path, ...]]]:
    """The interpreter with FlashInfer 0.7.2.post1 that the tests use too, and the folders in
    front: for that release and for the later one."""
    from tests.support import environments

    environments.set_up(["0.33.0", "image"])
    vllm = environments.vllm_release("0.33.0")
    packages = [f"flashinfer-python=={LATER}"]
    later = environments._folder("flashinfer-whole", LATER, packages)
    return str(environments.image_python()), [(vllm,), (later, vllm)]


def given(options: argparse.Namespace) -> tuple[str, list[tuple[Path, ...]]]:
    """The same from the command line."""
    paths = tuple(path.resolve() for path in options.path)
    folders = [(path.resolve(), *paths) for path in options.flashinfer]
    return shutil.which(options.python) or options.python, folders or [paths]


def main() -> int:
    options = arguments()
    # So that the ranks are ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(124))
    gpus = () if options.dry else machine.gpu_names()
    try:
        mode = plan.mode(len(gpus), options.dry)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    now = datetime.datetime.now(datetime.timezone.utc)
    home = (options.home or Path.home() / ".cache" / "hisparse-guard" / "gpu").resolve()
    out = home / "runs" / now.strftime("%Y-%m-%dT%H-%M-%SZ")
    results = out if options.dry else options.results.resolve()
    here = Machine(gpus, machine.driver(), machine.nvcc(), "", (), home / "kernels")
    limit = options.limit * max(1, len(options.flashinfer) if options.python else 2)
    said = plan.intent(mode, here, "" if options.python else FETCHES, out, results, limit)
    print(*said, sep="\n", flush=True)
    if options.plan:
        return 0
    python, folders = given(options) if options.python else fetched()
    failed = 0
    for paths in folders:
        found = dataclasses.replace(here, python=python, paths=paths)
        print(f"With {python}: {plan.packages(found)}", flush=True)
        release = f"flashinfer-{found.versions()['flashinfer-python'] or 'none'}"
        failed |= Run(found, mode, out / release, options, said).everything()
        if not options.dry:
            keep(out / release, results, f"{now:%Y-%m-%d}-{label(gpus, mode)}-{release}")
    return failed


def label(gpus: tuple[str, ...], mode: str) -> str:
    """For file names: 2xNVIDIA-H200."""
    return f"{2 if mode == 'two' else 1}x{gpus[0].replace(' ', '-')}"


def keep(folder: Path, results: Path, name: str) -> None:
    results.mkdir(parents=True, exist_ok=True)
    for suffix in (".json", ".md"):
        shutil.copyfile(folder / f"results{suffix}", results / f"{name}{suffix}")


if __name__ == "__main__":
    sys.exit(main())
