"""The release as users get it: sdist and wheel, made once for this folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.startup.sandbox import ROOT
from tests.support.bundles import wheel

__all__ = ["sdist", "wheel"]


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (made,) = folder.glob("hisparse_guard-*.tar.gz")
    return made
