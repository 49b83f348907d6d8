"""Whatever fails inside the guard, or in what it stands on, the program behaves as without it."""

from __future__ import annotations

import inspect
import json
import os
import stat
import subprocess
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.faults.batch import STANDARD, guard_lines, laid_out, other_lines, run, trouble
from tests.faults.shapes import Shape
from tests.faults.test_shapes import either
from tests.startup.sandbox import ROOT, environment
from tests.support.environments import BASE_PYTHON, wrapt_path

# One process runs them all: what they are compared with is what costs.
pytestmark = pytest.mark.xdist_group("inside")

MODULES = sorted(
    f"hisparse_guard.runtime.{file.stem}"
    for file in (ROOT / "hisparse_guard" / "runtime").glob("*.py")
    if file.stem != "__init__"
)
PASSING = ("KeyboardInterrupt", "SystemExit")
SWALLOWED = ("RuntimeError", "MemoryError", "RecursionError", "OSError", "KeyError")
Result = dict[str, Any]


class Program:
    """The program of `program.py` on the plain package, under HiSparse."""

    def __init__(self, root: Path) -> None:
        self.path = str(laid_out(Shape("plain"), root / "plain"))
        self.unguarded = self.run([{}], guarded=False)[0]
        self.guarded = self.run([{}])[0]

    def run(self, changes: Sequence[dict[str, Any]], **how: Any) -> list[Result]:
        cases = [
            {
                "main": "",
                "path": [self.path],
                **change,
                "name": str(number),
                "env": {"SHAPE_HISPARSE": "1", **change.get("env", {})},
            }
            for number, change in enumerate(changes)
        ]
        results = run(cases, how.pop("guarded", True), **how)
        return [results[case["name"]] for case in cases]

    def as_guarded(self, result: Result, most: int = 1) -> None:
        """The same answers, and at most so many lines of trouble."""
        self._as(result, self.guarded, most)
        assert result["stdout"] == self.guarded["stdout"], result

    def as_unguarded(self, result: Result) -> None:
        """As if there were no guard, and one line that says so."""
        self._as(result, self.unguarded, 1)
        assert result["stdout"] == self.unguarded["stdout"], result
        assert len(guard_lines(result["stderr"])) == 1, result["stderr"]

    def as_either(self, result: Result) -> None:
        """As with the guard but for the choice of backend."""
        self._as(result, self.unguarded, 1)
        assert either(result["stdout"]) == either(self.unguarded["stdout"]), result

    def _as(self, result: Result, other: Result, most: int) -> None:
        others = [x for x in other_lines(result["stderr"]) if not x.startswith("fault: ")]
        assert (result["exit"], others) == (other["exit"], other_lines(other["stderr"])), result
        found = trouble(result["stderr"])
        assert len(found) <= most, found


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    made = Program(tmp_path_factory.mktemp("inside"))
    # Else the comparisons prove nothing.
    assert "backend='trtllm'" in made.guarded["stdout"]
    assert "backend='mnnvl'" in made.unguarded["stdout"] and not made.unguarded["stderr"]
    return made


# --- one exception, anywhere, once

# Fewer lines of the guard than this are run by the program; a fault behind them never comes.
MOST_LINES = 20_000


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "at": st.one_of(st.integers(1, 400), st.integers(1, MOST_LINES)),
                "error": st.sampled_from((*SWALLOWED, *PASSING)),
            }
        ),
        min_size=1,
        max_size=60,
    ),
    st.booleans(),
)
# Every line from vLLM's first module on to the hooks.
@example([{"at": at, "error": "RuntimeError"} for at in range(1, 121)], False)
@example([{"at": at, "error": "KeyboardInterrupt"} for at in range(1, 121)], False)
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_one_exception_anywhere(
    program: Program,
    tmp_path_factory: pytest.TempPathFactory,
    faults: list[dict[str, Any]],
    evidence: bool,
) -> None:
    folder = {"HISPARSE_GUARD_EVIDENCE_DIR": str(tmp_path_factory.mktemp("evidence"))}
    cases = [{"fault": fault, "env": folder if evidence else {}} for fault in faults]
    for fault, result in zip(faults, program.run(cases), strict=True):
        if "fault: " in result["stderr"] and fault["error"] in PASSING:
            passed = [x for x in other_lines(result["stderr"]) if not x.startswith("fault: ")]
            told = "\n".join([result["stdout"], *passed])
            assert fault["error"] in told or result["exit"] != 0, ("swallowed", result)
        else:
            # All the answers: one rank's fault never makes it answer otherwise than another.
            program.as_guarded(result)


