"""The shadowed sitecustomize runs as it would without the guard: once, in its own name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.startup.sandbox import WATCHDOG, guard_folder, python, vllm_folder, write, zipped

# What a program can see of its start. Paths in front of which the guard was put stay the same.
LOOK = """
import sys
site = sys.modules.get("sitecustomize")
print("module", getattr(site, "__file__", None), getattr(site, "__name__", None),
      getattr(getattr(site, "__spec__", None), "name", None), bool(getattr(site, "__path__", None)))
print("runs", getattr(sys, "runs", []))
print("usercustomize", "usercustomize" in sys.modules)
"""
NOTE = 'import sys; sys.runs = getattr(sys, "runs", []) + [__file__]\n'

# A sitecustomize that chains as ddtrace's does: out of the path, import, back into the path.
CHAINER = (
    NOTE
    + """
import os
here = os.path.dirname(__file__)
if here in sys.path:
    index = sys.path.index(here)
    del sys.path[index]
    me = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize
    except ImportError:
        sys.modules["sitecustomize"] = me
    finally:
        sys.path.insert(index, here)
"""
)

Layout = Callable[[Path], list[Path | str]]


def plain(root: Path) -> list[Path | str]:
    return [write(root / "a", {"sitecustomize.py": NOTE})]


def two(root: Path) -> list[Path | str]:
    return [
        write(root / "a", {"sitecustomize.py": NOTE}),
        write(root / "b", {"sitecustomize.py": NOTE}),
    ]


def package(root: Path) -> list[Path | str]:
    files = {
        "sitecustomize/__init__.py": NOTE + "from . import part\n",
        "sitecustomize/part.py": NOTE,
    }
    return [write(root / "a", files)]


def in_zip(root: Path) -> list[Path | str]:
    return [zipped(write(root / "a", {"sitecustomize.py": NOTE}))]


def package_in_zip(root: Path) -> list[Path | str]:
    return [zipped(write(root / "a", {"sitecustomize/__init__.py": NOTE}))]


def further_down(root: Path) -> list[Path | str]:
    missing, empty = root / "missing", write(root / "empty", {})
    return [missing, empty, write(root / "a b", {"sitecustomize.py": NOTE})]


def namespace_folder(root: Path) -> list[Path | str]:
    # A folder of that name without code: Python goes on to the file behind it.
    return [
        write(root / "a", {"sitecustomize/readme.txt": ""}),
        write(root / "b", {"sitecustomize.py": NOTE}),
    ]


def raises(root: Path) -> list[Path | str]:
    return [write(root / "a", {"sitecustomize.py": NOTE + "raise RuntimeError('boom')\n"})]


def syntax_error(root: Path) -> list[Path | str]:
    return [write(root / "a", {"sitecustomize.py": "def broken(:\n"})]


def null_bytes(root: Path) -> list[Path | str]:
    return [write(root / "a", {"sitecustomize.py": "\0"})]


def missing_import(root: Path) -> list[Path | str]:
    return [write(root / "a", {"sitecustomize.py": NOTE + "import not_to_be_found\n"})]


def import_error_in_its_name(root: Path) -> list[Path | str]:
    text = NOTE + "raise ImportError('x', name='sitecustomize')\n"
    return [write(root / "a", {"sitecustomize.py": text})]


def exits(root: Path) -> list[Path | str]:
    return [write(root / "a", {"sitecustomize.py": NOTE + "raise SystemExit(7)\n"})]


def interrupted(root: Path) -> list[Path | str]:
    return [write(root / "a", {"sitecustomize.py": NOTE + "raise KeyboardInterrupt\n"})]


def removes_itself(root: Path) -> list[Path | str]:
    text = NOTE + "del sys.modules['sitecustomize']\n"
    return [write(root / "a", {"sitecustomize.py": text})]


def replaces_itself(root: Path) -> list[Path | str]:
    text = NOTE + "import types; m = types.ModuleType('sitecustomize'); m.__file__ = 'other'\n"
    return [write(root / "a", {"sitecustomize.py": text + "sys.modules[__name__] = m\n"})]


def changes_path(root: Path) -> list[Path | str]:
    text = NOTE + "sys.path.insert(0, '/somewhere/else')\n"
    return [write(root / "a", {"sitecustomize.py": text})]


def chainer_alone(root: Path) -> list[Path | str]:
    return [write(root / "a", {"sitecustomize.py": CHAINER})]


def chainer_and_plain(root: Path) -> list[Path | str]:
    return [write(root / "a", {"sitecustomize.py": CHAINER}), *two(root / "behind")]


def two_chainers_and_plain(root: Path) -> list[Path | str]:
    return [
        write(root / "a", {"sitecustomize.py": CHAINER}),
        write(root / "b", {"sitecustomize.py": CHAINER}),
        *plain(root / "behind"),
    ]


def chainer_and_raising(root: Path) -> list[Path | str]:
    return [write(root / "a", {"sitecustomize.py": CHAINER}), *raises(root / "behind")]


def nothing(root: Path) -> list[Path | str]:
    return [write(root / "a", {})]


LAYOUTS: list[Layout] = [
    *(plain, two, package, in_zip, package_in_zip, further_down, namespace_folder),
    *(raises, syntax_error, null_bytes, missing_import, import_error_in_its_name),
    *(exits, interrupted, removes_itself, replaces_itself, changes_path),
    *(chainer_and_plain, two_chainers_and_plain, chainer_and_raising),
]


def in_folder(root: Path) -> list[Path | str]:
    return [guard_folder(root / "guard")]


def in_a_zip(root: Path) -> list[Path | str]:
    return [zipped(guard_folder(root / "guard"))]


def spaces(root: Path) -> list[Path | str]:
    return [guard_folder(root / "a guard, with spaces")]


def trailing_slash(root: Path) -> list[Path | str]:
    return [f"{guard_folder(root / 'guard')}/"]


def detour(root: Path) -> list[Path | str]:
    return [f"{guard_folder(root / 'guard')}/../guard"]


def two_copies(root: Path) -> list[Path | str]:
    return [guard_folder(root / "guard"), guard_folder(root / "other")]


def twice(root: Path) -> list[Path | str]:
    return [guard_folder(root / "guard"), root / "guard"]


def folder_and_zip(root: Path) -> list[Path | str]:
    return [zipped(guard_folder(root / "zipped")), guard_folder(root / "guard")]


GUARDS: list[Layout] = [
    *(in_folder, in_a_zip, spaces, trailing_slash, detour, two_copies, twice, folder_and_zip)
]


def seen_of_start(path: list[Path | str]) -> tuple[int, str, str]:
    done = python(LOOK, path)
    # An exit or Ctrl-C at start shows a traceback, where the guard's frames may well appear.
    errors = [line for line in done.stderr.splitlines() if not line.startswith("  ")]
    return done.returncode, done.stdout, "\n".join(errors)


@pytest.mark.parametrize("guard", GUARDS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
def test_start_is_as_without_the_guard(layout: Layout, guard: Layout, tmp_path: Path) -> None:
    shadowed = layout(tmp_path / "shadowed")
    alone = seen_of_start(shadowed)
    assert seen_of_start([*guard(tmp_path / "ours"), *shadowed]) == alone


@pytest.mark.parametrize("guard", GUARDS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("layout", [plain, raises, chainer_and_plain], ids=lambda f: f.__name__)
def test_each_runs_once(layout: Layout, guard: Layout, tmp_path: Path) -> None:
    shadowed = layout(tmp_path / "shadowed")
    done = python("import sys; print(*sys.runs, sep='\\n')", [*guard(tmp_path / "ours"), *shadowed])
    runs = done.stdout.splitlines()
    assert runs, done
    assert len(runs) == len(set(runs))


@pytest.mark.parametrize("guard", GUARDS, ids=lambda f: f.__name__)
def test_a_second_copy_behind_a_chainer(guard: Layout, tmp_path: Path) -> None:
    chainer = write(tmp_path / "chainer", {"sitecustomize.py": CHAINER})
    second = guard_folder(tmp_path / "second")
    last = write(tmp_path / "last", {"sitecustomize.py": NOTE})
    vllm = vllm_folder(tmp_path / "image")
    code = """
