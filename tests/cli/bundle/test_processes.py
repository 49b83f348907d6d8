"""A bundle on PYTHONPATH, in an environment without wrapt, in every kind of process start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.startup.sandbox import environment, hisparse_folder, python, write
from tests.support.environments import wrapt_path

STATE = """
import sys
def state():
    loaded = sys.modules.get("vllm.config.vllm")
    patched = getattr(loaded, "set_current_vllm_config", None)
    return (getattr(patched, "__hisparse_guard__", False),
            "hisparse_guard._vendored.wrapt" in sys.modules, "wrapt" in sys.modules)
"""
GUARDED = "(True, True, False)"
SHOW = "import vllm.config, state; print(state.state())"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return write(hisparse_folder(tmp_path / "image"), {"state.py": STATE})


def tree(folder: Path) -> list[tuple[str, int]]:
    files = folder.rglob("*") if folder.is_dir() else [folder]
    return sorted((str(f), f.stat().st_mtime_ns) for f in files)


@pytest.mark.parametrize("dont_write", ["", "1"])
def test_guarded_and_nothing_written(
    bundle: Path, image: Path, bare: Path, dont_write: str
) -> None:
    before = tree(bundle)
    env = environment([bundle, image]) | {"PYTHONDONTWRITEBYTECODE": dont_write}
    done = python("import vllm.config, state; print(state.state())", env=env, interpreter=bare)
    assert (done.stdout.strip(), done.stderr) == (GUARDED, "")
    assert tree(bundle) == before


def test_a_process_without_vllm_imports_one_file(bundle: Path, bare: Path) -> None:
    code = "import sys; print(*sorted(m for m in sys.modules if 'guard' in m or 'wrapt' in m))"
    done = python(code, [bundle], interpreter=bare)
    assert (done.stdout.strip(), done.stderr) == ("hisparse_guard", "")


def test_from_source_where_the_byte_code_is_another_pythons(
    bundle: Path, image: Path, bare: Path
) -> None:
    # Python that takes no byte code but one that it has checked, as an odd magic number would.
    options = ["--check-hash-based-pycs", "always"]
    done = python(
        "import vllm.config, state; print(state.state())",
        [bundle, image],
        options=options,
        interpreter=bare,
    )
    assert (done.stdout.strip(), done.stderr) == (GUARDED, "")


START = {
    "fork": "mp.get_context('fork')",
    "spawn": "mp.get_context('spawn')",
    "forkserver": "mp.get_context('forkserver')",
}


@pytest.mark.parametrize("method", START)
@pytest.mark.parametrize("imported_before", [True, False])
def test_multiprocessing(
    bundle: Path, image: Path, bare: Path, tmp_path: Path, method: str, imported_before: bool
) -> None:
    program = write(
        tmp_path / "program",
        {
            "main.py": f"""
import multiprocessing as mp, sys
{"import vllm.config" if imported_before else ""}
def child(pipe):
    import vllm.config, state
    pipe.send(state.state())
if __name__ == "__main__":
    mine, theirs = mp.Pipe()
    process = {START[method]}.Process(target=child, args=(theirs,))
    process.start()
    print(mine.recv() if mine.poll(30) else None)
    process.join()