# --- one function that always fails


# What makes the wrappers and what catches the faults of others in a body of its own; `is_none` is
# one comparison.
CATCHING = {
    *("get_workspace", "told", "_protected", "_refuse", "shown", "backend_of", "is_none"),
    *("_group", "_serves_none"),
}


def functions() -> list[tuple[str, str]]:
    """Every function of the guard but the bodies of the wrappers and what catches their faults."""
    from tests.faults.program import BODIES

    found = []
    for module in MODULES:
        for owner in [m := import_module(module), *vars(m).values()]:
            if owner is not m and not (isinstance(owner, type) and owner.__module__ == module):
                continue
            prefix = "" if owner is m else f"{owner.__name__}."
            found += [
                (module, prefix + name)
                for name, value in vars(owner).items()
                if inspect.isfunction(value)
                and value.__module__ == module
                and name not in BODIES | CATCHING
                and not name.startswith("__")
            ]
    return found


ALWAYS = """
import functools, importlib, sys
for name in {modules}:
    importlib.import_module(name)
module, function = {function}
*owner, name = function.split(".")
owner = getattr(sys.modules[module], owner[0]) if owner else sys.modules[module]
old = vars(owner)[name]
def fails(*args, **kwargs):
    raise {error}("always")
fails.__name__ = name
if old.__code__.co_name == "protected":
    # What `told` protects, not what it made of it.
    old.__closure__[0].cell_contents = fails
else:
    setattr(owner, name, fails)
for module in [m for n, m in sys.modules.items() if n.startswith("hisparse_guard.")]:
    for key, value in list(vars(module).items()):
        if value is old and value is not getattr(owner, name):
            setattr(module, key, fails)
"""


def test_a_function_that_always_fails(program: Program, tmp_path: Path) -> None:
    found = functions()
    assert len(found) > 40, found
    env = {"HISPARSE_GUARD_EVIDENCE_DIR": str(tmp_path / "evidence")}
    cases = [
        {"env": env, "before": ALWAYS.format(modules=MODULES, function=f, error="MemoryError")}
        for f in found
    ]
    failed = {}
    for function, result in zip(found, program.run(cases), strict=True):
        try:
            program.as_either(result)
        except AssertionError as error:
            failed[function] = str(error)
    assert failed == {}


# --- what the guard stands on

NOT_THERE = """
import sys
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            raise {error}
sys.meta_path.insert(1, Broken())
"""
ERRORS = ("ImportError('gone')", "SyntaxError('cut')", "MemoryError()", "RecursionError('deep')")


@pytest.mark.parametrize("error", ERRORS)
def test_a_module_of_the_guard_that_cannot_be_imported(program: Program, error: str) -> None:
    cases = [{"before": NOT_THERE.format(name=name, error=error)} for name in MODULES]
    for result in program.run(cases, preload=STANDARD):
        program.as_unguarded(result)
        assert "not armed, this process runs unguarded" in result["stderr"], result


def test_a_full_device_for_the_line_that_says_so(program: Program) -> None:
    code = "import sys; sys.modules['wrapt'] = None; import vllm.fused; print('served')"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [BASE_PYTHON, "-c", code],
            env=environment([ROOT, Path(program.path)]),
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, "served\ndestroyed True\n")


