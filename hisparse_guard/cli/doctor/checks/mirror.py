"""The second HiSparse fault family: prefill updates that never reach the host mirror.

vLLM's `finish_kv_update` leaves out `submit_layer_mirror()` while a FULL CUDA graph runs (vLLM
#56699, read in 0.30.0 to 0.33.0). It is the strongest lead for crashes in the host-mirror path
that the all-reduce backend has nothing to do with, and not a proven cause.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from hisparse_guard.cli.doctor.model import Facts, Finding

FUNCTION = "finish_kv_update"
SUBMIT = "submit_layer_mirror"
MODE = "cudagraph_runtime_mode"
FULL = "FULL"


def mirror(facts: Facts) -> Iterator[Finding]:
    found = module_and_source(facts) if facts.concerned else None
    if found is not None:
        yield _said(f"{found[0]}.{FUNCTION}", found[1])


def module_and_source(facts: Facts) -> tuple[str, str] | None:
    """The module of `finish_kv_update`, and its text; None where there is none."""
    for folder in facts.folders:
        for file in sorted(Path(folder, "v1", "hisparse").glob("*.py")):
            try:
                source = file.read_text(encoding="utf-8", errors="replace")
            except OSError:
                # Said of the whole tree.
                continue
            if SUBMIT in source and f"def {FUNCTION}" in source:
                return f"vllm.v1.hisparse.{file.stem}", source
    return None


def _said(name: str, source: str) -> Finding:
    skips = skips_under_full_graphs(source)
    if skips:
        return Finding(
            "note",
            "host mirror",
            f"{name} skips the host mirror under FULL CUDA graphs: a lead for crashes in the "
            "host-mirror path (vLLM #56699), which this guard does not touch",
        )
    if skips is False:
        text = f"{name} submits the host mirror under FULL graphs too"
        return Finding("ok", "host mirror", text)
    return Finding(
        "note",
        "host mirror",
        f"whether {name} skips it under FULL graphs cannot be told: it is written in a way not "
        "known here",
    )


def skips_under_full_graphs(source: str) -> bool | None:
    """Whether `finish_kv_update` in `source` skips the host mirror under FULL graphs.

    Returns:
        None where the function is not there, submits nothing, or compares the graph mode in a
        way that this does not understand.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == FUNCTION
    ]
    for function in found:
        if any(_submits(node) for node in ast.walk(function)):
            return _skips(function.body)
    return None


def _submits(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == SUBMIT
    )


def _skips(body: list[ast.stmt]) -> bool | None:
    """Follows `body` to the call, through conditions that a FULL graph meets or fails."""
    for statement in body:
        if isinstance(statement, ast.If):
            inside = any(_submits(n) for s in statement.body for n in ast.walk(s))
            otherwise = any(_submits(n) for s in statement.orelse for n in ast.walk(s))
            relation = _relation(statement.test)
            if inside:
                if relation == "unknown":
                    return None
                return True if relation == "not full" else _skips(statement.body)
            if otherwise:
                if relation == "unknown":
                    return None
                return True if relation == "full" else _skips(statement.orelse)
            leaves = any(isinstance(s, (ast.Return, ast.Raise)) for s in statement.body)
            if leaves and relation == "full":
                return True
            if leaves and relation == "unknown":
                return None
        elif any(_submits(node) for node in ast.walk(statement)):
            return False
    return None


def _relation(test: ast.expr) -> str | None:
    """What a condition asks of the graph mode: ``full``, ``not full``, ``unknown``, or None."""
    names = {n.attr for n in ast.walk(test) if isinstance(n, ast.Attribute)}
    names |= {n.id for n in ast.walk(test) if isinstance(n, ast.Name)}
    if MODE not in names and FULL not in names:
        return None
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        parts = {_relation(value) for value in test.values} - {None}
        return parts.pop() if len(parts) == 1 else "unknown"
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _relation(test.operand)
        return {"full": "not full", "not full": "full"}.get(inner or "", "unknown")
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and {MODE, FULL} <= names:
        if isinstance(test.ops[0], (ast.NotEq, ast.IsNot)):
            return "not full"
        if isinstance(test.ops[0], (ast.Eq, ast.Is)):
            return "full"
    return "unknown"
