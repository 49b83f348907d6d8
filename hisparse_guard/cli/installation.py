"""Where this installation's files are: a source checkout, an installed wheel, or a bundle."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hisparse_guard
from hisparse_guard.cli import manifest

if TYPE_CHECKING:
    from importlib.abc import Traversable

START = "sitecustomize.py"
PACKAGE = "hisparse_guard"
DISTRIBUTION = "hisparse-guard"
# The private copy of wrapt in a bundle, which the runtime prefers.
VENDORED = "_vendored"


def package() -> Traversable:
    """The package's folder, which may lie in a zip."""
    return files(PACKAGE)


def _archive() -> str | None:
    """The zip that this installation runs from, if it does."""
    found: str | None = getattr(hisparse_guard.__loader__, "archive", None)
    return found


def _in_archive(name: str) -> bytes:
    loader: Any = hisparse_guard.__loader__
    data: bytes = loader.get_data(f"{loader.archive}/{name}")
    return data


def path_entry() -> Path:
    """What to put on PYTHONPATH for this installation.

    A wheel must not put a `sitecustomize` into site-packages, where it would run in every
    Python of the environment: it has it in a folder of its own, while the package itself is
    found where it was installed.

    Raises:
        FileNotFoundError: the installation has no `sitecustomize.py`.
    """
    archive = _archive()
    if archive is not None:
        return Path(archive)
    folder = Path(hisparse_guard.__file__).resolve().parent
    for entry in (folder / "inject", folder.parent):
        if (entry / START).is_file():
            return entry
    raise FileNotFoundError(
        f"this installation of hisparse-guard has no {START} ({folder / 'inject'} and "
        f"{folder.parent} were looked at); install it again"
    )