import sys, vllm.config
print(sys.patched, sys.runs, sys.modules["sitecustomize"].__file__)
"""
    done = python(code, [*guard(tmp_path / "ours"), chainer, second, last, vllm])
    runs = [f"{chainer}/sitecustomize.py", f"{last}/sitecustomize.py"]
    assert done.stdout.strip() == f"['vllm.config'] {runs} {runs[-1]}", done


@pytest.mark.parametrize("guard", GUARDS, ids=lambda f: f.__name__)
def test_behind_a_chainer(guard: Layout, tmp_path: Path) -> None:
    chainer = write(tmp_path / "chainer", {"sitecustomize.py": CHAINER})
    last = write(tmp_path / "last", {"sitecustomize.py": NOTE})
    vllm = vllm_folder(tmp_path / "image")
    code = "import sys, vllm.config; print(sys.patched, sys.runs)"
    done = python(code, [chainer, *guard(tmp_path / "ours"), last, vllm])
    runs = [f"{chainer}/sitecustomize.py", f"{last}/sitecustomize.py"]
    assert done.stdout.strip() == f"['vllm.config'] {runs}", done


@pytest.mark.parametrize("guard", GUARDS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("layout", [nothing, chainer_alone], ids=lambda f: f.__name__)
def test_nothing_behind(layout: Layout, guard: Layout, tmp_path: Path) -> None:
    # `-S` and then site by hand with a path of our own: the interpreter that runs the tests may
    # have a sitecustomize of its own, as Debian's has.
    ours = [str(p).rstrip("/") for p in [*guard(tmp_path / "ours"), *layout(tmp_path / "behind")]]
    code = f"""
