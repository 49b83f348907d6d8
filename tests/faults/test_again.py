"""Modules that are executed behind the back of the hooks, which hear of each name once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.startup.sandbox import hisparse_folder, python
from tests.support.bundles import bare, bundles

__all__ = ["bare", "bundles"]

WORK = """
import importlib, importlib.machinery, sys
CONFIG, FI = "vllm.config", "vllm.distributed.device_communicators.flashinfer_all_reduce"
def work():
    config, fi = importlib.import_module(CONFIG), importlib.import_module(FI)
    with config.set_current_vllm_config(config.given):
        pass
    print(fi.get_fi_ar_workspace().backend)
def register():
    for entry in importlib.metadata.entry_points(group="vllm.general_plugins"):
        entry.load()()
class InFront:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("vllm."):
            return importlib.machinery.PathFinder.find_spec(name, path, target)
import importlib.metadata
"""
CASES = {
    # A tool that instruments packages and answers for them itself, as typeguard's hook does.
    "a finder in front, from the start": """
sys.meta_path.insert(0, InFront())
import vllm.config, vllm.distributed.device_communicators.flashinfer_all_reduce
register()
work()
""",
    "a finder in front, once armed": """
import vllm
sys.meta_path.insert(0, InFront())
import vllm.config, vllm.distributed.device_communicators.flashinfer_all_reduce
register()
work()
""",
    "the all-reduce module alone behind it": """
import vllm.config, vllm.distributed.device_communicators
sys.meta_path.insert(0, InFront())
work()
""",
    "reloaded": """
work()
importlib.reload(sys.modules[FI])
work()
importlib.reload(sys.modules[CONFIG])
importlib.reload(sys.modules[FI])
register()
work()
""",
    "imported once more": """
work()
for name in [n for n in sys.modules if n.partition(".")[0] == "vllm"]:
    del sys.modules[name]
importlib.import_module(CONFIG), importlib.import_module(FI)
register()
work()
""",
}


@pytest.mark.parametrize("case", CASES)
def test_is_guarded(case: str, bundles: dict[str, Path], bare: Path, tmp_path: Path) -> None:
    image = hisparse_folder(tmp_path / "image")
    alone = python(WORK + CASES[case], [image], interpreter=bare)
    assert set(alone.stdout.split()) == {"mnnvl"}, alone
    done = python(WORK + CASES[case], [bundles["zip"], image], interpreter=bare)
    assert set(done.stdout.split()) == {"trtllm"}, done
    assert done.stdout.count("\n") == alone.stdout.count("\n")
    assert done.stderr == ""


@pytest.mark.parametrize("mode", ["off", "observe"])
def test_where_nothing_is_to_be_changed(
    mode: str, bundles: dict[str, Path], bare: Path, tmp_path: Path
) -> None:
    image = hisparse_folder(tmp_path / "image")
    path = [bundles["zip"], image]
    code = f"import os; os.environ['HISPARSE_GUARD_MODE'] = {mode!r}\n" + WORK + CASES["reloaded"]
    assert set(python(code, path, interpreter=bare).stdout.split()) == {"mnnvl"}
