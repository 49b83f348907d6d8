"""What is in the sdist and in the wheel, and that the version is said once."""

from __future__ import annotations

import configparser
import email
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from hisparse_guard import __version__
from tests.startup.sandbox import ROOT


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_version_is_said_once(wheel: Path, sdist: Path) -> None:
    assert wheel.name == f"hisparse_guard-{__version__}-py3-none-any.whl"
    assert sdist.name == f"hisparse_guard-{__version__}.tar.gz"
    code = [ROOT / "pyproject.toml", ROOT / "Makefile", ROOT / "sitecustomize.py"]
    code += (ROOT / "hisparse_guard").rglob("*.py")
    said = {path.relative_to(ROOT).as_posix() for path in code if __version__ in path.read_text()}
    assert said == {"hisparse_guard/__init__.py"}


def test_the_wheel_has_the_start_the_types_and_both_entry_points(wheel: Path) -> None:
    found = contents(wheel)
    start = (ROOT / "sitecustomize.py").read_bytes()
    assert found["hisparse_guard/inject/sitecustomize.py"] == start
    assert "hisparse_guard/py.typed" in found
    info = f"hisparse_guard-{__version__}.dist-info"
    points = configparser.ConfigParser()
    points.read_string(found[f"{info}/entry_points.txt"].decode())
    assert dict(points["vllm.general_plugins"]) == {"hisparse_guard": "hisparse_guard:register"}
    assert dict(points["console_scripts"]) == {"hisparse-guard": "hisparse_guard.__main__:main"}
    metadata = email.message_from_bytes(found[f"{info}/METADATA"])
    assert metadata["Requires-Python"] == ">=3.10"
    assert [one for one in metadata.get_all("Requires-Dist", []) if "extra" not in one] == [
        "wrapt>=1.14"
    ]


def test_a_wheel_from_the_sdist_is_the_same(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    subprocess.run(command, cwd=unpacked, check=True, capture_output=True)
    assert contents(tmp_path / wheel.name) == contents(wheel)