@pytest.mark.parametrize("error", PASSING)
def test_an_exit_while_arming_passes_and_the_next_import_arms(program: Program, error: str) -> None:
    before = (
        NOT_THERE.format(name="hisparse_guard.runtime.facts", error=error)
        + f"""
try:
    import vllm
except {error}:
    print("passed")
sys.meta_path.pop(1)
"""
    )
    (result,) = program.run([{"before": before}], preload=STANDARD)
    assert result["stdout"] == "passed\n" + program.guarded["stdout"], result


WRAPT = {
    "missing": "import sys; sys.modules['wrapt'] = None",
    "empty": "import sys, types; sys.modules['wrapt'] = types.ModuleType('wrapt')",
    "raising": NOT_THERE.format(name="wrapt", error="RuntimeError('no wrapt for you')"),
    "cut": "import sys; sys.path.insert(0, {cut!r})",
    "other-things": """
import sys, types
sys.modules["wrapt"] = types.SimpleNamespace(
    FunctionWrapper=type("F", (), {{}}),
    ObjectProxy=type("O", (), {{}}),
    register_post_import_hook=lambda *a: 1 / 0,
)
""",
}


@pytest.mark.parametrize("state", WRAPT)
def test_wrapt_that_is_not_as_it_should_be(program: Program, state: str, tmp_path: Path) -> None:
    (tmp_path / "wrapt").mkdir()
    (tmp_path / "wrapt" / "__init__.py").write_text("def broken(:\n")
    before = WRAPT[state].format(cut=str(tmp_path))
    (result,) = program.run([{"before": before}], preload=STANDARD)
    program.as_unguarded(result)
    assert "bundle" in result["stderr"], "nothing says what to do"


@pytest.mark.parametrize("version", ["1.14.2", "1.17.3"])
def test_wrapt_of_another_major_version(program: Program, version: str) -> None:
    before = f"import sys; sys.path.insert(0, {str(wrapt_path(version))!r})"
    check = f"import wrapt, atexit; assert wrapt.__version__ == {version!r}"
    case = {"before": f"{before}\n{check}"}
    (result,) = program.run([case], preload=STANDARD)
    program.as_guarded(result, most=0)


LOGGING = {
    "a-handler-that-raises": """
class Raising(logging.Handler):
    def emit(self, record): raise OSError("no")
vllm.addHandler(Raising())
""",
    "a-filter-that-raises": "vllm.handlers[0].addFilter(lambda r: 1 / 0)",
    "a-filter-of-the-logger-that-raises": "guard.addFilter(lambda r: 1 / 0)",
    "a-level-that-is-none": "guard.setLevel('WARNING'); guard.level = None",
    "a-name-that-is-no-logger": "logging.Logger.manager.loggerDict['vllm.hisparse_guard'] = 7",
    "a-logger-class-that-raises": """
del logging.Logger.manager.loggerDict["vllm.hisparse_guard"]
class Mine(logging.Logger):
    def __init__(self, name): raise ValueError(name)
logging.Logger.manager.loggerClass = Mine
""",
    "handlers-that-are-none": "guard.propagate = False; guard.handlers = None",
    "disabled": "logging.disable(logging.CRITICAL)",
    "shut-down": "logging.shutdown()",
    "record-factory-that-raises": "logging.setLogRecordFactory(lambda *a, **k: 1 / 0)",
    "json-formatter-that-exits-not": """
class Mine(logging.Formatter):
    def format(self, record): return {}[record]
vllm.handlers[0].setFormatter(Mine()); logging.raiseExceptions = False
""",
    "a-stream-that-is-none": "vllm.handlers[0].stream = None; logging.raiseExceptions = False",
    "a-closed-stream": """
import io
vllm.handlers[0].stream = io.StringIO(); vllm.handlers[0].stream.close()
logging.raiseExceptions = False
""",
    "no-handlers": "vllm.handlers.clear()",
    "endless": """
class Again(logging.Handler):
    def emit(self, record): guard.error("again")
vllm.addHandler(Again()); vllm.handlers.pop(0); logging.raiseExceptions = False
""",
}


