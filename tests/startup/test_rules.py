"""The rules of the start-up, each shown to hold, and each check shown to notice when it does not.

A check takes a folder whose `sitecustomize.py` is the guard's and raises AssertionError where the
rule is broken. `BREAKS` names for every check at least one edit of the file that breaks its rule.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.startup.sandbox import (
    SITECUSTOMIZE,
    environment,
    guard_folder,
    python,
    vllm_folder,
    write,
)

Check = Callable[[Path], None]
RAISING_ARM = "def arm(how):\n    raise RuntimeError('no arms')\n"


def guarded(root: Path, source: str, **more: str) -> Path:
    return guard_folder(root / "guard", source=source, **more)


# --- what may be imported, and when


def nothing_is_imported_early(root: Path, source: str) -> None:
    guard = guarded(root, source)
    show = "import sys; print(*sorted(sys.modules))"
    empty = write(root / "empty", {"sitecustomize.py": ""})
    bare = set(python(show, [empty]).stdout.split())
    with_guard = set(python(show, [guard]).stdout.split())
    assert bare, "the control run printed nothing"
    assert with_guard - bare == set()


def import_lock_is_free_while_arming(root: Path, source: str) -> None:
    # A thread is importing what arming needs, and needs the import lock to go on.
    arm = "import shared\n" + "import sys\ndef arm(how):\n    sys.armings = [how]\n"
    guard = guarded(root, source, arm=arm)
    shared = """
import sys, time
sys.started.set()
time.sleep(0.5)
import needs_the_lock
"""
    image = write(vllm_folder(root / "image"), {"shared.py": shared, "needs_the_lock.py": ""})
    code = """
import sys, threading
sys.started = threading.Event()
thread = threading.Thread(target=__import__, args=("shared",), daemon=True)
thread.start()
sys.started.wait()
import vllm.config
thread.join()
print(sys.armings)
"""
    try:
        done = python(code, [guard, image], timeout=10)
    except subprocess.TimeoutExpired:
        raise AssertionError("deadlock") from None
    assert done.stdout.strip() == "['sitecustomize']", done


def a_probe_arms_nothing(root: Path, source: str) -> None:
    guard, image = guarded(root, source), vllm_folder(root / "image")
    code = """
import sys, importlib.util, copy, pickle
spec = importlib.util.find_spec("vllm")
loader = copy.copy(spec.loader)
assert loader.get_filename("vllm") == spec.origin, loader
copy.deepcopy(spec.loader.path)
print(getattr(sys, "armings", None), "hisparse_guard" in sys.modules, spec.origin)
import vllm.config
print(sys.armings)
"""
    done = python(code, [guard, image])
    told = f"None False {image}/vllm/__init__.py\n['sitecustomize']\n"
    assert (done.stdout, done.stderr) == (told, ""), done


def arms_before_the_first_module_runs(root: Path, source: str) -> None:
    guard = guarded(root, source)
    image = write(
        root / "image",
        {
            "vllm/__init__.py": "import sys; print(getattr(sys, 'armings', None))",
            "vllm/sub.py": "",
            "vllmish.py": "import sys; print(getattr(sys, 'armings', None))",
        },
    )
    done = python("import vllmish, vllm, vllm.sub, sys; print(sys.armings)", [guard, image])
    assert done.stdout.splitlines() == ["None", "['sitecustomize']", "['sitecustomize']"], done


# --- beside other finders


def the_finder_behind_is_asked(root: Path, source: str) -> None:
    # A tool's finder right behind ours: it must be asked for vLLM, and for what comes after.
    guard, image = guarded(root, source), vllm_folder(root / "image")
    write(image, {"later.py": ""})
    code = """
import sys
class Behind:
    asked = []
    def find_spec(self, name, path=None, target=None):
        self.asked.append(name)
sys.meta_path.insert(1, Behind())
import vllm.config, later
print([n for n in Behind.asked if n in ("vllm", "vllm.config", "later")])
print(type(sys.meta_path[0]).__name__)
"""
    done = python(code, [guard, image])
    want = "['vllm', 'vllm.config', 'later']\nHisparseGuardTripwire\n"
    # vLLM's first module is asked for once by Python and never twice by us.
    assert done.stdout == want, done


def a_finder_that_asks_all_finders_ends(root: Path, source: str) -> None:
    guard, image = guarded(root, source), vllm_folder(root / "image")
    code = """
import sys
class Delegating:
    inside = False
    def find_spec(self, name, path=None, target=None):
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
sys.meta_path.insert(1, Delegating())
import vllm.config
print(sys.armings)
"""
    done = python(code, [guard, image])
    assert done.stdout.strip() == "['sitecustomize']", done.stderr[-500:]


def a_probe_in_another_thread_hides_nothing(root: Path, source: str) -> None:
    # While one thread merely probes for vLLM, another one imports it.
    guard, image = guarded(root, source), vllm_folder(root / "image")
    code = """
import sys, threading, importlib.util
probing, imported = threading.Event(), threading.Event()
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "vllm" and threading.current_thread().name == "prober":
            probing.set()
            imported.wait(5)
sys.meta_path.insert(1, Slow())
# importlib.util.find_spec without the import lock's hold, as a tool's own walk does it
prober = threading.Thread(
    name="prober", target=lambda: sys.meta_path[0].find_spec("vllm", None, None))
prober.start()
probing.wait()
import vllm
print(sys.armings)
imported.set()
prober.join()
"""
    done = python(code, [guard, image])
    assert done.stdout.strip() == "['sitecustomize']", done.stderr[-500:]


def module_and_spec_are_as_without(root: Path, source: str) -> None:
    guard, image = guarded(root, source), vllm_folder(root / "image")
    code = """
import importlib, importlib.resources, inspect, pickle, pkgutil, vllm, vllm.config
assert type(vllm.__loader__).__name__ == "SourceFileLoader", vllm.__loader__
assert vllm.__spec__.loader is vllm.__loader__
assert inspect.getsource(vllm.config) == "x = 1\\n"
assert pkgutil.get_data("vllm", "config.py") == b"x = 1\\n"
importlib.reload(vllm)
print("same")
"""
    done = python(code, [guard, image])
    assert done.stdout == "same\n", done


def a_lazily_loaded_vllm_is_armed(root: Path, source: str) -> None:
    guard, image = guarded(root, source), vllm_folder(root / "image")
    code = """
import sys, importlib.util
spec = importlib.util.find_spec("vllm.config") if False else importlib.util.find_spec("vllm")
spec.loader = importlib.util.LazyLoader(spec.loader)
module = importlib.util.module_from_spec(spec)
sys.modules["vllm"] = module
spec.loader.exec_module(module)
print(getattr(sys, "armings", None))
module.__path__
print(sys.armings)
"""
    done = python(code, [guard, image])
    assert done.stdout == "None\n['sitecustomize']\n", done


def a_loader_of_the_old_kind_is_left_alone(root: Path, source: str) -> None:
    # No exec_module: nothing to wrap; the next module of vLLM arms.
    guard, image = guarded(root, source), vllm_folder(root / "image")
    code = f"""
import sys, types, importlib.util, importlib.machinery, warnings
warnings.simplefilter("ignore")
class Old:
    def load_module(self, name):
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = [{str(image / "vllm")!r}]
        module.__loader__ = self
        return module
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "vllm":
            return importlib.machinery.ModuleSpec(name, Old(), is_package=True)
sys.meta_path.insert(1, Finder())
import vllm
print(getattr(sys, "armings", None), type(vllm.__loader__).__name__)
import vllm.config
print(sys.armings)
"""
    done = python(code, [guard, image])
    assert done.stdout == "None Old\n['sitecustomize']\n", done


def a_namespace_vllm_arms_with_its_first_module(root: Path, source: str) -> None:
    guard = guarded(root, source)
    image = write(root / "image", {"vllm/config.py": ""})
    code = """
import sys, vllm
print(getattr(sys, "armings", None))
import vllm.config
print(sys.armings)
"""
    done = python(code, [guard, image])
    assert done.stdout == "None\n['sitecustomize']\n", done


def a_missing_vllm_stays_missing(root: Path, source: str) -> None:
    guard = guarded(root, source)
    code = """
import importlib.util, sys
print(importlib.util.find_spec("vllm"))
try:
    import vllm.config
except ModuleNotFoundError as error:
    print(error, error.name, getattr(sys, "armings", None))
"""
    done = python(code, [guard])
    assert done.stdout == "None\nNo module named 'vllm' vllm None\n", done


# --- errors


def a_failure_to_arm_is_one_line(root: Path, source: str) -> None:
    guard, image = guarded(root, source, arm=RAISING_ARM), vllm_folder(root / "image")
    done = python("import vllm.config; print('served')", [guard, image])
    line = "hisparse-guard: not armed, this process runs unguarded: RuntimeError('no arms')\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "served\n", line)


def _with_stderr(guard: Path, image: Path, stderr: str) -> tuple[int, str]:
    # The shell opens standard error, so that the interpreter starts with it so.
    command = f'exec {sys.executable} -c "import vllm.config; print(1)" {stderr}'
    done = subprocess.run(
        ["sh", "-c", command],
        env=environment([guard, image]),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout


def stderr_may_be_closed(root: Path, source: str) -> None:
    guard, image = guarded(root, source, arm=RAISING_ARM), vllm_folder(root / "image")
    assert _with_stderr(guard, image, "2>&-") == (0, "1\n")


def stderr_may_be_full(root: Path, source: str) -> None:
    guard, image = guarded(root, source, arm=RAISING_ARM), vllm_folder(root / "image")
    assert _with_stderr(guard, image, "2>/dev/full") == (0, "1\n")


def stderr_may_be_a_full_pipe(root: Path, source: str) -> None:
    guard, image = guarded(root, source, arm=RAISING_ARM), vllm_folder(root / "image")
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        try:
            while True:
                os.write(writing, b"x" * 65536)
        except BlockingIOError as error:
            assert error.errno == errno.EAGAIN
        done = subprocess.run(
            [sys.executable, "-c", "import vllm.config; print(1)"],
            env=environment([guard, image]),
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=writing,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        os.close(reading)
        os.close(writing)
    assert (done.returncode, done.stdout) == (0, "1\n")


def stderr_may_be_anything(root: Path, source: str) -> None:
    guard, image = guarded(root, source, arm=RAISING_ARM), vllm_folder(root / "image")
    for stderr in ("None", "object()", "open('/dev/null')", "__import__('io').StringIO()"):
        done = python(
            f"import sys; sys.stderr = {stderr}; import vllm; "
            "sys.stderr = sys.__stderr__; print(1)",
            [guard, image],
        )
        assert (done.returncode, done.stdout) == (0, "1\n"), done


def exit_and_interrupt_pass(root: Path, source: str) -> None:
    for name, code in (("SystemExit(5)", 5), ("KeyboardInterrupt()", -2)):
        arm = f"def arm(how):\n    raise {name}\n"
        folder = root / re.sub(r"\W", "", name)
        guard = guarded(folder, source, arm=arm)
        image = vllm_folder(folder / "image")
        done = python("import vllm.config; print('served')", [guard, image])
        assert (done.returncode, done.stdout) == (code, ""), done


def who_catches_an_interrupt_is_guarded_all_the_same(root: Path, source: str) -> None:
    arm = """
import sys
calls = 0
def arm(how):
    global calls
    calls += 1
    if calls == 1:
        raise KeyboardInterrupt
    sys.armings = [how]
"""
    guard, image = guarded(root, source, arm=arm), vllm_folder(root / "image")
    code = """
import sys
try:
    import vllm
except KeyboardInterrupt:
    pass
import vllm
print(sys.armings)
"""
    done = python(code, [guard, image])
    assert done.stdout.strip() == "['sitecustomize']", done


def what_fails_once_is_tried_again(root: Path, source: str) -> None:
    arm = """
import sys
sys.tries = getattr(sys, "tries", 0) + 1
if sys.tries == 1:
    raise OSError("too many open files")
def arm(how):
    sys.armings = [how]
"""
    guard, image = guarded(root, source, arm=arm), vllm_folder(root / "image")
    done = python("import vllm, sys; print(getattr(sys, 'armings', None))", [guard, image])
    assert (done.stdout, done.stderr) == ("['sitecustomize']\n", ""), done


def vllms_own_error_passes(root: Path, source: str) -> None:
    guard = guarded(root, source)
    image = write(root / "image", {"vllm/__init__.py": "raise RuntimeError('its own')"})
    done = python("import vllm", [guard, image])
    alone = python("import vllm", [image])
    last = done.stderr.splitlines()[-1:]
    assert (done.returncode, last) == (1, alone.stderr.splitlines()[-1:]), done


def a_start_that_fails_still_chains_nothing_away(root: Path, source: str) -> None:
    # The guard's own start fails (a finder on the path raises): one line, and Python goes on.
    guard = guarded(root, source)
    code = f"""
import sys, site
class Raising:
    def find_spec(self, name, path=None, target=None):
        if path is not None and name == "sitecustomize":
            raise OSError("no such disk")
sys.meta_path.append(Raising())
sys.path[:0] = [{str(guard)!r}]
sys.path[:] = [p for p in sys.path if not p.endswith("packages")]
site.execsitecustomize()
print("goes on", sys.modules["sitecustomize"].__file__)
"""
    done = python(code, options=["-S"])
    assert done.stdout == f"goes on {guard}/sitecustomize.py\n", done
    assert done.stderr == "hisparse-guard: start failed: OSError('no such disk')\n", done


# --- once


def planted_once(root: Path, source: str) -> None:
    guard = guarded(root, source)
    second = guard_folder(root / "second", source=source)
    code = """
import sys
print([type(f).__name__ for f in sys.meta_path].count("HisparseGuardTripwire"))
"""
    done = python(code, [guard, second])
    assert done.stdout.strip() == "1", done


def off_leaves_no_hook(root: Path, source: str) -> None:
    guard, image = guarded(root, source), vllm_folder(root / "image")
    chained = write(root / "chained", {"sitecustomize.py": "import sys; sys.chained = 1"})
    for value in ("off", " OFF "):
        env = environment([guard, chained, image], HISPARSE_GUARD_MODE=value)
        code = """
import sys, vllm.config
print([type(f).__name__ for f in sys.meta_path if "uard" in type(f).__name__], sys.chained,
      getattr(sys, "armings", None), "hisparse_guard" in sys.modules)
"""
        done = python(code, env=env)
        assert done.stdout.strip() == "[] 1 None False", done


def path_and_finders_are_as_before(root: Path, source: str) -> None:
    guard = guarded(root, source)
    chained = write(root / "chained", {"sitecustomize.py": ""})
    code = "import sys; print(sys.path); print(sys.meta_path)"
    path, finders = python(code, [guard, chained]).stdout.splitlines()
    path_alone, finders_alone = python(code, [chained]).stdout.splitlines()
    assert path.replace(f"'{guard}', ", "") == path_alone
    assert re.sub(r"<\w+\.HisparseGuardTripwire[^>]*>, ", "", finders).count("object") == (
        finders_alone.count("object")
    )


IN_FIND_SPEC = 'if hasattr(spec.loader, "exec_module"):'
OS_WRITE = 'os.write(sys.stderr.fileno(), f"hisparse-guard: {text}\\n".encode("utf-8", "replace"))'

# check: [(old, new), ...], each an edit of sitecustomize.py that breaks the rule.
BREAKS: dict[Callable[[Path, str], None], list[tuple[str, str]]] = {
    nothing_is_imported_early: [
        ("import sys\nfrom", "import sys\nimport logging\nfrom"),
        ("import sys\nfrom", "import sys\nimport inspect\nfrom"),
        ("import sys\nfrom", "import sys\nimport hisparse_guard\nfrom"),
        ("import sys\nfrom", "import sys\nimport importlib.metadata\nfrom"),
    ],
    import_lock_is_free_while_arming: [
        (IN_FIND_SPEC, f"import hisparse_guard.runtime.arm\n                    {IN_FIND_SPEC}"),
    ],
    a_probe_arms_nothing: [
        (
            IN_FIND_SPEC,
            "from hisparse_guard.runtime.arm import arm; arm('x')\n"
            f"                    {IN_FIND_SPEC}",
        ),
        ('object.__getattribute__(self, "_loader")', "self._loader"),
    ],
    arms_before_the_first_module_runs: [
        ('not name.startswith("vllm.")', 'not name.startswith("vllm")'),
        ('(name != "vllm" and', '(name == "vllm" or'),
    ],
    the_finder_behind_is_asked: [
        (
            "        loader.exec_module(module)",
            "        sys.meta_path.remove(tripwire)\n        loader.exec_module(module)",
        ),
        ("self.asking.add(question)", "self.asking.add(question); sys.meta_path.remove(self)"),
    ],
    a_finder_that_asks_all_finders_ends: [("if question in self.asking:", "if False:")],
    a_probe_in_another_thread_hides_nothing: [("(name, get_ident())", "name")],
    module_and_spec_are_as_without: [("setattr(holder, name, loader)", "pass")],
    a_lazily_loaded_vllm_is_armed: [
        ("spec.loader = _ArmingLoader(spec.loader, self)", "pass"),
    ],
    a_loader_of_the_old_kind_is_left_alone: [(IN_FIND_SPEC, "if True:")],
    a_namespace_vllm_arms_with_its_first_module: [(IN_FIND_SPEC, "if True:")],
    a_missing_vllm_stays_missing: [
        (
            "            return None\n        finally",
            "            raise KeyError(name)\n        finally",
        ),
    ],
    a_failure_to_arm_is_one_line: [
        (
            '        except Exception as error:\n            _say(f"not armed',
            '        except OSError as error:\n            _say(f"not armed',
        ),
        (OS_WRITE, "pass"),
    ],
    stderr_may_be_closed: [
        (
            "    except Exception:\n        pass\n\n\nclass",
            "    except OSError:\n        pass\n\n\nclass",
        )
    ],
    stderr_may_be_full: [
        (
            "    except Exception:\n        pass\n\n\nclass",
            "    except AttributeError:\n        pass\n\n\nclass",
        ),
        (OS_WRITE, "sys.stderr.write(text + '\\n')"),
    ],
    stderr_may_be_a_full_pipe: [
        (
            "    except Exception:\n        pass\n\n\nclass",
            "    except AttributeError:\n        pass\n\n\nclass",
        ),
    ],
    stderr_may_be_anything: [
        (
            "    except Exception:\n        pass\n\n\nclass",
            "    except OSError:\n        pass\n\n\nclass",
        )
    ],
    exit_and_interrupt_pass: [
        ("            tripwire.armed = False\n            raise", "            pass"),
    ],
    who_catches_an_interrupt_is_guarded_all_the_same: [("tripwire.armed = False", "pass")],
    what_fails_once_is_tried_again: [
        ("                except Exception:\n", "                except KeyError:\n")
    ],
    vllms_own_error_passes: [
        (
            "        loader.exec_module(module)",
            "        try:\n            loader.exec_module(module)\n"
            "        except Exception:\n            pass",
        ),
    ],
    a_start_that_fails_still_chains_nothing_away: [
        (
            '    except Exception as error:\n        _say(f"start',
            '    except AttributeError as error:\n        _say(f"start',
        ),
    ],
    planted_once: [("if not off and not any(", "if not off and not all(")],
    off_leaves_no_hook: [("if not off and", "if"), (".strip().lower()", "")],
    path_and_finders_are_as_before: [
        ("                sys.meta_path.remove(once)", "                pass"),
        ("    own = [", "    sys.path.insert(0, '/x')\n    own = ["),
    ],
}


@pytest.mark.parametrize("check", BREAKS, ids=lambda f: f.__name__)
def test_rule(check: Callable[[Path, str], None], tmp_path: Path) -> None:
    check(tmp_path, SITECUSTOMIZE)


@pytest.mark.parametrize(
    ("check", "edit"),
    [
        pytest.param(check, edit, id=f"{check.__name__}-{number}")
        for check, edits in BREAKS.items()
        for number, edit in enumerate(edits)
    ],
)
def test_check_notices(
    check: Callable[[Path, str], None], edit: tuple[str, str], tmp_path: Path
) -> None:
    assert edit[0] in SITECUSTOMIZE, "the edit has nothing to bite on"
    with pytest.raises(AssertionError):
        check(tmp_path, SITECUSTOMIZE.replace(*edit))
