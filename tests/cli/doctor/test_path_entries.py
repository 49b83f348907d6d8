"""What is on PYTHONPATH."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from hisparse_guard.cli.doctor.checks import path_entries as module
from hisparse_guard.cli.doctor.checks.path_entries import may_be_altered
from tests.cli.doctor.support import doctor, said


def test_path_entries(tree: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no zip")
    result = doctor(tree, tmp_path / "gone", "relative", text, "")
    found = said(result, "PYTHONPATH")
    assert f"fix: {tmp_path}/gone does not exist" in found
    assert "fix: relative is relative" in found and "relative does not exist" in found
    assert f"{text} is neither a folder nor a whole zip: if it is a bundle," in found
    assert "has an empty entry" in found
    assert result.exit_code == 1


@pytest.mark.parametrize(("mode", "who"), [(0o757, "anyone"), (0o775, "its group")])
@pytest.mark.parametrize("where", [".", "sitecustomize.py", "hisparse_guard"])
def test_what_others_may_write_to(tmp_path: Path, mode: int, who: str, where: str) -> None:
    entry = tmp_path / "guard"
    (entry / "hisparse_guard").mkdir(parents=True)
    (entry / "sitecustomize.py").write_text("")
    assert "may be written" not in said(doctor(entry), "PYTHONPATH")
    (entry / where).chmod(mode)
    result = doctor(entry)
    level = "fix" if who == "anyone" else "note"
    expected = f"{level}: {entry / where} may be written to by {who}"
    assert expected in said(result, "PYTHONPATH")
    assert list(entry.glob(".hisparse-guard*")) == []


def test_mode_bits_on_a_read_only_mount_do_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ConfigMap: mode 0777, and nobody can write. `/proc/self/fd` answers likewise."""
    folder = tmp_path / "configmap"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    assert may_be_altered(folder) == "anyone"

    def read_only(*_: Any, **__: Any) -> Any:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(module.tempfile, "mkstemp", read_only)
    assert may_be_altered(folder) is None


def test_an_altered_bundle(bundle: Path, tree: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(copy)
    assert said(doctor(copy, tree), "bundle").startswith("ok: ")
    with (copy / "sitecustomize.py").open("a") as file:
        file.write("# changed\n")
    result = doctor(copy, tree)
    assert "not as it was bundled: altered: sitecustomize.py" in said(result, "bundle")
    assert result.exit_code == 1
