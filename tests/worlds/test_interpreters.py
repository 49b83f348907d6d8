"""The part that runs in someone's server, on interpreters other than the one of these tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.startup.sandbox import ROOT
from tests.support.environments import pyodide, wrapt_path
from tests.worlds.batch import laid_out
from tests.worlds.builds import Shape

IN_SERVER = (
    ROOT / "sitecustomize.py",
    ROOT / "hisparse_guard" / "__init__.py",
    ROOT / "hisparse_guard" / "runtime",
)


def vermin(*paths: Path) -> subprocess.CompletedProcess[str]:
    options = ("--target=3.10-", "--eval-annotations", "--violations", "--no-tips")
    return subprocess.run(
        [sys.executable, "-c", "from vermin import main; main()", *options, *paths],
        capture_output=True,
        text=True,
        check=False,
    )


def test_syntax_and_library_are_those_of_3_10() -> None:
    done = vermin(*IN_SERVER)
    assert done.returncode == 0, done.stdout
    assert "Minimum required versions: 3." in done.stdout, done.stdout


def test_the_checker_tells_what_is_too_new(tmp_path: Path) -> None:
    for text in ("try: pass\nexcept* OSError: pass\n", "from datetime import UTC\n"):
        (tmp_path / "new.py").write_text(text)
        done = vermin(tmp_path / "new.py")
        assert done.returncode != 0 and "3.11" in done.stdout, done.stdout


def in_pyodide(code: str, *folders: Path) -> str:
    """What `code` prints in another Python, with `folders` at /mnt/0, /mnt/1, …"""
    node, package = pyodide()
    script = Path(__file__).with_name("pyodide.mjs")
    done = subprocess.run(
        [node, script, package, "exit_code = 0\n" + code, *folders],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_unit_tests_on_another_version() -> None:
    # pytest is pure Python, as is all that it needs; plugins are not loaded.
    site = Path(pytest.__file__).parents[1]
    code = """
import sys
assert sys.version_info[:2] == (3, 14), sys.version
sys.path[:] = ["/mnt/0", *sys.path, "/mnt/1"]
import pytest
files = ["/mnt/0/tests/runtime/test_decision.py", "/mnt/0/tests/runtime/test_settings.py"]
options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir=/mnt/0"]
exit_code = int(pytest.main([*options, *files]))
"""
    last = in_pyodide(code, ROOT, site).strip().splitlines()[-1]
    assert " passed" in last and "failed" not in last, last


def test_a_worker_on_another_version(tmp_path: Path) -> None:
    """From `sitecustomize` to the pinned workspace, with wrapt's pure-Python half."""
    package = laid_out(Shape("plain"), tmp_path / "plain")
    code = """
import runpy, sys
sys.path[:0] = ["/mnt/0", "/mnt/1", "/mnt/2"]
runpy.run_path("/mnt/0/sitecustomize.py")
import copy, pickle
import vllm.config, vllm.fused
import vllm.distributed.device_communicators.flashinfer_all_reduce as fi
from vllm.config.vllm import VllmConfig, Part
assert pickle.loads(pickle.dumps(fi._resolve_fi_ar_backend)) is fi._resolve_fi_ar_backend
assert copy.deepcopy(fi._resolve_fi_ar_backend) is fi._resolve_fi_ar_backend
print(fi._resolve_fi_ar_backend(None))
given = VllmConfig(attention_config=Part(hisparse_config=object()), model_config=Part(model="m"))
with vllm.config.set_current_vllm_config(given):
    print(fi._resolve_fi_ar_backend(None))
print(fi.get_fi_ar_workspace(2, 0, None).backend, type(vllm.fused.get_fi_ar_workspace).__name__)
"""
    out = in_pyodide(code, ROOT, wrapt_path(), package)
    assert out.splitlines() == ["('mnnvl', True)", "('trtllm', False)", "trtllm function"]
