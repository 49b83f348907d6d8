"""Other tools at the very modules that the guard patches: each does its work, and so does ours."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.startup.guarded import LOOK
from tests.startup.sandbox import hisparse_folder, python, write
from tests.support.bundles import bare, bundle, bundles
from tests.support.environments import wrapt_path

__all__ = ["bare", "bundle", "bundles"]

# A tool that wraps the same functions by post-import hooks on the same modules.
HOOKS = """
import sys, wrapt
sys.hooked, sys.called = [], []
def spy(wrapped, instance, args, kwargs):
    sys.called.append(wrapped.__name__)
    return wrapped(*args, **kwargs)
def hook(module):
    sys.hooked.append(module.__name__)
    for name in ("set_current_vllm_config", "_resolve_fi_ar_backend", "get_fi_ar_workspace"):
        if name in vars(module):
            wrapt.wrap_function_wrapper(module, name, spy)
for name in ("vllm.envs", "vllm.config", "vllm.config.vllm",
             "vllm.distributed.device_communicators.flashinfer_all_reduce"):
    wrapt.register_post_import_hook(hook, name)
"""
USE = f"""{LOOK}
import vllm.envs
print(backend(), sys.hooked, sys.called, sorted(set(look().values())))
"""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return hisparse_folder(tmp_path / "image")


@pytest.mark.parametrize("version", ["1.14.1", "1.17.3", "2.0.1", "2.5.2"])
@pytest.mark.parametrize("order", ["registered by the program", "sitecustomize behind ours"])
def test_post_import_hooks_of_the_images_wrapt(
    version: str, order: str, bundle: Path, image: Path, bare: Path, tmp_path: Path
) -> None:
    path = [image, wrapt_path(version)]
    code = HOOKS + USE
    if order == "sitecustomize behind ours":
        path.insert(0, write(tmp_path / "tool", {"sitecustomize.py": HOOKS}))
        code = USE
    alone = python(code, path, interpreter=bare)
    assert alone.stdout.startswith("mnnvl ['vllm.envs', 'vllm.config.vllm',"), alone
    assert "'get_fi_ar_workspace'" in alone.stdout and alone.stdout.endswith("[0]\n"), alone
    done = python(code, [bundle, *path], interpreter=bare)
    # The workspace was verified, so the getter's own wrapper has stepped aside or is in the tool's.
    told = done.stdout.replace("[0, 1]", "[1]")
    assert told == alone.stdout.replace("mnnvl", "trtllm").replace("[0]", "[1]"), done
    assert "ERROR" not in done.stderr, done.stderr


FINDERS = {
    "delegates": """
class InFront:
    def find_spec(self, name, path=None, target=None):
        for finder in sys.meta_path if name.startswith("vllm") else ():
            spec = finder.find_spec(name, path, target) if finder is not self else None
            if spec is not None:
                return spec
""",
    # As typeguard's and beartype's hooks.
    "answers by itself": """
import importlib.machinery
class InFront:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("vllm"):
            return importlib.machinery.PathFinder.find_spec(name, path, target)
""",
}


@pytest.mark.parametrize("kind", FINDERS)
def test_a_finder_put_in_front_later(kind: str, bundle: Path, image: Path, bare: Path) -> None:
    code = f"""{LOOK}{FINDERS[kind]}
import importlib
sys.meta_path.insert(0, InFront())
for name in (CONFIG, "vllm.envs", FI):
    importlib.import_module(name)
print(sorted(set(look().values())))
register()
print(sorted(set(look().values())), backend())
"""
    assert python(code, [image], interpreter=bare).stdout == "[0]\n[0] mnnvl\n"
    done = python(code, [bundle, image], interpreter=bare)
    first = "[1]" if kind == "delegates" else "[0]"
    assert done.stdout == f"{first}\n[1] trtllm\n", done
    assert "ERROR" not in done.stderr, done.stderr


@pytest.mark.parametrize("front", ["dir", "zip"])
def test_two_copies_of_two_versions(
    front: str, bundles: dict[str, Path], image: Path, bare: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(bundles["dir"], tmp_path / "other")
    package = other / "hisparse_guard" / "__init__.py"
    text = package.read_text()
    package.write_text(text.replace('__version__ = "', '__version__ = "99.'))
    for compiled in other.rglob("*.pyc"):
        compiled.unlink()
    path = [other, bundles["zip"]] if front == "dir" else [bundles["zip"], other]
    # The copy behind gets in too where a program forgets the first: by vLLM's plugin loading.
    code = f"""{LOOK}
import vllm.config, vllm.envs, importlib
importlib.import_module(FI)
print(sorted(set(look().values())))
print([type(f).__name__ for f in sys.meta_path].count("PatchFinder"))
register()
first = sys.modules["hisparse_guard"]
for name in [n for n in sys.modules if n.partition(".")[0] == "hisparse_guard"]:
    del sys.modules[name]
sys.path[:] = [p for p in sys.path if p != {str(path[0])!r}]
register()
second = sys.modules["hisparse_guard"]
print(sorted(set(look().values())), backend(), first.__version__ != second.__version__)
"""
    done = python(code, [*path, image], interpreter=bare)
    assert done.stdout == "[1]\n1\n[1] trtllm True\n", done
    assert "ERROR" not in done.stderr, done.stderr
