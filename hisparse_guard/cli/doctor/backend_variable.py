"""Whether a vLLM tree obeys its own variable for the backend, read from its source."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from hisparse_guard.cli.doctor.signs import code_files
from hisparse_guard.runtime.state import ENV_BACKEND
from hisparse_guard.runtime.telemetry.build_class import (
    ALL_REDUCE,
    RESOLVER,
    functions,
    module_source,
)

# As text: who sets it, but for code that sets it to trtllm.
_NAMED = re.compile(rf"[\"']{ENV_BACKEND}[\"'](?!\]\s*=\s*[\"']trtllm[\"'])".encode())
_ANSWERS = ("return backend", "return (backend, False)")


def obeys_variable(folders: Sequence[str], plugins: Sequence[str]) -> bool:
    """Whether the resolver of vLLM in `folders` answers what the variable says, and nothing else
    there or in `plugins` names the variable. False also where that is written in another way."""
    vllm = [Path(folder) for folder in folders]
    try:
        resolver = functions(ast.parse(module_source(vllm, ALL_REDUCE) or b""))[RESOLVER]
        envs = ast.parse(module_source(vllm, "vllm.envs") or b"")
        others = any(_names(Path(folder)) for folder in (*folders, *plugins))
    except (KeyError, OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return _answers_it_first(resolver) and _reads_it(envs) and not others


def _answers_it_first(resolver: ast.FunctionDef) -> bool:
    body = resolver.body[1:] if ast.get_docstring(resolver) else resolver.body
    if len(body) < 2 or resolver.decorator_list:
        return False
    taken, test = body[:2]
    return (
        ast.unparse(taken) == f"backend = envs.{ENV_BACKEND}"
        and isinstance(test, ast.If)
        and ast.unparse(test.test) == "backend != 'auto'"
        and all(ast.unparse(node).startswith("logger.") for node in test.body[:-1])
        and ast.unparse(test.body[-1]) in _ANSWERS
    )


def _reads_it(envs: ast.Module) -> bool:
    """Whether the table of variables reads it, once, from the environment."""
    constants = [
        n for n in ast.walk(envs) if isinstance(n, ast.Constant) and n.value == ENV_BACKEND
    ]
    entries = [
        value
        for table in ast.walk(envs)
        if isinstance(table, ast.Dict)
        for key, value in zip(table.keys, table.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == ENV_BACKEND
    ]
    return (
        len(constants) == 2
        and len(entries) == 1
        and ast.unparse(entries[0]).startswith(f"env_with_choices('{ENV_BACKEND}', ")
    )


def _names(folder: Path) -> bool:
    return any(
        problem is not None or _NAMED.search(path.read_bytes()) is not None
        for path, problem in code_files(folder)
        if path.name != "envs.py" or path.parent != folder
    )
