"""A file of the guard's name that is found before the guard's own: the server comes up."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.startup.guarded import LOOK
from tests.startup.sandbox import environment, hisparse_folder, python, write
from tests.support.bundles import bare, bundle, bundles

__all__ = ["bare", "bundle", "bundles"]

PROGRAM = LOOK + "print(backend())\n"
MODULE = {"hisparse_guard.py": "x = 1\n"}
PACKAGE = {"hisparse_guard/__init__.py": ""}
EMPTY_FOLDER = {"hisparse_guard/readme.txt": ""}


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return hisparse_folder(tmp_path / "image")


@pytest.mark.parametrize("files", [MODULE, PACKAGE, EMPTY_FOLDER], ids=min)
def test_in_the_current_folder_or_beside_the_script(
    files: dict[str, str], bundle: Path, image: Path, bare: Path, tmp_path: Path
) -> None:
    # Neither is on the path yet when the guard starts.
    folder = write(tmp_path / "program", files | {"main.py": PROGRAM})
    for words in (["-c", PROGRAM], ["-m", "main"], ["main.py"]):
        outcomes = [
            subprocess.run(
                [bare, *words],
                env=environment(path),
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
            for path in ([image], [bundle, image])
        ]
        assert [done.stdout for done in outcomes] == ["mnnvl\n", "trtllm\n"], outcomes


@pytest.mark.parametrize("files", [MODULE, PACKAGE], ids=min)
def test_in_an_earlier_entry_of_the_path(
    files: dict[str, str], bundle: Path, image: Path, bare: Path, tmp_path: Path
) -> None:
    front = write(tmp_path / "front", files)
    assert python(PROGRAM, [front, image], interpreter=bare).stdout == "mnnvl\n"
    done = python(PROGRAM, [front, bundle, image], interpreter=bare)
    assert (done.returncode, done.stdout) == (0, "mnnvl\n"), done
    (line,) = [x for x in done.stderr.splitlines() if "hisparse-guard: " in x]
    assert str(front / min(files)) in line, line


def test_a_folder_without_code_shadows_nothing(
    bundle: Path, image: Path, bare: Path, tmp_path: Path
) -> None:
    front = write(tmp_path / "front", EMPTY_FOLDER)
    done = python(PROGRAM, [front, bundle, image], interpreter=bare)
    assert done.stdout == "trtllm\n", done
