"""What a Python program is: vLLM's own, a known launcher, or something that cannot be told.

Read from the program's source and from that of the modules of its own that it imports; nothing of
it is run.
"""

from __future__ import annotations

import ast
import glob
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from hisparse_guard.cli.launchers.effects import effects, imported

Kind = Literal["script", "module", "code", "stdin"]

VLLM, GUARD, TORCHRUN = "vllm", "hisparse-guard", "torchrun"
DDTRACE, OPENTELEMETRY = "ddtrace-run", "opentelemetry-instrument"
# The package, and the folder in it that is put in front of PYTHONPATH.
INSTRUMENTS = {
    DDTRACE: ("ddtrace", "bootstrap"),
    OPENTELEMETRY: ("opentelemetry", "instrumentation/auto_instrumentation"),
}
_KNOWN = {
    "hisparse_guard": GUARD,
    "hisparse_guard.__main__": GUARD,
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": TORCHRUN,
    "ddtrace.commands.ddtrace_run": DDTRACE,
    "opentelemetry.instrumentation.auto_instrumentation": OPENTELEMETRY,
}
# Installed packages that launch scripts use and that start nothing by being imported.
_LIBRARIES = {
    *("fastapi", "flashinfer", "httpx", "huggingface_hub", "numpy", "openai", "prometheus_client"),
    *("pydantic", "requests", "rich", "safetensors", "setproctitle", "starlette", "tokenizers"),
    *("torch", "tqdm", "transformers", "triton", "typer", "uvicorn", "uvloop", "yaml"),
}
LAUNCHERS = set(_KNOWN.values())
_SERVER = {"vllm", "hisparse_guard"}
_MOST_MODULES = 200
_PACKAGE = "/__init__.py"


def of_python(kind: Kind, target: str, path: Sequence[str] = ()) -> str:
    """Which program a Python runs: `VLLM`, a launcher's name, or why that cannot be told.

    Args:
        target: the script's file, the module's name or the code, by `kind`.
        path: folders and zips in which its own modules are looked for, before installed ones.

    Raises:
        OSError, ValueError: the script cannot be read.
    """
    if kind == "module":
        if target.partition(".")[0] == "vllm":
            return VLLM
        return _KNOWN.get(target, f"whether python -m {target} starts the server is not known")
    if kind == "stdin":
        return "the program comes from standard input"
    name = "the code of -c" if kind == "code" else target
    try:
        tree = ast.parse(target if kind == "code" else _source(Path(target)))
    except (SyntaxError, RecursionError, MemoryError, UnicodeError):
        return f"{name} is not Python that can be read"
    return _of_source(tree, name, path)


def _source(path: Path) -> bytes:
    if path.is_dir():
        path = path / "__main__.py"
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if "__main__.py" not in archive.namelist():
                raise ValueError(f"{path} holds no __main__.py")
            return archive.read("__main__.py")
    return path.read_bytes()


def _of_source(tree: ast.Module, name: str, path: Sequence[str]) -> str:
    names = set(imported(tree))
    sources: list[tuple[str, ast.Module]] = [(name, tree)]
    try:
        for module, text in _own_modules(tree, path):
            sources.append((module, ast.parse(text)))
            names.update(imported(sources[-1][1]))
    except _NotFollowed as error:
        return f"{name} imports {error}, which is not followed"
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError, zipfile.BadZipFile):
        return f"{name} imports a module beside it that cannot be read"
    for where, source in sources:
        if found := next(effects(source), None):
            return (
                f"{where} starts other programs, perhaps another Python, or changes what is "
                f"imported or inherited ({found})"
            )
    launchers = {_KNOWN[module] for module in names if module in _KNOWN}
    if len(launchers) == 1:
        return launchers.pop()
    if any(module.partition(".")[0] == "vllm" for module in names) and not launchers:
        return VLLM
    return f"whether {name} runs vLLM, or starts another Python that does, is not known"


class _NotFollowed(Exception):
    """A module whose source is not looked for; the text names it."""


def _own_modules(tree: ast.Module, path: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """The modules on `path` that a program imports, and that those import, with their source.

    Raises:
        _NotFollowed: a module is found nowhere there, and is not known here either.
    """
    seen: set[str] = set()
    pending = [(tree, "")]
    while pending:
        source, package = pending.pop()
        for name in _wanted(source, package):
            for depth in range(1, name.count(".") + 2):
                part = ".".join(name.split(".")[:depth])
                if part in seen:
                    continue
                seen.add(part)
                found = _module(part, path)
                if found is None:
                    if depth == 1 and not _is_known(name):
                        raise _NotFollowed(part)
                    continue
                if len(seen) > _MOST_MODULES:
                    raise _NotFollowed(f"more than {_MOST_MODULES} modules")
                text, is_package = found
                yield part, text
                inside = part if is_package else part.rpartition(".")[0]
                pending.append((ast.parse(text), inside))


def _wanted(tree: ast.Module, package: str) -> Iterator[str]:
    """The modules that a source of `package` imports, and what may be modules in them."""
    yield from imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            parts = package.split(".") if package else []
            parts = parts[: len(parts) - node.level + 1]
            parts += [node.module] if node.module else []
            yield from (".".join([*parts, alias.name]) for alias in node.names)


def _module(name: str, path: Sequence[str]) -> tuple[bytes, bool] | None:
    """The source of a module on `path`, and whether it is a package; None where it is not there.

    Raises:
        _NotFollowed: it is there, and not as source.
    """
    parts = name.split(".")
    if parts[0] in _SERVER:
        return None
    for number, entry in enumerate(path):
        # On PYTHONPATH too these are what they are known for.
        if number and parts[0] in _LIBRARIES:
            return None
        if zipfile.is_zipfile(entry):
            with zipfile.ZipFile(entry) as archive:
                for end in (_PACKAGE, ".py"):
                    if (held := "/".join(parts) + end) in archive.namelist():
                        return archive.read(held), end == _PACKAGE
        for end in (_PACKAGE, ".py"):
            file = Path(f"{Path(entry, *parts)}{end}")
            if list(file.parent.glob(f"{glob.escape(file.stem)}.*so")):
                raise _NotFollowed(f"{name}, which is compiled")
            if file.is_file():
                return file.read_bytes(), end == _PACKAGE
            if file.with_suffix(".pyc").is_file():
                raise _NotFollowed(f"{name}, whose source is not there")
    return None


def _is_known(name: str) -> bool:
    top = name.partition(".")[0]
    launcher = any(name == known or name.startswith(f"{known}.") for known in _KNOWN)
    return launcher or top in {*_SERVER, *_LIBRARIES, *sys.stdlib_module_names}
