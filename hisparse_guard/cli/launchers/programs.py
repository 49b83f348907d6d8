"""What a Python program is: vLLM's own, a known launcher, or something that cannot be told.

Read from the program's source; nothing of it is run.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

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
_STARTERS = ("exec", "spawn", "posix_spawn", "fork", "system", "popen", "startfile")
# What takes import hooks away, has children started by another Python, imports by a name that is
# not in the source or from another place, or sets variables from a file.
_CHANGING = {
    *("meta_path", "path_hooks", "path_importer_cache", "set_executable", "import_module"),
    *("addsitedir", "addpackage", "spec_from_file_location", "SourceFileLoader", "zipimporter"),
    *("putenv", "unsetenv", "load_dotenv", "chdir"),
}
# Of `sys`: where modules come from.
_PLACES = {"path", "modules"}
_PLACES_OF_SYS = {"sys.*", *(f"sys.{name}" for name in _PLACES)}
_STARTING_MODULES = {"subprocess", "pty", "asyncio.subprocess", "runpy", "sh", "pexpect"}
_OF_ENVIRONMENT = {"clear", "update", "pop", "popitem", "setdefault", "__delitem__", "__setitem__"}
VARIABLES = ("PYTHON", "HISPARSE_GUARD", "VLLM_PLUGINS", "VLLM_FLASHINFER_ALLREDUCE_BACKEND")


def of_python(kind: Kind, target: str) -> str:
    """Which program a Python runs: `VLLM`, a launcher's name, or why that cannot be told.

    Args:
        target: the script's file, the module's name or the code, by `kind`.

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
    except (SyntaxError, RecursionError, MemoryError):
        return f"{name} is not Python that can be read"
    return _of_source(tree, name)


def _source(path: Path) -> bytes:
    if path.is_dir():
        path = path / "__main__.py"
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if "__main__.py" not in archive.namelist():
                raise ValueError(f"{path} holds no __main__.py")
            return archive.read("__main__.py")
    return path.read_bytes()


def _of_source(tree: ast.Module, name: str) -> str:
    imported = set(_imports(tree))
    launchers = {_KNOWN[module] for module in imported if module in _KNOWN}
    starts = list(_starts(tree)) + sorted(imported & _STARTING_MODULES)
    if starts:
        return (
            f"{name} starts other programs, perhaps another Python, or changes what is imported "
            f"or inherited ({starts[0]})"
        )
    if len(launchers) == 1:
        return launchers.pop()
    if any(module.partition(".")[0] == "vllm" for module in imported) and not launchers:
        return VLLM
    return f"whether {name} runs vLLM, or starts another Python that does, is not known"


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _names_of_sys(tree: ast.Module) -> set[str]:
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "sys"
    }


def _set(node: ast.Assign | ast.AugAssign | ast.Delete) -> Iterator[str]:
    """What in an assignment may change what children are given: the environment as a whole, a
    variable whose name is not in the source, the Python that they are started with."""
    for target in [node.target] if isinstance(node, ast.AugAssign) else node.targets:
        holder = ast.unparse(target.value if isinstance(target, ast.Subscript) else target)
        named = isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant)
        if holder.rpartition(".")[2] == "environ" and not named:
            yield f"it sets {ast.unparse(target)}"
        elif holder.startswith("sys.") and holder.endswith("executable"):
            yield f"it sets {holder}"


def _starts(tree: ast.Module) -> Iterator[str]:
    """What in a program starts another, or changes what it imports or its children are given."""
    yield from (f"it uses {name}" for name in _imports(tree) if name in _PLACES_OF_SYS)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (
            node.attr.startswith(_STARTERS) or node.attr in _CHANGING
        ):
            yield node.attr
        elif isinstance(node, ast.Attribute) and node.attr in _PLACES:
            if getattr(node.value, "id", "") in _names_of_sys(tree):
                yield f"it uses sys.{node.attr}"
        elif isinstance(node, ast.Attribute) and node.attr in _OF_ENVIRONMENT:
            if getattr(node.value, "attr", getattr(node.value, "id", "")) == "environ":
                yield f"environ.{node.attr}"
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.Delete)):
            yield from _set(node)
        elif isinstance(node, ast.ImportFrom) and node.module in ("os", "posix"):
            yield from (a.name for a in node.names if a.name.startswith((*_STARTERS, "*")))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.startswith(VARIABLES) or node.value in _CHANGING:
                yield f"it names {node.value}"
        elif isinstance(node, ast.Name) and node.id in ("__import__", "exec", "eval", *_CHANGING):
            yield node.id