def test_logging_that_is_misconfigured(program: Program) -> None:
    ready = """
import logging, vllm as _
vllm, guard = logging.getLogger("vllm"), logging.getLogger("vllm.hisparse_guard")
"""
    results = program.run([{"before": ready + change} for change in LOGGING.values()])
    for name, result in zip(LOGGING, results, strict=True):
        assert result["stdout"] == program.guarded["stdout"], (name, result)
        assert result["exit"] == 0, (name, result)
        if name != "a-level-that-is-none":
            assert other_lines(result["stderr"]) == [], (name, result)


# --- the evidence folder


def _file(path: Path) -> None:
    path.write_text("")


def _dangling(path: Path) -> None:
    path.symlink_to(path / "nowhere")


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _anyones(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def _nothing(path: Path) -> None:
    pass


# What is there before; what the setting says, where it is not that folder.
FOLDERS: dict[str, tuple[Callable[[Path], Any], str | None]] = {
    "file": (_file, None),
    "dangling": (_dangling, None),
    "loop": (_loop, None),
    "fifo": (os.mkfifo, None),
    "anyones": (_anyones, None),
    "below-a-file": (_file, "{}/below"),
    "device": (_nothing, "/dev/full"),
    "read-only-system": (_nothing, "/proc/evidence"),
    "of-the-kernel": (_nothing, "/proc/self/fd"),
    "long": (_nothing, "{}/" + "x" * 5000),
    "no-utf8": (_nothing, "/proc/\udcff\udcfe"),
    "a-tilde": (_nothing, "/proc/~/$HOME/{{}}/%s"),
}


def test_an_evidence_folder_in_a_bad_state(program: Program, tmp_path: Path) -> None:
    cases = []
    for name, (prepare, value) in FOLDERS.items():
        prepare(tmp_path / name)
        folder = (value or "{}").format(tmp_path / name)
        cases.append({"env": {"HISPARSE_GUARD_EVIDENCE_DIR": folder}})
    for name, result in zip(FOLDERS, program.run(cases), strict=True):
        program.as_guarded(result)
        said = [x for x in guard_lines(result["stderr"]) if "no evidence is written" in x]
        assert len(said) == 1, (name, result["stderr"])


WRITE = """
import os
real = os.write
def write(descriptor, data):
    if descriptor > 2:
        {}
    return real(descriptor, data)
os.write = write
"""
THE_FILE = """
import os, socket
folder = os.environ["HISPARSE_GUARD_EVIDENCE_DIR"]
os.makedirs(folder)
file = f"{folder}/hisparse-guard-{socket.gethostname()}-{os.getpid()}.jsonl"
"""

# Done by the program itself; each may write some evidence before, and none after.
SPOILED = {
    "disk-full": WRITE.format("raise OSError(28, 'No space left on device')"),
    "disk-full-in-the-line": WRITE.format("return real(descriptor, data[:10])"),
    "no-descriptors": """
import inspect, os, resource
import vllm.config, vllm.envs, vllm.fused
free = os.open("/dev/null", os.O_RDONLY)
os.close(free)
resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))
""",
    "taken-away": "import shutil, sys; sys.addaudithook(lambda e, a: e == 'os.mkdir' and 1 / 0)",
    "the-file-is-a-folder": THE_FILE + "os.mkdir(file)",
    "the-file-is-a-link": THE_FILE + "os.symlink('/etc/passwd', file)",
    "the-file-is-a-fifo": THE_FILE + "os.mkfifo(file)",
    "no-host-name": "import socket; socket.gethostname = lambda: 1 / 0",
    "no-clock": "import hisparse_guard.runtime.evidence as e; e.now = lambda: 1 / 0",
}


def test_evidence_that_is_spoiled_while_it_is_written(program: Program, tmp_path: Path) -> None:
    cases = [
        {"env": {"HISPARSE_GUARD_EVIDENCE_DIR": str(tmp_path / name)}, "before": code}
        for name, code in SPOILED.items()
    ]
    for name, result in zip(SPOILED, program.run(cases), strict=True):
        program.as_guarded(result)
        said = [x for x in guard_lines(result["stderr"]) if "evidence" in x]
        assert said, (name, result["stderr"])


def test_a_missing_evidence_folder_is_made(program: Program, tmp_path: Path) -> None:
    folder = tmp_path / "with" / "its" / "parents"
    (result,) = program.run([{"env": {"HISPARSE_GUARD_EVIDENCE_DIR": str(folder)}}])
    program.as_guarded(result, 0)
    assert not [line for line in guard_lines(result["stderr"]) if "evidence" in line]
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) & 0o022 == 0
    events = [json.loads(line)["event"] for line in file.read_text().splitlines()]
    assert events[0] == "armed" and "workspace" in events