"""
        },
    )
    done = subprocess.run(
        [bare, program / "main.py"],
        env=environment([bundle, image]),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == GUARDED, done


@pytest.mark.parametrize(
    ("options", "guarded"),
    [
        ([], True),
        (["-s"], True),
        (["-B"], True),
        (["-O"], True),
        (["-OO"], True),
        (["-X", "utf8"], True),
        *([(["-P"], True)] if sys.version_info >= (3, 11) else []),
        (["-I"], False),
        (["-E"], False),
        (["-S"], False),
    ],
    ids=str,
)
def test_options(bundle: Path, image: Path, bare: Path, options: list[str], guarded: bool) -> None:
    # `-I` and `-E` ignore PYTHONPATH, `-S` runs no sitecustomize: Python's own rules.
    code = f"import sys; sys.path.append({str(image)!r}); {SHOW}"
    done = python(code, [bundle], options=options, interpreter=bare)
    assert done.stdout.strip() == (GUARDED if guarded else "(False, False, False)"), done


@pytest.mark.parametrize(
    ("env", "guarded"),
    [
        ("dict(os.environ)", True),
        ("None", True),
        ("{}", False),
        ("{k: v for k, v in os.environ.items() if not k.startswith('PYTHON')}", False),
    ],
)
def test_subprocess(bundle: Path, image: Path, bare: Path, env: str, guarded: bool) -> None:
    child = f"import sys; sys.path.append({str(image)!r}); {SHOW}"
    code = (
        f"import os, subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], env={env})"
    )
    done = python(code, [bundle], interpreter=bare)
    assert done.stdout.strip() == (GUARDED if guarded else "(False, False, False)"), done


REGISTER = """
import importlib.metadata, sys
found = importlib.metadata.entry_points(group="vllm.general_plugins")
(entry,) = [e for e in found if e.name == "hisparse_guard"]
answer = entry.load()()
import vllm.config, state
print(answer, state.state())
"""


@pytest.mark.parametrize("first", ["", "import vllm.config\n"])
def test_entry_point_where_sitecustomize_was_shadowed(
    bundle: Path, image: Path, bare: Path, tmp_path: Path, first: str
) -> None:
    front = write(tmp_path / "front", {"sitecustomize.py": ""})
    done = python(first + REGISTER, [front, bundle, image], interpreter=bare)
    assert (done.stdout.strip(), done.stderr) == (f"None {GUARDED}", "")


def test_both_ways_in(bundle: Path, bundles: dict[str, Path], image: Path, bare: Path) -> None:
    # The guard twice on the path, loaded by sitecustomize and then called as a plugin.
    done = python(
        "import vllm.config, sys\n" + REGISTER.replace("(entry,)", "entry, *_"),
        [bundle, bundles["zip"], image],
        interpreter=bare,
    )
    assert (done.stdout.strip(), done.stderr) == (f"None {GUARDED}", "")


@pytest.mark.parametrize("version", ["1.14.1", "1.17.3", "2.0.1", "2.5.2"])
def test_wrapt_of_the_image_is_left_alone(
    bundle: Path, image: Path, bare: Path, version: str
) -> None:
    wrapt = wrapt_path(version)
    code = """
import wrapt, sys
hooked = []
wrapt.register_post_import_hook(lambda m: hooked.append(m.__name__), "vllm.config")
import vllm.config, state
private = sys.modules["hisparse_guard._vendored.wrapt"]
print(state.state()[:2], hooked, wrapt.__file__, private.__name__, wrapt.__version__)
"""
    done = python(code, [bundle, image, wrapt], interpreter=bare)
    told = (
        f"(True, True) ['vllm.config'] {wrapt}/wrapt/__init__.py hisparse_guard._vendored.wrapt"
        f" {version}"
    )
    assert (done.stdout.strip(), done.stderr) == (told, "")


def test_start_in_a_folder_that_is_gone(bundle: Path, image: Path, bare: Path) -> None:
    script = (
        f'd=$(mktemp -d) && cd "$d" && rmdir "$d" && exec {bare} -c '
        '"import vllm.config, state; print(state.state())"'
    )
    done = subprocess.run(
        ["sh", "-c", script],
        env=environment([bundle, image]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == (GUARDED, ""), done


def test_many_at_once(bundles: dict[str, Path], image: Path, bare: Path) -> None:
    command = [bare, "-c", "import vllm.config, state; print(state.state())"]
    env = environment([bundles["zip"], image])
    running = [
        subprocess.Popen(
            command, env=env, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for _ in range(16)
    ]
    assert {p.communicate()[0] for p in running} == {GUARDED.encode() + os.linesep.encode()}
