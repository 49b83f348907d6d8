"""Whether each of the runtime's patches can be applied to a vLLM tree, read from its source.

What is patched is the runtime's own table, and what a known answer is, its own parser says.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hisparse_guard.cli.doctor.model import Finding
from hisparse_guard.runtime.decision import parse_answer
from hisparse_guard.runtime.state import ENV_BACKEND
from hisparse_guard.runtime.telemetry.build_class import RESOLVER, module_source

State = Literal["ok", "absent", "unfit", "unknown"]
# Decorators that give back a function that is called as the one they decorate, by where they are
# from; and those of them that do not change what it answers.
_CACHES = {"functools.cache", "functools.lru_cache"}
_PLAIN_DECORATORS = {
    *_CACHES,
    *("contextlib.contextmanager", "functools.wraps", "torch.no_grad", "torch.inference_mode"),
}
# The one variable of vLLM's whose choices are known.
_DEPTH = 4
_ORDER: tuple[State, ...] = ("ok", "unknown", "unfit", "absent")


class Found(NamedTuple):
    state: State
    text: str
    function: ast.FunctionDef | None = None
    module: str = ""


class Unreadable(Exception):
    """A shape that is not understood; the text says which."""


class Source:
    """Modules of one vLLM tree as syntax trees."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = [Path(folder) for folder in folders]
        self._trees: dict[str, ast.Module | None] = {}

    def tree(self, module: str) -> ast.Module | None:
        """The syntax tree of `module`; None where there is no such module.

        Raises:
            Unreadable: it is there and cannot be read.
        """
        if module not in self._trees:
            try:
                text = module_source(self._folders, module)
                self._trees[module] = None if text is None else ast.parse(text)
            except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise Unreadable(f"{module} cannot be read: {error}") from None
        return self._trees[module]

    def function(self, module: str, name: str, depth: int = 0) -> Found:
        """What `name` is in `module` once that was executed."""
        try:
            tree = self.tree(module)
        except Unreadable as error:
            return Found("unknown", str(error))
        if tree is None:
            return Found("absent", f"{module} is not there")
        bound = list(_bindings(tree.body, name))
        if not bound:
            dynamic = _dynamic(tree)
            if dynamic:
                return Found("unknown", f"whether {module} has {name} cannot be told: {dynamic}")
            return Found("absent", f"{module} has no {name}")
        if replaced := _replaces_names(tree):
            return Found("unknown", f"what {name} is in {module} cannot be told: {replaced}")
        if bound[0] not in tree.body:
            return Found("unknown", f"{module} binds {name} under a condition")
        if len(bound) > 1 or _rebound_later(tree, name):
            every = [self._bound(module, one, name, depth) for one in bound]
            if all(one.state == "unfit" for one in every):
                return every[-1]
            return Found("unknown", f"{module} binds {name} in more than one way")
        return self._bound(module, bound[0], name, depth)

    def _bound(self, module: str, node: ast.stmt, name: str, depth: int) -> Found:
        where = f"{module}.{name}"
        if isinstance(node, ast.ClassDef):
            return Found("unfit", f"{where} is a class and no function")
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            tree = self.tree(module)
            odd = [d for d in node.decorator_list if _from_where(d, tree) not in _PLAIN_DECORATORS]
            if odd:
                return Found("unknown", f"{where} is decorated with {ast.unparse(odd[0])}")
            if isinstance(node, ast.AsyncFunctionDef):
                return Found("unfit", f"{where} is a coroutine function")
            return Found("ok", where, node, module)
        if isinstance(node, ast.ImportFrom) and depth < _DEPTH:
            origin = _origin(node, module, self._is_package(module))
            original = next(a.name for a in node.names if (a.asname or a.name) == name)
            if origin.partition(".")[0] == "vllm":
                found = self.function(origin, original, depth + 1)
                return found._replace(state="unknown") if found.state == "absent" else found
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and depth < _DEPTH:
            return self.function(module, node.value.id, depth + 1)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            return Found("unfit", f"{where} is no function")
        return Found("unknown", f"what {where} is cannot be told: {ast.unparse(node)[:80]}")

    def _is_package(self, module: str) -> bool:
        relative = Path(*module.split(".")[1:], "__init__.py")
        return any((folder / relative).is_file() for folder in self._folders)


