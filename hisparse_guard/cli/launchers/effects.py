"""What a Python source does that may keep the guard out of the server, or start another Python.

Named are things that change what is imported, or what child processes inherit. The environment, and
the modules `sys` and `os`, may only be used in ways that are known here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hisparse_guard.runtime.state import ENV_BACKEND

_STARTERS = ("exec", "spawn", "posix_spawn", "fork", "system", "popen", "Popen", "startfile")
# What takes import hooks away, has children started by another Python or user, imports by a name
# that is not in the source or from another place, or sets variables from a file.
_CHANGING = {
    *("meta_path", "path_hooks", "path_importer_cache", "set_executable", "import_module"),
    *("addsitedir", "addpackage", "spec_from_file_location", "SourceFileLoader", "zipimporter"),
    *("putenv", "unsetenv", "load_dotenv", "chdir", "fchdir", "chroot", "environb", "_python_exe"),
    *("setuid", "setgid", "seteuid", "setegid", "setreuid", "setregid", "setresuid", "setresgid"),
}
# Of `sys`: where modules come from.
_PLACES = {"path", "modules"}
_PLACES_OF_SYS = {"sys.*", *(f"sys.{name}" for name in _PLACES)}
# Modules of the standard library that are for such things.
_STARTING = {
    *("subprocess", "pty", "asyncio.subprocess", "multiprocessing.spawn", "runpy", "posix"),
    *("ctypes", "builtins", "importlib", "imp", "pkgutil", "site", "zipimport", "code", "venv"),
}
_HARMLESS = {"importlib.metadata", "importlib.resources"}
_DYNAMIC = {"__import__", "exec", "eval", *_CHANGING}
# Of the environment: what only reads it, and what names the variable first.
_READING = {"get", "copy", "items", "keys", "values"}
_NAMING = {"pop", "setdefault"}
VARIABLES = ("PYTHON", "HISPARSE_GUARD", "VLLM_PLUGINS", ENV_BACKEND)


def effects(tree: ast.Module) -> Iterator[str]:
    """Each thing in a source that may do so, as people can find it there."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    names = _names(tree)
    for name in imported(tree):
        if name in _PLACES_OF_SYS:
            yield f"it uses {name}"
        elif _is_for_starting(name):
            yield name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield from _attribute(node, names, parents)
        elif isinstance(node, ast.ImportFrom):
            yield from _taken(node)
        elif isinstance(node, ast.Name):
            if node.id in _DYNAMIC:
                yield node.id
            elif names.get(node.id) == "os.environ" and not _is_reading(node, parents):
                yield f"it hands {node.id} on, or changes it as a whole"
            elif names.get(node.id) in ("sys", "os") and not isinstance(
                parents.get(node), ast.Attribute
            ):
                yield f"it hands {node.id} on"
        elif isinstance(node, ast.Constant) and _is_named(node.value):
            yield f"it names {node.value!s}"


def imported(tree: ast.Module) -> Iterator[str]:
    """The modules that a source names in imports, and what it takes from them, by full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _names(tree: ast.Module) -> dict[str, str]:
    """What the names that imports bind stand for."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                found[bound] = alias.name if alias.asname else bound
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def _is_named(text: object) -> bool:
    # Ray starts workers with an environment of its own.
    return isinstance(text, str) and (text.startswith(VARIABLES) or text in {"ray", *_CHANGING})


def _is_for_starting(name: str) -> bool:
    parts = name.split(".")
    prefixes = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    return bool(prefixes & _STARTING) and not prefixes & _HARMLESS and name != "importlib"


def _attribute(
    node: ast.Attribute, names: dict[str, str], parents: dict[ast.AST, ast.AST]
) -> Iterator[str]:
    holder = names.get(getattr(node.value, "id", ""))
    if node.attr.startswith(_STARTERS) or node.attr in _CHANGING or "subprocess" in node.attr:
        yield node.attr
    elif node.attr in ("__import__", "__dict__") and holder in ("sys", "os"):
        yield f"it uses {holder}.{node.attr}"
    elif node.attr in _PLACES and holder == "sys":
        yield f"it uses sys.{node.attr}"
    elif node.attr.endswith("executable") and not isinstance(node.ctx, ast.Load):
        yield f"it sets {ast.unparse(node)}"
    elif node.attr == "environ" and not _is_reading(node, parents):
        yield f"it hands {ast.unparse(node)} on, or changes it as a whole"


def _taken(node: ast.ImportFrom) -> Iterator[str]:
    """What is imported by name may be called by another one."""
    if node.level or (node.module or "").partition(".")[0] != "vllm":
        for alias in node.names:
            if alias.name in _CHANGING or alias.name.startswith(_STARTERS):
                yield alias.name
            elif alias.name == "*" and node.module in ("os", "posix"):
                yield f"from {node.module} import *"


def _is_reading(node: ast.expr, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether the environment `node` is only read, or changed by a variable that is named."""
    above = parents.get(node)
    if isinstance(above, ast.Subscript):
        return above.value is node and isinstance(above.slice, ast.Constant)
    if isinstance(above, ast.Attribute):
        call = parents.get(above)
        named = isinstance(call, ast.Call) and isinstance((*call.args, None)[0], ast.Constant)
        return above.attr in _READING or (above.attr in _NAMING and named)
    if isinstance(above, ast.Call):
        return node is not above.func and ast.unparse(above.func) in ("dict", "len", "print")
    # `"A" in os.environ`, `{**os.environ}`
    return isinstance(above, (ast.Compare, ast.Dict))
