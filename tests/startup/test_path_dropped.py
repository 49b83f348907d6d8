"""Programs that drop PYTHONPATH's entries from `sys.path`, as PEX, buildout and cleaners do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.startup.guarded import LOOK
from tests.startup.sandbox import environment, hisparse_folder, write
from tests.support.bundles import bare, bundle, bundles
from tests.support.environments import wrapt_path

__all__ = ["bare", "bundle", "bundles"]

MAIN = """
import multiprocessing, os, sys
import guarded

def work(results):
    results.put((guarded.backend(), "hisparse_guard._vendored.wrapt" in sys.modules))

if __name__ == "__main__":
    dropped = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [entry for entry in sys.path if entry not in dropped]
    sys.path.append(sys.argv[1])
    context = multiprocessing.get_context(sys.argv[2])
    results = context.Queue()
    workers = [context.Process(target=work, args=(results,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    print(guarded.backend(), [backend for backend, _ in found], {own for _, own in found})
"""


def run(path: list[Path], image: Path, bare: Path, folder: Path, method: str) -> str:
    program = write(folder, {"main.py": MAIN, "guarded.py": LOOK})
    done = subprocess.run(
        [os.fspath(bare), program / "main.py", image, method],
        env=environment(path),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "hisparse-guard: " not in done.stderr, done.stderr
    assert done.returncode == 0, done
    return done.stdout.strip()


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_parent_and_workers_are_guarded(
    method: str, bundle: Path, bare: Path, tmp_path: Path
) -> None:
    image = hisparse_folder(tmp_path / "image")
    alone = run([], image, bare, tmp_path / "program", method)
    assert alone == "mnnvl ['mnnvl', 'mnnvl'] {False}"
    done = run([bundle], image, bare, tmp_path / "program", method)
    assert done == "trtllm ['trtllm', 'trtllm'] {True}"


def test_beside_a_wrapt_of_the_image(bundles: dict[str, Path], bare: Path, tmp_path: Path) -> None:
    image = hisparse_folder(tmp_path / "image")
    path = [bundles["zip"], wrapt_path("1.14.1")]
    done = run(path, image, bare, tmp_path / "program", "spawn")
    assert done == "trtllm ['trtllm', 'trtllm'] {True}"
