"""The finder: what it loads and when, and what others see of the modules that it has patched.

The start is the real one; what it calls after a module's execution only takes notes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.startup.sandbox import (
    WATCHDOG,
    environment,
    guard_folder,
    hisparse_folder,
    python,
    vllm_folder,
    write,
)


@pytest.fixture
def guard(tmp_path: Path) -> Path:
    return guard_folder(tmp_path / "guard")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return hisparse_folder(tmp_path / "image")


def without_site_packages(code: str, path: Sequence[Path]) -> subprocess.CompletedProcess[str]:
    """As `python`, but no other `sitecustomize` lies behind ours, as Debian's does."""
    return python("import site; site.execsitecustomize()\n" + code, path, options=["-S"])


# --- what is loaded

MODULES = "import sys; print(*sorted(sys.modules))"


def test_a_start_loads_the_package_and_nothing_else(guard: Path, tmp_path: Path) -> None:
    empty = write(tmp_path / "empty", {"sitecustomize.py": ""})
    alone = set(without_site_packages(MODULES, [empty]).stdout.split())
    guarded = set(without_site_packages(MODULES, [guard]).stdout.split())
    assert "sitecustomize" in alone
    assert guarded - alone == {"hisparse_guard"}


def test_a_start_that_chains_loads_one_module_more(guard: Path, tmp_path: Path) -> None:
    behind = write(tmp_path / "behind", {"sitecustomize.py": "import sys; sys.ran = 1"})
    alone = set(without_site_packages(MODULES, [behind]).stdout.split())
    done = without_site_packages(MODULES + "; assert sys.ran", [guard, behind])
    assert done.returncode == 0, done
    assert set(done.stdout.split()) - alone == {
        *("hisparse_guard", "hisparse_guard.runtime", "hisparse_guard.runtime.chain")
    }


@pytest.mark.parametrize("name", ["vllm", "vllm.config", "vllm.config.vllm", "vllm.envs"])
def test_a_probe_imports_nothing_of_ours(name: str, guard: Path, image: Path) -> None:
    # Beside a finder that imports what it is asked for, as ddtrace's did. Python itself imports
    # the parent package of a module that is probed.
    code = f"""{WATCHDOG}
import sys
sys.meta_path.insert(1, Watchdog())
before = set(sys.modules)
spec = importlib.util.find_spec({name!r})
print(sorted(set(sys.modules) - before), spec.origin, spec.loader.get_filename({name!r}),
      spec.loader.get_source({name!r}) == open(spec.origin).read(), spec.loader.path)
"""
    alone = without_site_packages(code, [image])
    done = without_site_packages(code, [guard, image])
    expected = alone.stdout
    if name == "vllm.config.vllm":  # `vllm.config` is executed, so it is patched
        loaded = "'hisparse_guard.runtime', 'hisparse_guard.runtime.activate', "
        assert "hisparse_guard" not in alone.stdout
        expected = expected.replace("[", "[" + loaded, 1)
    assert (done.stdout, done.stderr) == (expected, ""), done
    assert alone.returncode == 0 and f"{image}/vllm" in alone.stdout, alone


def test_off_leaves_no_finder(guard: Path, image: Path, tmp_path: Path) -> None:
    chained = write(tmp_path / "chained", {"sitecustomize.py": "import sys; sys.chained = 1"})
    code = """
import sys, vllm.config
print([type(f).__name__ for f in sys.meta_path].count("PatchFinder"), sys.chained,
      getattr(sys, "patched", []))
"""
    for value, expected in (("off", "0 1 []"), (" OFF ", "0 1 []"), ("observe", "1 1 [")):
        env = environment([guard, chained, image], HISPARSE_GUARD_MODE=value)
        done = python(code, env=env)
        assert done.stdout.startswith(expected), done


def test_path_and_other_finders_stay_as_they_were(guard: Path, tmp_path: Path) -> None:
    chained = write(tmp_path / "chained", {"sitecustomize.py": ""})
    code = f"""
import sys
print([p for p in sys.path if p != {str(guard)!r}])
print([getattr(f, "__name__", type(f).__name__) for f in sys.meta_path])
"""
    alone = python(code, [chained]).stdout
    assert python(code, [guard, chained]).stdout == alone.replace("\n[", "\n['PatchFinder', ")


# --- which executions are patched

PATCHED = ["vllm.config.vllm", "vllm.config", "vllm.envs"]
FI = "vllm.distributed.device_communicators.flashinfer_all_reduce"


