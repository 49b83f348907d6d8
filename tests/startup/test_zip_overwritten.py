"""A zip that is overwritten in place while processes start: each comes up, and says what it is."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from tests.startup.guarded import LOOK
from tests.startup.sandbox import environment, hisparse_folder, python
from tests.support.bundles import bare, bundles

__all__ = ["bare", "bundles"]

LINE = "hisparse-guard: "
# Python's own end where a zip on PYTHONPATH shrinks while it is read at the start: EOFError comes
# from zipimport, before anything of ours has run. So an update is shipped under a new name.
PYTHON_DIES = "Fatal Python error: init_fs_encoding"
# What the file holds once the process has started; `new` is another whole zip.
CONTENTS = ("new", "half of new", "nothing", "text", "no file")


def content(kind: str, zip_file: Path, folder: Path) -> bytes:
    whole = folder / "new.zip"
    with zip_file.open("rb") as old:
        whole.write_bytes(old.read())
    # Every offset in it is another.
    whole.write_bytes(b"#!shifted by one line\n" + whole.read_bytes())
    text = whole.read_bytes()
    return {"new": text, "half of new": text[: len(text) // 2], "text": b"x" * len(text)}.get(
        kind, b""
    )


@pytest.mark.parametrize("kind", CONTENTS)
@pytest.mark.parametrize("when", ["after the start", "once active"])
def test_overwritten_in_a_running_process(
    kind: str, when: str, bundles: dict[str, Path], bare: Path, tmp_path: Path
) -> None:
    image = hisparse_folder(tmp_path / "image")
    guard = shutil.copy(bundles["zip"], tmp_path / "guard.zip")
    (tmp_path / "content").write_bytes(content(kind, bundles["zip"], tmp_path))
    replace = f"import os, shutil; shutil.copyfile({str(tmp_path / 'content')!r}, {str(guard)!r})"
    if kind == "no file":
        replace = f"import os; os.unlink({str(guard)!r})"
    first = "import vllm.config\n" if when == "once active" else ""
    evidence = tmp_path / "evidence"
    done = python(
        f"{LOOK}{first}{replace}\nprint(backend())",
        interpreter=bare,
        env=environment([guard, image], HISPARSE_GUARD_EVIDENCE_DIR=str(evidence)),
    )
    assert done.returncode == 0, done
    lines = [line for line in done.stderr.splitlines() if LINE in line]
    if when == "once active":
        # Everything that is needed was loaded with the first patched module, labels aside.
        assert (done.stdout, lines) == ("trtllm\n", []), done
        (file,) = evidence.iterdir()
        written = [json.loads(line) for line in file.read_text().splitlines()]
        assert (written[0]["event"], written[0]["build_class"]) == ("armed", None)
        assert written[-1]["event"] == "end"
    elif done.stdout == "mnnvl\n":
        assert len(lines) == 1 and "unguarded" in lines[0], done.stderr
    else:
        assert (done.stdout, lines) == ("trtllm\n", []), done


def test_overwritten_again_and_again_while_processes_start(
    bundles: dict[str, Path], bare: Path, tmp_path: Path
) -> None:
    image = hisparse_folder(tmp_path / "image")
    guard = tmp_path / "guard.zip"
    old, new = bundles["zip"].read_bytes(), content("new", bundles["zip"], tmp_path)
    guard.write_bytes(old)
    stop = threading.Event()

    def overwrite() -> None:
        for whole in itertools.cycle((old, new)):
            if stop.is_set():
                return
            guard.write_bytes(whole)
            stop.wait(0.005)

    writer = threading.Thread(target=overwrite)
    writer.start()
    try:
        for _ in range(6):
            running = [
                subprocess.Popen(
                    [bare, "-c", LOOK + "print(backend())"],
                    env=environment([guard, image]),
                    cwd="/",
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                for _ in range(4)
            ]
            for process in running:
                out, error = process.communicate(timeout=60)
                if PYTHON_DIES in error:
                    continue
                assert (process.returncode, out in ("trtllm\n", "mnnvl\n")) == (0, True), error
                assert sum(LINE in line for line in error.splitlines()) <= 1, error
    finally:
        stop.set()
        writer.join()
