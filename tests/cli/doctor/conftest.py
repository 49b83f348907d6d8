from __future__ import annotations

import os
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.doctor import support
from tests.support.bundles import bundled


@pytest.fixture(scope="session", autouse=True)
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Python with neither the guard nor wrapt: what is on PYTHONPATH is all there is."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, with_pip=False, symlinks=True)
    os.environ["HISPARSE_TESTS_BARE"] = str(home / "bin" / "python")
    yield support.bare()
    del os.environ["HISPARSE_TESTS_BARE"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m` puts the current folder on the path, and this one holds the guard."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guard as a zip, with a private wrapt."""
    return bundled(tmp_path_factory.mktemp("bundle") / "guard.zip")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return support.image(tmp_path / "image")
