"""Modules that are executed again: guarded again, once, and what was decided before still holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.startup.guarded import LOOK
from tests.startup.sandbox import FI, HISPARSE_VLLM, hisparse_folder, python, write
from tests.support.bundles import bare, bundles

__all__ = ["bare", "bundles"]

AGAIN = {
    "reload": """
for name in (FI, "vllm.config.vllm", CONFIG, "vllm.envs"):
    importlib.reload(sys.modules[name])
""",
    "deleted and imported": """
for name in [n for n in sys.modules if n.partition(".")[0] == "vllm"]:
    del sys.modules[name]
for name in (FI, "vllm.config.vllm", CONFIG, "vllm.envs"):
    importlib.import_module(name)
""",
    "second copy": """
for name in (FI, "vllm.config.vllm", CONFIG, "vllm.envs"):
    first = sys.modules.pop(name)
    spec = importlib.util.find_spec(name)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    assert sys.modules[name] is not first
""",
}
# As 0.34.0 over several nodes: none where the config is current, and else the default.
FORGETFUL = HISPARSE_VLLM[FI].replace(
    'return "mnnvl", True',
    """from vllm.config import get_current_vllm_config_or_none
    return ("mnnvl", True) if get_current_vllm_config_or_none() is None else (None, False)""",
)
PROGRAM = """
import importlib, importlib.util
class Group:
    pass
group = Group()
def resolve():
    return sys.modules[FI]._resolve_fi_ar_backend(group)[0]
def everything():
    answers = [backend(), resolve()]
    sys.modules[FI].destroy_fi_ar_workspace()
    return answers
import vllm.envs
config, fi = importlib.import_module(CONFIG), importlib.import_module(FI)
with config.set_current_vllm_config(config.given):
    first = resolve()
print(first, look(), everything())
{again}
print(resolve(), look())
{again}
register()
print(resolve(), look())
print(everything())
"""


@pytest.mark.parametrize("again", AGAIN)
def test_guarded_again_and_once(
    again: str, bundles: dict[str, Path], bare: Path, tmp_path: Path
) -> None:
    code = LOOK + PROGRAM.format(again=AGAIN[again])
    image = hisparse_folder(tmp_path / "image")
    alone = python(code, [image], interpreter=bare)
    assert alone.stdout.splitlines()[-1] == "['mnnvl', 'mnnvl']", alone
    assert "1" not in alone.stdout and ": 0" in alone.stdout, "guarded without the guard"
    for bundle in bundles.values():
        done = python(code, [bundle, image], interpreter=bare)
        assert done.stdout == alone.stdout.replace("mnnvl", "trtllm").replace(": 0", ": 1"), done
        assert "ERROR" not in done.stderr and "unguarded" not in done.stderr, done.stderr


@pytest.mark.parametrize("again", AGAIN)
def test_the_pin_of_before_is_used(
    again: str, bundles: dict[str, Path], bare: Path, tmp_path: Path
) -> None:
    image = write(hisparse_folder(tmp_path / "image"), {FI: FORGETFUL})
    code = LOOK + PROGRAM.format(again=AGAIN[again] + "sys.modules[FI].workspace = None\n")
    code = code.replace("print(first, look(), everything())", "print(first, resolve())")
    code = code.replace("print(everything())\n", "").replace(", look())", ")")
    alone = python(code, [image], interpreter=bare)
    assert alone.stdout == "None mnnvl\nmnnvl\nmnnvl\n", alone
    done = python(code, [bundles["zip"], image], interpreter=bare)
    assert done.stdout == "None None\nNone\nNone\n", done


@pytest.mark.parametrize("mode", ["off", "observe"])
def test_where_nothing_is_to_be_changed(
    mode: str, bundles: dict[str, Path], bare: Path, tmp_path: Path
) -> None:
    # The mode is set by the program itself, after the start, as Ray does.
    image = hisparse_folder(tmp_path / "image")
    setting = f"import os; os.environ['HISPARSE_GUARD_MODE'] = {mode!r}\n"
    code = setting + LOOK + PROGRAM.format(again=AGAIN["reload"])
    done = python(code, [bundles["zip"], image], interpreter=bare)
    assert done.stdout.splitlines()[-1] == "['mnnvl', 'mnnvl']", done
    assert "trtllm" not in done.stdout, done


def test_a_finder_that_was_taken_out_comes_back_with_the_plugin(
    bundles: dict[str, Path], bare: Path, tmp_path: Path
) -> None:
    """Import hooks of the image may be cleared by its own start: modules that are imported after
    vLLM has loaded its plugins are patched all the same."""
    image = hisparse_folder(tmp_path / "image")
    taken_out = "sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != 'PatchFinder']"
    done = python(LOOK + taken_out + "\nregister()\nprint(backend())", [bundles["zip"], image],
                  interpreter=bare)  # fmt: skip
    assert done.stdout == "trtllm\n", done
