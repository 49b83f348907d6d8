"""Ctrl-C and an exit pass through the guard, and what comes after them is still guarded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.startup.guarded import LOOK
from tests.startup.sandbox import FI, HISPARSE_VLLM, hisparse_folder, python, write
from tests.support.bundles import bare, bundles

__all__ = ["bare", "bundles"]

# Raises once, where the name is imported.
ONCE = """
import sys
class Once:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r} and self in sys.meta_path:
            sys.meta_path.remove(self)
            raise {error}
sys.meta_path.insert(0, Once())
"""
TRY = """
try:
    {statement}
except {error}:
    print("passed")
"""
RAISING_ONCE = """
import sys as _sys
def _once(function, *args):
    if function not in _sys.__dict__.setdefault("raised_in", set()):
        _sys.raised_in.add(function)
        raise getattr(__import__("builtins"), _sys.error)
"""


def texts() -> dict[str, str]:
    """The stand-in vLLM, whose resolver, creation and module raise when they are told to."""
    changed = dict(HISPARSE_VLLM)
    for name, start in (
        ("resolver", "def _resolve_fi_ar_backend(group=None):\n"),
        ("creation", "def _create_workspace(backend, group):\n"),
    ):
        text = f"{start}    _once({name!r}) if {name!r} in _sys.planned else None\n"
        changed[FI] = changed[FI].replace(start, text)
    changed[FI] = RAISING_ONCE + changed[FI]
    changed[FI] += "if 'module' in _sys.planned:\n    _once('module')\n"
    return changed


IMPORT = "import vllm.distributed.device_communicators.flashinfer_all_reduce"
PLACES = {
    "module": TRY.replace("{statement}", IMPORT),
    "resolver": TRY.replace("{statement}", "backend()"),
    "creation": TRY.replace("{statement}", "backend()"),
    "context": """
import vllm.config
try:
    with vllm.config.set_current_vllm_config(vllm.config.given):
        raise {error}
except {error}:
    print("passed")
""",
    "activation": ONCE.replace("{name!r}", "'hisparse_guard.runtime.activate'")
    + TRY.replace("{statement}", "import vllm.config"),
}


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit"])
@pytest.mark.parametrize("place", PLACES)
def test_passes_and_what_follows_is_guarded(
    place: str, error: str, bundles: dict[str, Path], bare: Path, tmp_path: Path
) -> None:
    image = write(hisparse_folder(tmp_path / "image"), texts())
    code = f"import sys; sys.error, sys.planned = {error!r}, {[place]}\n{LOOK}"
    code += PLACES[place].format(error=error) + "print(backend())\n"
    done = python(code, [bundles["zip"], image], interpreter=bare)
    assert (done.stdout, done.returncode) == ("passed\ntrtllm\n", 0), done
    assert "Traceback" not in done.stderr and "ERROR" not in done.stderr, done.stderr
    if place != "activation":
        alone = python(code, [image], interpreter=bare)
        assert alone.stdout == "passed\nmnnvl\n", alone


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit"])
def test_in_the_start(error: str, bundles: dict[str, Path], bare: Path, tmp_path: Path) -> None:
    """The start is lost, so vLLM's plugin loading is the way in."""
    image = hisparse_folder(tmp_path / "image")
    code = f"""
{ONCE.format(name="hisparse_guard", error=error)}
import site
try:
    site.execsitecustomize()
except {error}:
    print("passed")
{LOOK}
import vllm.config
register()
print(backend())
"""
    done = python(code, [bundles["zip"], image], interpreter=bare, options=["-S"])
    assert done.stdout == "passed\ntrtllm\n", done


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit"])
def test_in_a_sitecustomize_behind_ours(
    error: str, bundles: dict[str, Path], bare: Path, tmp_path: Path
) -> None:
    image = hisparse_folder(tmp_path / "image")
    behind = write(tmp_path / "behind", {"sitecustomize.py": f"raise {error}\n"})
    code = "import site" + TRY.format(statement="site.execsitecustomize()", error=error) + LOOK
    path = [bundles["zip"], behind, image]
    done = python(code + "print(backend())", path, interpreter=bare, options=["-S"])
    assert done.stdout == "passed\ntrtllm\n", done