def in_front(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` with this installation in front of whatever PYTHONPATH holds.

    Raises:
        FileNotFoundError: as `path_entry`.
        ValueError: its path has a colon in it, which PYTHONPATH cannot take.
    """
    entry = str(path_entry())
    if os.pathsep in entry:
        raise ValueError(f"{entry} cannot stand on PYTHONPATH: it holds a {os.pathsep!r}")
    return put_in_front(entry, environment)


def put_in_front(entry: str, environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` with `entry` in front of whatever PYTHONPATH holds."""
    behind = environment.get("PYTHONPATH", "")
    if behind.partition(os.pathsep)[0] == entry:
        return dict(environment)
    # An empty entry would put the current folder on the path.
    return {**environment, "PYTHONPATH": entry + (os.pathsep + behind if behind else "")}


def start_source() -> bytes:
    """The text of this installation's `sitecustomize.py`."""
    archive = _archive()
    if archive is not None:
        return _in_archive(START)
    return (path_entry() / START).read_bytes()


def license_text() -> bytes:
    """The licence that this installation came with.

    Raises:
        FileNotFoundError: it came without one.
    """
    beside = Path(hisparse_guard.__file__).resolve().parent.parent / "LICENSE"
    if beside.is_file():
        return beside.read_bytes()
    for distribution in importlib.metadata.distributions(name=DISTRIBUTION):
        # A wheel's place for it, and a bundle's.
        for name in ("licenses/LICENSE", "LICENSE"):
            text = distribution.read_text(name)
            if text is not None:
                return text.encode()
    raise FileNotFoundError("this installation of hisparse-guard has no LICENSE; install it again")


def package_files() -> list[tuple[str, bytes]]:
    """Every file of the package but what Python or `bundle` makes, as (relative name, bytes).

    What these are is told by metadata, not by what lies in the folder: a bundle's manifest, an
    installation's RECORD, a checkout's index.

    Raises:
        FileNotFoundError: there is no such metadata, or it names what is not there.
    """
    root = package()
    names = _bundled_names(root)
    names = _recorded_names() if names is None else names
    names = _versioned_names() if names is None else names
    if names is None:
        raise FileNotFoundError(
            f"which files of {root} belong to hisparse-guard is not known: it is no bundle, no "
            "installation with a RECORD and no git checkout; install it with pip"
        )
    made = {f"inject/{START}", manifest.FILE}
    own = sorted(
        name
        for name in (n.removeprefix(f"{PACKAGE}/") for n in names if n.startswith(f"{PACKAGE}/"))
        if name not in made and not name.endswith(".pyc") and not name.startswith(f"{VENDORED}/")
    )
    return [(f"{PACKAGE}/{name}", root.joinpath(*name.split("/")).read_bytes()) for name in own]


def _bundled_names(root: Traversable) -> list[str] | None:
    listing = root / manifest.FILE
    return list(json.loads(listing.read_text())["files"]) if listing.is_file() else None


def _recorded_names() -> list[str] | None:
    """What RECORD names, where it is this installation's; an editable one names no modules."""
    here = Path(hisparse_guard.__file__)
    for distribution in importlib.metadata.distributions(name=DISTRIBUTION):
        names = [file.as_posix() for file in distribution.files or ()]
        start = f"{PACKAGE}/__init__.py"
        if (
            start in names
            and Path(str(distribution.locate_file(start))).resolve() == here.resolve()
        ):
            return names
    return None


def _versioned_names() -> list[str] | None:
    """What git has under version control in a checkout, the index included."""
    checkout = Path(hisparse_guard.__file__).resolve().parent.parent
    if not (checkout / ".git").exists():
        # An unpacked sdist, which holds its own files only.
        if not (checkout / "PKG-INFO").is_file():
            return None
        found = (checkout / PACKAGE).rglob("*")
        return [
            f.relative_to(checkout).as_posix()
            for f in found
            if f.is_file() and "__pycache__" not in f.parts
        ]
    try:
        done = subprocess.run(
            ["git", "ls-files", "-z", PACKAGE],
            cwd=checkout,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise FileNotFoundError(f"cannot ask git for the files of {checkout}: {error}") from error
    return [name for name in done.stdout.split("\0") if name]


def wrapt_files() -> tuple[str, list[tuple[str, bytes]]]:
    """What the runtime uses of wrapt as installed here: `FunctionWrapper` in pure Python.

    All of wrapt takes more than three times as long to import as what `wrappers.py` needs, and
    every process that imports vLLM pays for it.

    Returns:
        wrapt's version, and (name relative to the folder of wrapt, bytes): the modules as they
        are, its licence, and an `__init__.py` that names the one class.

    Raises:
        FileNotFoundError: wrapt is not installed here, or without a licence.
    """
    try:
        distribution = importlib.metadata.distribution("wrapt")
    except importlib.metadata.PackageNotFoundError:
        vendored = package() / VENDORED / "wrapt"
        if not vendored.is_dir():
            raise FileNotFoundError(
                "wrapt is not installed here, and a bundle takes its private copy from there; "
                "run: pip install wrapt"
            ) from None
        copied = ((n.removeprefix("wrapt/"), b) for n, b in _walk(vendored, "wrapt", set()))
        found = [(n, b) for n, b in copied if not n.startswith("__pycache__/")]
        return (vendored / "VERSION").read_text().strip(), found
    modules, licences = {}, []
    for file in distribution.files or ():
        path, name = Path(str(distribution.locate_file(file))), file.as_posix()
        if name.startswith("wrapt/") and file.suffix == ".py":
            modules[name.removeprefix("wrapt/")] = path.read_bytes()
        elif ".dist-info/" in name and file.name.upper().startswith(("LICENSE", "COPYING")):
            licences.append(path.read_bytes())
    if "wrappers.py" not in modules or not licences:
        raise FileNotFoundError(
            f"wrapt {distribution.version} as installed here names neither its files nor its "
            "licence in its metadata; run: pip install --force-reinstall wrapt"
        )
    start = f'"""Of wrapt {distribution.version}, what hisparse-guard uses; see LICENSE."""\n\n'
    start += "from .wrappers import FunctionWrapper as FunctionWrapper\n\n"
    start += f'__version__ = "{distribution.version}"\n'
    return distribution.version, [
        ("LICENSE", licences[0]),
        ("VERSION", f"{distribution.version}\n".encode()),
        ("__init__.py", start.encode()),
        *((name, modules[name]) for name in sorted(_needed("wrappers.py", modules))),
    ]


def _needed(name: str, modules: Mapping[str, bytes]) -> set[str]:
    """The modules of one package that module `name` imports, and theirs; itself included."""
    needed, pending = set(), [name]
    while pending:
        needed.add(name := pending.pop())
        for node in ast.walk(ast.parse(modules[name])):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                names = [node.module] if node.module else [alias.name for alias in node.names]
                wanted = {f"{module}.py" for module in names} & modules.keys()
                pending += wanted - needed
    return needed


def _walk(folder: Traversable, prefix: str, without: set[str]) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.name in without or entry.name.endswith(".pyc"):
            continue
        name = f"{prefix}/{entry.name}"
        if entry.is_dir():
            yield from _walk(entry, name, without)
        else:
            yield name, entry.read_bytes()