import sys, site
sys.path[:] = {ours!r} + [p for p in sys.path if not p.endswith("packages")]
site.execsitecustomize()
print([type(f).__name__ for f in sys.meta_path].count("PatchFinder"),
      sys.modules["sitecustomize"].__file__)
"""
    done = python(code, options=["-S"])
    assert done.returncode == 0 and not done.stderr, done
    finders, module = done.stdout.split(maxsplit=1)
    assert finders == "1"
    assert module.strip().endswith("sitecustomize.py")


def test_a_path_entry_put_there_by_a_pth_file(tmp_path: Path) -> None:
    # site does not normalise what a `.pth` file adds behind PYTHONPATH.
    guard = guard_folder(tmp_path / "guard")
    last = write(tmp_path / "last", {"sitecustomize.py": NOTE})
    code = f"""
import sys, site
sys.path[:0] = ["{tmp_path}/last/../guard/", None, b"bytes", "{last}"]
site.execsitecustomize()
print(sys.runs, sys.modules["sitecustomize"].__file__)
"""
    done = python(code, options=["-S"])
    assert done.stdout.strip() == f"['{last}/sitecustomize.py'] {last}/sitecustomize.py", done
    assert guard.exists()


def test_run_by_hand_chains_to_nobody(tmp_path: Path) -> None:
    # Somebody's sitecustomize that runs ours from a place that is not on the path.
    guard = guard_folder(tmp_path / "guard")
    text = NOTE + f"import runpy; runpy.run_path({str(guard / 'sitecustomize.py')!r})\n"
    front = write(tmp_path / "front", {"sitecustomize.py": text})
    done = python("import sys; print(sys.runs)", [front])
    assert done.stdout.strip() == f"['{front}/sitecustomize.py']", done


def test_an_editable_install_whose_finder_answers_for_every_path(tmp_path: Path) -> None:
    guard = guard_folder(tmp_path / "guard")
    editable = write(tmp_path / "editable", {"sitecustomize.py": NOTE})
    code = f"""
import sys, site, importlib.util
class Editable:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "sitecustomize":
            return importlib.util.spec_from_file_location(
                name, {str(editable / "sitecustomize.py")!r})
sys.meta_path.append(Editable)
sys.path[:] = [{str(guard)!r}, *(p for p in sys.path if not p.endswith("packages"))]
site.execsitecustomize()
print(sys.runs)
"""
    done = python(code, options=["-S"])
    assert done.stdout.strip() == f"['{editable}/sitecustomize.py']", done


def test_a_finder_that_answers_with_what_is_running(tmp_path: Path) -> None:
    # ddtrace's watchdog, up to 4.0: it asks Python, which names what `sys.modules` holds.
    guard = guard_folder(tmp_path / "guard")
    behind = write(tmp_path / "behind", {"sitecustomize.py": NOTE})
    code = f"""{WATCHDOG}
import sys, site
sys.meta_path.insert(0, Watchdog())
sys.path[:] = [{str(guard)!r}, b"bytes", {str(behind)!r}, *sys.path]
site.execsitecustomize()
print(sys.runs)
"""
    for options in (["-S"], ["-S", "-bb"]):
        done = python(code, options=options)
        assert (done.stdout, done.stderr) == (f"['{behind}/sitecustomize.py']\n", ""), done
