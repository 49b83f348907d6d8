"""The guard as it is deployed: bundles, a wheel, an installation; and its command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.startup.sandbox import ROOT, environment


def hisparse_guard(
    *words: str | Path, entry: Path | str = ROOT, stdin: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    """Runs the command line of the guard at `entry`, by this interpreter, which has typer."""
    return subprocess.run(
        [sys.executable, "-m", "hisparse_guard", *map(str, words)],
        env=environment([entry], **more),
        cwd="/",
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def bundled(dest: Path, *options: str) -> Path:
    done = hisparse_guard("bundle", dest, *options)
    assert done.returncode == 0, done
    return dest


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The guard as a folder and as a zip, at a path with spaces."""
    root = tmp_path_factory.mktemp("the bundles")
    return {
        "dir": bundled(root / "the guard"),
        "zip": bundled(root / "the guard.zip"),
    }


@pytest.fixture(params=["dir", "zip"])
def bundle(request: pytest.FixtureRequest, bundles: dict[str, Path]) -> Path:
    return bundles[request.param]


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter of an environment in which nothing is installed, wrapt included."""
    home = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    return home / "bin" / "python"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # As pip and uv build it, with the backend of this environment: no network is needed.
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("hisparse_guard-*.whl")
    return made


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel installed into a folder that stands for site-packages."""
    folder = tmp_path_factory.mktemp("site") / "site-packages"
    uv = [Path(sys.executable).with_name("uv"), "pip", "install", "-q", "--offline", "--no-deps"]
    command = [*uv, "--python", sys.executable, "--target", folder, wheel]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder
