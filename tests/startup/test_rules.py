"""The rules of the start-up, each shown to hold, and each check shown to notice when it does not.

A check takes a folder and the files by which the guard gets into a process, and raises
AssertionError where the rule is broken. `BREAKS` names for every check at least one edit of one of
these files that breaks its rule.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.startup.sandbox import (
    START,
    WATCHDOG,
    environment,
    guard_folder,
    python,
    vllm_folder,
    write,
)

Source = Mapping[str, str]
SECOND = "hisparse_guard/runtime/start.py"
Check = Callable[[Path, Source], None]
RAISING_ARM = "def arm(how):\n    raise RuntimeError('no arms')\n"


def guarded(root: Path, source: Source, **more: str) -> Path:
    return guard_folder(root / "guard", source=source, **more)


def alone(code: str, path: Sequence[Path], **more: float) -> subprocess.CompletedProcess[str]:
    """As `python`, without site-packages, where another `sitecustomize` may lie behind ours."""
    start = "import site; site.execsitecustomize()\n"
    return python(start + code, path, options=["-S"], **more)


# --- what may be imported, and when


def nothing_is_imported_early(root: Path, source: Source) -> None:
    guard = guarded(root, source)
    show = "import sys; print(*sorted(sys.modules))"
    empty = write(root / "empty", {"sitecustomize.py": ""})
    bare = set(python(show, [empty]).stdout.split())
    with_guard = set(python(show, [guard]).stdout.split())
    assert bare, "the control run printed nothing"
    assert with_guard - bare == set()


def the_shadowed_one_loads_nothing_else(root: Path, source: Source) -> None:
    guard = guarded(root, source)
    behind = write(root / "behind", {"sitecustomize.py": "import sys; sys.ran = 1"})
    show = "import sys; print(sys.ran, *sorted(sys.modules))"
    bare = set(python(show, [behind]).stdout.split())
    with_guard = set(python(show, [guard, behind]).stdout.split())
    assert bare, "the control run printed nothing"
    assert with_guard - bare == set()


def finding_vllm_loads_nothing(root: Path, source: Source) -> None:
    # Beside a finder that imports what it is asked for, as ddtrace's did.
    guard, image = guarded(root, source), vllm_folder(root / "image")
    code = f"""{WATCHDOG}
import sys
sys.meta_path.insert(1, Watchdog())
before = set(sys.modules)
found = importlib.util.find_spec("vllm").name
print(found, sorted(set(sys.modules) - before))
"""
    done = alone(code, [guard, image])
    assert (done.stdout, done.stderr) == ("vllm []\n", ""), done


def import_lock_is_free_while_arming(root: Path, source: Source) -> None:
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


def finding_vllm_waits_for_no_module(root: Path, source: Source) -> None:
    # A thread is importing the guard's own package, as vLLM's plugin loading does, and needs the
    # import lock to go on.
    guard, image = guarded(root, source), vllm_folder(root / "image")
    write(
        guard,
        {
            "hisparse_guard/runtime/__init__.py": """
import sys, time
sys.started.set()
time.sleep(0.5)
import needs_the_lock
"""
        },
    )
    write(image, {"needs_the_lock.py": ""})
    code = """
import sys, threading, importlib.util
sys.started = threading.Event()
thread = threading.Thread(target=__import__, args=("hisparse_guard.runtime",), daemon=True)
thread.start()
sys.started.wait()
print(importlib.util.find_spec("vllm").name)
thread.join()
"""
    try:
        done = alone(code, [guard, image], timeout=10)
    except subprocess.TimeoutExpired:
        raise AssertionError("deadlock") from None
    assert done.stdout.strip() == "vllm", done


def a_probe_arms_nothing(root: Path, source: Source) -> None:
    guard, image = guarded(root, source), vllm_folder(root / "image")
    code = """
import sys, importlib.util, copy, pickle
spec = importlib.util.find_spec("vllm")
for loader in (copy.copy(spec.loader), pickle.loads(pickle.dumps(spec.loader))):
    assert loader.get_filename("vllm") == spec.origin, loader
copy.deepcopy(spec.loader.path)
print(getattr(sys, "armings", None), "hisparse_guard" in sys.modules, spec.origin)
import vllm.config
print(sys.armings)
"""
    done = python(code, [guard, image])
    told = f"None False {image}/vllm/__init__.py\n['sitecustomize']\n"
    assert (done.stdout, done.stderr) == (told, ""), done


def arms_before_the_first_module_runs(root: Path, source: Source) -> None:
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


def the_finder_behind_is_asked(root: Path, source: Source) -> None:
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


def a_finder_that_asks_all_finders_ends(root: Path, source: Source) -> None:
    guard, image = guarded(root, source), vllm_folder(root / "image")
    code = """
import sys
class Delegating:
    asked = 0
    def find_spec(self, name, path=None, target=None):
        Delegating.asked += 1
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
sys.meta_path.insert(1, Delegating())
import vllm.config
print(sys.armings, Delegating.asked)
"""
    # Once for each of vllm, vllm.config and the guard's three.
    done = python(code, [guard, image])
    assert done.stdout.strip() == "['sitecustomize'] 5", done


def a_probe_in_another_thread_hides_nothing(root: Path, source: Source) -> None:
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


def module_and_spec_are_as_without(root: Path, source: Source) -> None:
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


def a_lazily_loaded_vllm_is_armed(root: Path, source: Source) -> None:
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


def a_loader_of_the_old_kind_is_left_alone(root: Path, source: Source) -> None:
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


def a_namespace_vllm_arms_with_its_first_module(root: Path, source: Source) -> None:
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


def a_missing_vllm_stays_missing(root: Path, source: Source) -> None:
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


def a_failure_to_arm_is_one_line(root: Path, source: Source) -> None:
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


def stderr_may_be_closed(root: Path, source: Source) -> None:
    guard, image = guarded(root, source, arm=RAISING_ARM), vllm_folder(root / "image")
    assert _with_stderr(guard, image, "2>&-") == (0, "1\n")


def stderr_may_be_full(root: Path, source: Source) -> None:
    guard, image = guarded(root, source, arm=RAISING_ARM), vllm_folder(root / "image")
    assert _with_stderr(guard, image, "2>/dev/full") == (0, "1\n")


def stderr_may_be_a_full_pipe(root: Path, source: Source) -> None:
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


def stderr_may_be_anything(root: Path, source: Source) -> None:
    guard, image = guarded(root, source, arm=RAISING_ARM), vllm_folder(root / "image")
    for stderr in ("None", "object()", "open('/dev/null')", "__import__('io').StringIO()"):
        done = python(
            f"import sys; sys.stderr = {stderr}; import vllm; "
            "sys.stderr = sys.__stderr__; print(1)",
            [guard, image],
        )
        assert (done.returncode, done.stdout) == (0, "1\n"), done


def exit_and_interrupt_pass(root: Path, source: Source) -> None:
    for name, code in (("SystemExit(5)", 5), ("KeyboardInterrupt()", -2)):
        arm = f"def arm(how):\n    raise {name}\n"
        folder = root / re.sub(r"\W", "", name)
        guard = guarded(folder, source, arm=arm)
        image = vllm_folder(folder / "image")
        done = python("import vllm.config; print('served')", [guard, image])
        assert (done.returncode, done.stdout) == (code, ""), done


def fails_once(source: Source, error: str) -> Source:
    text = "import sys\nsys.reads = getattr(sys, 'reads', 0) + 1\nif sys.reads == 1:\n"
    return {**source, SECOND: f"{text}    raise {error}\n{source[SECOND]}"}


def who_catches_an_interrupt_is_guarded_all_the_same(root: Path, source: Source) -> None:
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
    guard = guarded(root / "read", fails_once(source, "KeyboardInterrupt"))
    done = alone(code, [guard, image])
    assert (done.stdout, done.stderr) == ("['sitecustomize']\n", ""), done


def what_fails_once_is_tried_again(root: Path, source: Source) -> None:
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


def a_damaged_guard_is_one_line(root: Path, source: Source) -> None:
    image = vllm_folder(root / "image")
    behind = write(root / "behind", {"sitecustomize.py": "import sys; sys.ran = 1"})
    line = "hisparse-guard: no whole copy of it on PYTHONPATH"
    second = source[SECOND].splitlines(keepends=True)
    starts = [n for n, text in enumerate(second) if text.startswith(("def ", "class ", "find_"))]
    texts = [None, "", "not python", *("".join(second[:n]) for n in starts)]
    for number, text in enumerate(texts):
        guard = guarded(root / str(number), source)
        if text is None:
            (guard / SECOND).unlink()
        else:
            (guard / SECOND).write_text(text)
        for path in ([guard, image], [guard, behind, image]):
            done = alone("import vllm.config; print('served')", path)
            assert done.stdout == "served\n", done
            assert [part.startswith(line) for part in done.stderr.splitlines()] == [True], done
        done = alone("print('served')", [guard, image])
        assert (done.stdout, done.stderr) == ("served\n", ""), done


def run_without_a_file(root: Path, source: Source) -> None:
    # By a chainer that executes the text.
    guard, image = guarded(root, source), vllm_folder(root / "image")
    code = f"""
exec(open({str(guard / "sitecustomize.py")!r}).read(), {{"__name__": "sitecustomize"}})
import vllm.config
print("served")
"""
    done = python(code, [guard, image], options=["-S"])
    assert done.stdout == "served\n", done
    assert done.stderr.startswith("hisparse-guard: start failed: NameError("), done
    assert done.stderr.count("\n") == 1, done


def vllms_own_error_passes(root: Path, source: Source) -> None:
    guard = guarded(root, source)
    image = write(root / "image", {"vllm/__init__.py": "raise RuntimeError('its own')"})
    done = python("import vllm", [guard, image])
    alone = python("import vllm", [image])
    last = done.stderr.splitlines()[-1:]
    assert (done.returncode, last) == (1, alone.stderr.splitlines()[-1:]), done


def a_start_that_fails_still_chains_nothing_away(root: Path, source: Source) -> None:
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


def planted_once(root: Path, source: Source) -> None:
    guard = guarded(root, source)
    second = guard_folder(root / "second", source=source)
    code = """
import sys
print([type(f).__name__ for f in sys.meta_path].count("HisparseGuardTripwire"))
"""
    done = python(code, [guard, second])
    assert done.stdout.strip() == "1", done


def off_leaves_no_hook(root: Path, source: Source) -> None:
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


def path_and_finders_are_as_before(root: Path, source: Source) -> None:
    guard = guarded(root, source)
    chained = write(root / "chained", {"sitecustomize.py": ""})
    code = "import sys; print(sys.path); print(sys.meta_path)"
    path, finders = python(code, [guard, chained]).stdout.splitlines()
    path_alone, finders_alone = python(code, [chained]).stdout.splitlines()
    assert path.replace(f"'{guard}', ", "") == path_alone
    assert re.sub(r"<\w+\.HisparseGuardTripwire[^>]*>, ", "", finders).count("object") == (
        finders_alone.count("object")
    )


# Inside `find_spec`, before the loader is wrapped; and as the file begins.
IN_FIND_SPEC = '        if spec is not None and hasattr(spec.loader, "exec_module"):'
BEGIN = "import os\nimport sys\nfrom _frozen"
SAYS = (
    '        os.write(sys.stderr.fileno(), f"hisparse-guard: {text}\\n".encode("utf-8", "replace"))'
)
SAY_FAILS = f"{SAYS}\n    except Exception:\n"
EXECUTES = "        self._loader.exec_module(module)"

# check: [(old, new), ...], each an edit of the one file that has `old`; it breaks the rule.
BREAKS: dict[Check, list[tuple[str, str]]] = {
    nothing_is_imported_early: [
        (BEGIN, f"import logging\n{BEGIN}"),
        (BEGIN, f"import inspect\n{BEGIN}"),
        (BEGIN, f"import hisparse_guard\n{BEGIN}"),
        (BEGIN, f"import importlib.metadata\n{BEGIN}"),
    ],
    the_shadowed_one_loads_nothing_else: [
        (BEGIN, f"import logging\n{BEGIN}"),
        ("    # Python itself does", "    import hisparse_guard\n    # Python itself does"),
        (
            "import os\nimport sys\nfrom _thread",
            "import typing\nimport os\nimport sys\nfrom _thread",
        ),
    ],
    finding_vllm_loads_nothing: [
        ("TYPE_CHECKING = False", "import typing\nTYPE_CHECKING = False"),
        ("TYPE_CHECKING = False", "TYPE_CHECKING = True"),
        (
            "import os\nimport sys\nfrom _thread",
            "import typing\nimport os\nimport sys\nfrom _thread",
        ),
        (
            'PathFinder.find_spec("hisparse_guard.runtime.start",',
            '_find_spec("hisparse_guard.runtime.start",',
        ),
    ],
    import_lock_is_free_while_arming: [
        (IN_FIND_SPEC, f"        import hisparse_guard.runtime.arm\n{IN_FIND_SPEC}"),
    ],
    finding_vllm_waits_for_no_module: [
        (
            "            exec(spec.loader.get_code(spec.name), _names)  # type: ignore",
            "            import hisparse_guard.runtime",
        ),
    ],
    a_probe_arms_nothing: [
        (
            IN_FIND_SPEC,
            f"        from hisparse_guard.runtime.arm import arm; arm('x')\n{IN_FIND_SPEC}",
        ),
        (
            "return self._loader.__reduce_ex__(0)",
            "return object.__reduce_ex__(self, protocol)",
        ),
    ],
    arms_before_the_first_module_runs: [
        ('if name[:5] in ("vllm", "vllm."):', 'if name[:4] == "vllm":'),
        ('if name[:5] in ("vllm", "vllm."):', 'if name[:5] == "vllm.":'),
    ],
    the_finder_behind_is_asked: [
        (EXECUTES, f"        sys.meta_path.pop(0)\n{EXECUTES}"),
        ("    _asking.add(question)", "    _asking.add(question); sys.meta_path.pop(0)"),
    ],
    a_finder_that_asks_all_finders_ends: [("if question in _asking:", "if False:")],
    a_probe_in_another_thread_hides_nothing: [("(name, get_ident())", '(name, "")')],
    module_and_spec_are_as_without: [("setattr(holder, name, self._loader)", "pass")],
    a_lazily_loaded_vllm_is_armed: [("spec.loader = _ArmingLoader(spec.loader)", "pass")],
    a_loader_of_the_old_kind_is_left_alone: [(IN_FIND_SPEC, "        if spec is not None:")],
    a_namespace_vllm_arms_with_its_first_module: [(IN_FIND_SPEC, "        if spec is not None:")],
    a_missing_vllm_stays_missing: [
        (
            "return None if armed else _watched(name, path, target)\n    except Exception:",
            "raise KeyError(name)\n    except OSError:",
        ),
    ],
    a_failure_to_arm_is_one_line: [
        (
            "            except Exception as error:\n                say",
            "            except OSError as error:\n                say",
        ),
        (SAYS, "        pass"),
    ],
    stderr_may_be_closed: [(SAY_FAILS, SAY_FAILS.replace("Exception", "OSError"))],
    stderr_may_be_full: [
        (SAY_FAILS, SAY_FAILS.replace("Exception", "AttributeError")),
        (SAYS, "        print(text, file=sys.stderr)"),
    ],
    stderr_may_be_a_full_pipe: [(SAY_FAILS, SAY_FAILS.replace("Exception", "AttributeError"))],
    stderr_may_be_anything: [(SAY_FAILS, SAY_FAILS.replace("Exception", "OSError"))],
    exit_and_interrupt_pass: [
        ("                armed = False\n                raise", "            pass")
    ],
    who_catches_an_interrupt_is_guarded_all_the_same: [
        ("                armed = False\n                raise", "                raise"),
    ],
    what_fails_once_is_tried_again: [
        (
            "                except Exception:\n                    # A passing",
            "                except KeyError:\n                    # A passing",
        ),
    ],
    a_damaged_guard_is_one_line: [
        (
            "        except Exception as error:\n            _names",
            "        except KeyError as error:\n            _names",
        ),
        (
            "            _names.update(find_spec=_nothing, chain=_nothing)",
            "            _names[what] = _nothing",
        ),
        ("            _names[what]\n", ""),
        ("def _find_vllm(", "chain = print\n\n\ndef find_spec("),
        ("os.write(sys.stderr.fileno(), _DAMAGED % error)", "pass"),
    ],
    run_without_a_file: [
        ("except Exception as _error:\n", "except KeyError as _error:\n"),
        ('_here = ""\n', ""),
    ],
    vllms_own_error_passes: [
        (
            EXECUTES,
            "        try:\n            self._loader.exec_module(module)\n"
            "        except Exception:\n            pass",
        ),
    ],
    a_start_that_fails_still_chains_nothing_away: [
        (
            "    except Exception as error:\n        say",
            "    except AttributeError as error:\n        say",
        ),
        ("except Exception as _error:\n", "except KeyError as _error:\n"),
    ],
    planted_once: [("    if not _seen and os.environ", "    if os.environ")],
    off_leaves_no_hook: [
        (' and os.environ.get("HISPARSE_GUARD_MODE", "").strip().lower() != "off"', ""),
        (".strip().lower()", ""),
    ],
    path_and_finders_are_as_before: [
        ("            sys.meta_path.remove(once)", "            pass"),
        ("    own = [", "    sys.path.insert(0, '/x')\n    own = ["),
    ],
}


@pytest.mark.parametrize("check", BREAKS, ids=lambda f: f.__name__)
def test_rule(check: Check, tmp_path: Path) -> None:
    check(tmp_path, START)


@pytest.mark.parametrize(
    ("check", "edit"),
    [
        pytest.param(check, edit, id=f"{check.__name__}-{number}")
        for check, edits in BREAKS.items()
        for number, edit in enumerate(edits)
    ],
)
def test_check_notices(check: Check, edit: tuple[str, str], tmp_path: Path) -> None:
    (file,) = (name for name, text in START.items() if edit[0] in text)
    with pytest.raises(AssertionError):
        check(tmp_path, {**START, file: START[file].replace(*edit)})