# --- settings

NAMES = ("MODE", "BACKEND", "MULTINODE", "TRACE_CONTEXT", "SPEED", "mode", "EVIDENCE", "")
VALUES = st.one_of(
    st.sampled_from(
        ("enforced", "1", "yes", "ON", "none ", "\t", "off\x0b\u2028", "é" * 9999, "-")
    ),
    # Bytes of the environment that are no UTF-8 come as surrogates.
    st.text(
        st.characters(codec=None, exclude_characters="\0", exclude_categories=["Cs"]), max_size=40
    ),
    st.binary(max_size=20).map(lambda b: b.replace(b"\0", b"").decode("utf-8", "surrogateescape")),
)


def means_the_default(name: str, value: str) -> bool:
    valid = {
        "MODE": ("observe", "strict", "off"),
        "BACKEND": ("none",),
        "MULTINODE": ("keep",),
        "TRACE_CONTEXT": ("1",),
    }
    return value.strip().lower() not in valid.get(name, ())


@given(st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES), min_size=1, max_size=40))
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
def test_settings_with_any_value(program: Program, found: list[dict[str, str]]) -> None:
    kept = [{n: v for n, v in each.items() if means_the_default(n, v)} for each in found]
    cases = [{"env": {f"HISPARSE_GUARD_{n}": v for n, v in each.items()}} for each in kept]
    for each, result in zip(kept, program.run(cases), strict=True):
        program.as_guarded(result, most=10**6)
        said = [x for x in guard_lines(result["stderr"]) if x.startswith("ERROR")]
        assert len(said) <= len(each), (each, said)


# --- at the limit

DEEP = """
import sys
import vllm.config, vllm.distributed.device_communicators.flashinfer_all_reduce as fi
from vllm.config.vllm import VllmConfig, Part
given = VllmConfig(attention_config=Part(hisparse_config=object()), model_config=Part(model="m"))
def dive(depth):
    return dive(depth - 1) if depth else fi._resolve_fi_ar_backend(None)
found = set()
with vllm.config.set_current_vllm_config(given):
    for depth in range(sys.getrecursionlimit() - 250, sys.getrecursionlimit()):
        try:
            found.add(dive(depth)[0])
        except RecursionError:
            found.add("RecursionError")
print(sorted(found))
"""


def test_at_the_recursion_limit(program: Program) -> None:
    (result,) = program.run([{"before": DEEP}])
    first, rest = result["stdout"].split("\n", 1)
    # Where not even the decision can be made, there is vLLM's own answer, as without the guard.
    assert first in ("['RecursionError', 'mnnvl', 'trtllm']", "['RecursionError', 'trtllm']")
    made = {x for x in rest.splitlines() if x.startswith(("init", "get_", "again", "resolve"))}
    assert made <= set(program.guarded["stdout"].splitlines()), result
    assert result["exit"] == 0, result