def check_patches(folders: Sequence[str], patches: Sequence[Any]) -> Iterator[Finding]:
    """Goes over the runtime's table of patches; yields what cannot be patched, or that all can."""
    source, fine = Source(folders), 0
    for patch in patches:
        found = [source.function(module, patch.name) for module in patch.modules]
        best = min(found, key=lambda one: _ORDER.index(one.state))
        if best.state == "ok":
            fine += 1
            held = _held_at_import(source.tree(best.module), patch.name) if patch.needed else None
            if held is not None:
                text = (
                    f"{best.module} takes hold of {patch.name} in line {held}, before it is patched"
                )
                yield Finding("unknown", "patches", text)
        elif best.state != "absent":
            level: Any = "fix" if best.state == "unfit" else "unknown"
            yield Finding(level, "patches", f"{best.text}: the guard does not know this form of it")
        elif patch.needed:
            yield Finding("fix", "patches", f"{best.text}: there the guard cannot act")
        else:
            yield Finding("note", "patches", f"{best.text}: docs/audit.md says what that costs")
        if patch.name == RESOLVER and best.function is not None:
            yield from _check_answer(source, best)
    yield Finding("ok", "patches", f"{fine} functions of vLLM are there and can be wrapped")


def _check_answer(source: Source, resolver: Found) -> Iterator[Finding]:
    assert resolver.function is not None
    where = f"{resolver.module}.{resolver.function.name}"
    decorators = resolver.function.decorator_list
    try:
        if {_from_where(one, source.tree(resolver.module)) for one in decorators} - _CACHES:
            raise Unreadable(f"it is decorated with {ast.unparse(decorators[0])}")
        for shape in _answers(source, resolver.module, resolver.function):
            if parse_answer(shape) is None:
                text = f"{where} answers {shape!r}, a shape that the guard does not know: it would"
                yield Finding("fix", "patches", f"{text} leave that answer as it is")
                return
    except Unreadable as error:
        text = f"whether the guard knows what {where} answers cannot be told: {error}"
        yield Finding("unknown", "patches", text)


# What a resolver answers --------------------------------------------------------------------------


def _answers(
    source: Source, module: str, function: ast.FunctionDef, depth: int = 0
) -> Iterator[Any]:
    """An example of each answer that `function` can give.

    Raises:
        Unreadable: an answer is made in a way that is not followed.
    """
    own = list(_own_nodes(function))
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in own):
        raise Unreadable("it is a generator")
    returns = [node for node in own if isinstance(node, ast.Return)]
    if not returns:
        raise Unreadable("it returns nothing")
    for node in returns:
        value = node.value
        called = _last_name(value) if isinstance(value, ast.Call) else None
        if called and isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            helper = source.function(module, called) if depth < _DEPTH else None
            if helper is None or helper.function is None:
                raise Unreadable(f"it returns {ast.unparse(value)}")
            yield from _answers(source, helper.module, helper.function, depth + 1)
        elif isinstance(value, ast.Tuple):
            yield from _tuples(value, own)
        else:
            yield from _backends(value, own)


def _tuples(value: ast.Tuple, own: list[ast.AST]) -> Iterator[Any]:
    if len(value.elts) != 2:
        yield tuple("?" for _ in value.elts)
        return
    for backend in _backends(value.elts[0], own):
        for fallback in _values(value.elts[1], own, ast.Compare, ast.UnaryOp):
            yield backend, True if isinstance(fallback, ast.AST) else fallback


def _backends(value: ast.expr | None, own: list[ast.AST]) -> Iterator[Any]:
    for found in _values(value, own, ast.Attribute):
        if not isinstance(found, ast.AST):
            yield found
        elif ast.unparse(found) in (f"envs.{ENV_BACKEND}", f"vllm.envs.{ENV_BACKEND}"):
            yield "mnnvl"
        else:
            raise Unreadable(f"it returns {ast.unparse(found)}")


def _values(value: ast.expr | None, own: list[ast.AST], *kinds: type[ast.expr]) -> Iterator[Any]:
    """The constants that `value` can be, and expressions of `kinds` as they are."""
    if value is None:
        yield None
    elif isinstance(value, ast.Constant):
        yield value.value
    elif isinstance(value, ast.IfExp):
        yield from _values(value.body, own, *kinds)
        yield from _values(value.orelse, own, *kinds)
    elif isinstance(value, ast.Name):
        assigned = list(_assigned(value.id, own))
        if not assigned:
            raise Unreadable(f"it returns {value.id}, which comes from elsewhere")
        for one in assigned:
            if isinstance(one, ast.Name) and one.id == value.id:
                raise Unreadable(f"it returns {value.id}")
            yield from _values(one, own, *kinds)
    elif kinds and isinstance(value, kinds):
        if isinstance(value, ast.UnaryOp) and not isinstance(value.op, ast.Not):
            raise Unreadable(f"it returns {ast.unparse(value)}")
        yield value
    else:
        raise Unreadable(f"it returns {ast.unparse(value)[:80]}")