def test_each_execution_is_patched_once(guard: Path, image: Path) -> None:
    code = f"""
import importlib, importlib.util, sys, types
import vllm.config, vllm.envs, {FI} as fi
print(sys.patched)
sys.patched = []
importlib.reload(fi)
importlib.reload(sys.modules["vllm.config.vllm"])
del sys.modules["vllm.envs"]
import vllm.envs
spec = importlib.util.find_spec("vllm.envs")
print(sys.patched)
sys.patched = []
# A second copy beside the module that is imported; and one made by hand, without a spec.
del sys.modules[{FI!r}]
spec = importlib.util.find_spec({FI!r})
copy = importlib.util.module_from_spec(spec)
spec.loader.exec_module(copy)
by_hand = types.ModuleType("vllm.config.vllm")
del sys.modules["vllm.config.vllm"]
importlib.util.find_spec("vllm.config.vllm").loader.exec_module(by_hand)
print(sys.patched, by_hand.given is not None)
"""
    done = python(code, [guard, image])
    assert done.stdout.splitlines() == [
        str([*PATCHED, FI]),
        str([FI, "vllm.config.vllm", "vllm.envs"]),
        f"{[FI, 'vllm.config.vllm']} True",
    ], done


def test_a_lazily_loaded_module_is_patched_when_it_is_executed(guard: Path, image: Path) -> None:
    code = """
import importlib.util, sys
spec = importlib.util.find_spec("vllm.envs")
spec.loader = importlib.util.LazyLoader(spec.loader)
module = sys.modules["vllm.envs"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(getattr(sys, "patched", []))
print(module.compile_factors() is not None, getattr(sys, "patched", []))
"""
    assert python(code, [image]).stdout == "[]\nTrue []\n"
    done = python(code, [guard, image])
    assert done.stdout == "[]\nTrue ['vllm.envs']\n", done


@pytest.mark.parametrize(
    "text",
    ["raise RuntimeError('its own')", "import not_to_be_found", "def broken(:", None],
    ids=["raises", "missing-import", "syntax", "missing"],
)
def test_vllms_own_error_is_as_without(text: str | None, guard: Path, tmp_path: Path) -> None:
    files = {"vllm/__init__.py": ""} | ({} if text is None else {"vllm/config.py": text})
    image = write(tmp_path / "image", files)
    code = """
import sys
try:
    import vllm.config
except Exception as error:
    print(repr(error), getattr(error, "name", ""), "vllm.config" in sys.modules)
print(getattr(sys, "patched", []))
"""
    alone = python(code, [image])
    assert alone.stdout.count("\n") == 2, alone
    assert python(code, [guard, image]).stdout == alone.stdout


# --- beside other finders


def test_the_finder_behind_is_asked_once_for_each(guard: Path, image: Path) -> None:
    code = """
import sys
class Behind:
    asked = []
    def find_spec(self, name, path=None, target=None):
        self.asked.append(name)
sys.meta_path.insert(len(sys.meta_path) - 3, Behind())
import vllm.config, vllm.envs, tabnanny
print([n for n in Behind.asked if n[:4] in ("vllm", "tabn")], getattr(sys, "patched", []))
"""
    alone = python(code, [image]).stdout
    assert alone == "['vllm', 'vllm.config', 'vllm.config.vllm', 'vllm.envs', 'tabnanny'] []\n"
    assert python(code, [guard, image]).stdout == alone.replace("] []", f"] {PATCHED}")


@pytest.mark.parametrize("place", [0, 1], ids=["in front", "behind"])
def test_a_finder_that_asks_all_others(place: int, guard: Path, image: Path) -> None:
    code = f"""
import sys
class Delegating:
    asked = []
    def find_spec(self, name, path=None, target=None):
        if name.startswith("vllm"):
            self.asked.append(name)
            for finder in sys.meta_path:
                spec = finder.find_spec(name, path, target) if finder is not self else None
                if spec is not None:
                    return spec
sys.meta_path.insert({place}, Delegating())
import vllm.config, vllm.envs
print(Delegating.asked, getattr(sys, "patched", []))
"""
    alone = python(code, [image])
    assert alone.stdout.endswith(" []\n"), alone
    done = python(code, [guard, image])
    assert (done.stdout, done.stderr) == (alone.stdout.replace(" []", f" {PATCHED}"), "")


def test_a_probe_in_another_thread_hides_nothing(guard: Path, image: Path) -> None:
    # While one thread merely probes, another one imports.
    code = """
import sys, threading
probing, imported = threading.Event(), threading.Event()
class Slow:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread().name == "prober":
            probing.set()
            imported.wait(5)
sys.meta_path.insert(1, Slow())
import vllm
# A tool's own walk through the finders, without the import lock.
prober = threading.Thread(
    name="prober", target=sys.meta_path[0].find_spec, args=("vllm.envs", vllm.__path__, None))
prober.start()
probing.wait()
import vllm.envs
imported.set()
prober.join()
print(sys.patched)
"""
    done = python(code, [guard, image])
    assert done.stdout == "['vllm.envs']\n", done


def test_two_copies_put_one_finder(guard: Path, tmp_path: Path) -> None:
    second = guard_folder(tmp_path / "second")
    code = "import sys; print([type(f).__name__ for f in sys.meta_path].count('PatchFinder'))"
    assert python(code, [guard, second]).stdout == "1\n"


def test_an_older_layout_of_vllm(guard: Path, tmp_path: Path) -> None:
    image = vllm_folder(tmp_path / "old")
    done = python("import sys, vllm.config; print(sys.patched)", [guard, image])
    assert done.stdout == "['vllm.config']\n", done
