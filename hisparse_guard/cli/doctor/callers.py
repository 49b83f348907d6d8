"""Calls that ask vLLM for a FlashInfer workspace without the backend resolved at init.

vLLM 0.34.0 lets `get_fi_ar_workspace` take what `FlashInferAllReduce.__init__` resolved while the
config was current. A call that does not pass it resolves afresh, usually outside the config's
context, and gets `mnnvl`. Found by syntax tree, in the whole package.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hisparse_guard.runtime.telemetry.build_class import (
    ALL_REDUCE,
    RESOLVER,
    functions,
    init_parameter,
    module_source,
    names,
)

GETTERS = ("get_fi_ar_workspace", "get_fi_ar_quant_workspace")

# In which settings a caller of vLLM 0.34 comes to make the workspace, by its file.
SETTINGS = {
    "distributed/device_communicators/flashinfer_all_reduce.py": (
        "the all-reduce on its own: only after the workspace was destroyed"
    ),
    "model_executor/layers/fused_allreduce_gemma_rms_norm.py": (
        "the fused operation of model code: first to ask with VLLM_ALLREDUCE_USE_FLASHINFER=0, "
        "VLLM_BATCH_INVARIANT=1 or the CUDA-checkpoint executor, and on groups over several nodes"
    ),
    "compilation/passes/fusion/allreduce_rms_fusion.py": (
        "torch.compile with the pass fuse_allreduce_rms"
    ),
}


class Unreadable(Exception):
    """The tree cannot be searched whole; the text says why."""


class Call(NamedTuple):
    """A call of a getter that does not pass what init resolved.

    Attributes:
        file: relative to the folder that holds the package, as ``vllm/…``.
        function: the qualified name of the function that calls; ``<module>`` outside any.
        getter: the getter called; two joined by ``or`` where the call chooses.
        matters: in which settings the call counts; None where that cannot be told, or where no
            call of this vLLM can pass it.
    """

    file: str
    line: int
    function: str
    getter: str
    matters: str | None

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def find_unpassed_calls(tree_root: Path) -> list[Call]:
    """Every such call below `tree_root`, the folder of the package ``vllm``.

    A getter handed on (to `functools.partial`, say) counts as a call. A name that a module gives
    to a getter is followed within its file only.

    Raises:
        Unreadable: a file that names a getter cannot be parsed, or there is no source.
    """
    files = sorted(tree_root.rglob("*.py"))
    if not files:
        raise Unreadable(f"no Python source in {tree_root}")
    parameters = _parameters(tree_root)
    calls: list[Call] = []
    for file in files:
        try:
            source = file.read_bytes()
            # Each name of a getter begins with this, and few files hold it.
            if b"get_fi_ar_" in source:
                name = file.relative_to(tree_root).as_posix()
                calls += _File(ast.parse(source), name, parameters).unpassed()
        except (OSError, SyntaxError, ValueError, RecursionError) as error:
            raise Unreadable(f"{file} cannot be read: {error}") from None
    return calls


def _parameters(tree_root: Path) -> dict[str, tuple[list[str], str | None]]:
    """For each getter its parameters by position, and the one for what init resolved."""
    try:
        defined = functions(ast.parse(module_source([tree_root], ALL_REDUCE) or b""))
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        raise Unreadable(f"{ALL_REDUCE} cannot be read: {error}") from None
    return {
        name: ([a.arg for a in defined[name].args.args], init_parameter(defined[name]))
        for name in GETTERS
        if name in defined
    }


class _File:
    """One module and the names that it gives to the getters."""

    def __init__(
        self, tree: ast.Module, name: str, parameters: dict[str, tuple[list[str], str | None]]
    ) -> None:
        self.tree, self.name, self.parameters = tree, name, parameters
        self.nodes = list(ast.walk(tree))
        self.aliases: dict[str, set[str]] = {getter: {getter} for getter in GETTERS}
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if alias.name in GETTERS and alias.asname:
                        self.aliases[alias.asname] = {alias.name}
        # Twice: a name may be given on before, in the order of the walk, it is given.
        for _ in range(2):
            for node in self.nodes:
                if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
                    self._bind(node)

    def _bind(self, node: ast.Assign | ast.AnnAssign | ast.NamedExpr) -> None:
        getters = self.getters(node.value)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if getters and isinstance(target, (ast.Name, ast.Attribute)):
                name = target.id if isinstance(target, ast.Name) else target.attr
                self.aliases[name] = self.aliases.get(name, set()) | getters

    def getters(self, value: ast.expr | None) -> set[str]:
        """The getters that an expression can stand for."""
        if isinstance(value, ast.Name):
            return self.aliases.get(value.id, set())
        if isinstance(value, ast.Attribute):
            return self.aliases.get(value.attr, set())
        if isinstance(value, ast.IfExp):
            return self.getters(value.body) | self.getters(value.orelse)
        if isinstance(value, ast.BoolOp):
            return set().union(*map(self.getters, value.values))
        if isinstance(value, ast.NamedExpr):
            return self.getters(value.value)
        if isinstance(value, ast.Call) and "getattr" in names(value.func):
            return {name for part in value.args[1:2] for name in names(part)} & set(GETTERS)
        return set()

    def unpassed(self) -> Iterator[Call]:
        for owner, node in _with_function(self.tree, ()):
            # Called; or handed on to what will call it.
            handed = [*node.args, *(keyword.value for keyword in node.keywords)]
            called = self.getters(node.func)
            getters = called or set().union(*map(self.getters, handed))
            if getters and not all(self._passes(node, getter, bool(called)) for getter in getters):
                yield Call(
                    f"vllm/{self.name}",
                    node.lineno,
                    ".".join(owner) or "<module>",
                    " or ".join(sorted(getters)),
                    self._matters(),
                )

    def _matters(self) -> str | None:
        parts = self.name.split("/")
        if not any(parameter for _, parameter in self.parameters.values()):
            return None
        if parts[0] == "models" and len(parts) > 2 and parts[1] != "common":
            return f"servers of the model {parts[1]}"
        return SETTINGS.get(self.name)

    def _passes(self, call: ast.Call, getter: str, by_position: bool) -> bool:
        """Whether the call hands `getter` what was resolved before, and not nothing or afresh."""
        positional, parameter = self.parameters.get(getter, ([], None))
        if parameter is None:
            return False
        values = [k.value for k in call.keywords if k.arg == parameter]
        if by_position and not any(isinstance(a, ast.Starred) for a in call.args):
            by_name = dict(zip(positional, call.args, strict=False))
            values += [by_name[parameter]] if parameter in by_name else []
        spread = [k.value for k in call.keywords if k.arg is None]
        if any(self._holds(value, parameter) for value in spread):
            return True
        return any(not self._nothing_or_afresh(value) for value in values)

    def _holds(self, spread: ast.expr, parameter: str) -> bool:
        """Whether ``**spread`` is given the parameter wherever it is made in this file."""
        if not isinstance(spread, ast.Name):
            return parameter in names(spread)
        made = [
            parameter in names(node)
            for node in self.nodes
            if isinstance(node, ast.Assign) and any(spread.id in names(t) for t in node.targets)
        ]
        return bool(made) and all(made)

    def _nothing_or_afresh(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Constant) and value.value is None:
            return True
        if isinstance(value, ast.Name):
            made = [
                node.value
                for node in self.nodes
                if isinstance(node, ast.Assign)
                and any(isinstance(t, ast.Name) and t.id == value.id for t in node.targets)
            ]
            return any(RESOLVER in names(one) for one in made)
        return RESOLVER in names(value)


def _with_function(
    node: ast.AST, owner: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], ast.Call]]:
    """The calls below `node`, each with the qualified name of what it stands in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from _with_function(child, (*owner, child.name))
            continue
        if isinstance(child, ast.Call):
            yield owner, child
        yield from _with_function(child, owner)