def _assigned(name: str, own: list[ast.AST]) -> Iterator[ast.expr]:
    for node in own:
        # `except … as name`, `case name`, and `with … as name` below.
        if getattr(node, "name", None) == name:
            raise Unreadable(f"it takes {name} from {ast.unparse(node)[:60]}")
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.withitem):
            targets = [node.optional_vars]
        for target in targets:
            if isinstance(target, ast.Name) and target.id == name:
                value = getattr(node, "value", None)
                if value is None or isinstance(node, ast.AugAssign):
                    raise Unreadable(f"it computes {name}")
                yield value
            elif target is not None and name in {
                n.id for n in ast.walk(target) if isinstance(n, ast.Name)
            }:
                raise Unreadable(f"it unpacks {name} from {ast.unparse(node)[:60]}")


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The nodes of `function` without those of functions and classes in it."""
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            pending.extend(ast.iter_child_nodes(node))


# Module level -------------------------------------------------------------------------------------


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, those in its conditions and blocks included."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody"):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield from _statements(getattr(node, name, []))
        for handler in getattr(node, "handlers", []):
            yield from _statements(handler.body)


def _bindings(body: Sequence[ast.stmt], name: str) -> Iterator[ast.stmt]:
    for node in _statements(body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if node.name == name:
                yield node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            if any((a.asname or a.name) == name for a in node.names):
                yield node
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Delete, ast.For)):
            targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
            for target in targets:
                if target is not None and any(
                    isinstance(n, ast.Name) and n.id == name for n in ast.walk(target)
                ):
                    yield node


def _held_at_import(tree: ast.Module | None, name: str) -> int | None:
    """The line where a module takes hold of its function as it is executed, which is before it is
    patched: in an assignment, a default, a decorator."""
    pending: list[ast.AST] = list(tree.body) if tree is not None else []
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            return node.lineno
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            pending += [node.args, *getattr(node, "decorator_list", [])]
        else:
            pending.extend(ast.iter_child_nodes(node))
    return None


def _dynamic(tree: ast.Module) -> str | None:
    """What in a module may bind names that are not in its source."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__getattr__":
            return "it has a __getattr__"
    return _replaces_names(tree)


def _replaces_names(tree: ast.Module) -> str | None:
    """What in a module may give its names another meaning than its statements say."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(a.name == "*" for a in node.names):
            return f"from {node.module} import *"
        if isinstance(node, ast.Call) and _last_name(node) in ("globals", "exec"):
            return f"it calls {_last_name(node)}"
        if isinstance(node, (ast.Assign, ast.Delete)):
            for target in map(ast.unparse, node.targets):
                if target.startswith("sys.modules"):
                    return f"it changes {target}"
    for statement in _statements(tree.body):
        if isinstance(statement, ast.Expr) and _last_name(statement.value) == "setattr":
            return "it calls setattr"
    return None


def _from_where(decorator: ast.expr, tree: ast.Module | None) -> str:
    """The full name of a decorator that the module imports; '' for what it makes itself."""
    if isinstance(decorator, ast.Call):
        decorator = decorator.func
    first, _, rest = ast.unparse(decorator).partition(".")
    bound = list(_bindings(tree.body if tree else (), first))
    if len(bound) != 1 or not isinstance(bound[0], (ast.Import, ast.ImportFrom)):
        return ""
    original = next(a.name for a in bound[0].names if (a.asname or a.name) == first)
    parts = [getattr(bound[0], "module", None), original, rest]
    return ".".join(part for part in parts if part)


def _rebound_later(tree: ast.Module, name: str) -> bool:
    """Whether something other than a statement may bind `name`, or code that names it as text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Global) and name in node.names:
            return True
        if isinstance(node, ast.NamedExpr) and node.target.id == name:
            return True
        if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name == name:
            return True
        # setattr(module, "name", …), globals()["name"] = …
        texts = [*node.args] if isinstance(node, ast.Call) else []
        texts += [node.slice] if isinstance(node, ast.Subscript) else []
        if any(isinstance(text, ast.Constant) and text.value == name for text in texts):
            return True
    return False


def _last_name(node: ast.expr | None) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _origin(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parents = module.split(".")
    parents = parents[: len(parents) - node.level + is_package]
    return ".".join([*parents, *filter(None, [node.module])])
