"""What PyTorch was built for: FlashInfer's all-reduce is CUDA's."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from hisparse_guard.cli.doctor.model import Facts, Finding


def platform(facts: Facts) -> Iterator[Finding]:
    found = facts.seen.get("torch") or {}
    if not facts.concerned or not found.get("folders"):
        return
    built = _built_for(Path(found["folders"][0], "version.py"))
    if built is None:
        yield Finding("note", "platform", "what this PyTorch was built for cannot be told")
    elif built.startswith("CUDA"):
        yield Finding("ok", "platform", f"PyTorch for {built}")
    else:
        yield Finding(
            "note",
            "platform",
            f"PyTorch for {built}, not CUDA: FlashInfer's all-reduce is CUDA's, so no workspace is "
            "made here, and the guard gets in and does nothing",
        )


def _built_for(file: Path) -> str | None:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    values: dict[str, object] = {}
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Constant):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            values[ast.unparse(target)] = node.value.value
    for name, title in (("cuda", "CUDA"), ("hip", "ROCm"), ("xpu", "XPU")):
        if values.get(name):
            return f"{title} {values[name]}"
    return "the CPU" if "+cpu" in str(values.get("__version__")) else None
