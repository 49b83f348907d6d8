"""What real vLLM logs at ERROR and above: known, known to be harmless, or not health."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from hisparse_guard.cli.triage import triage
from tests.cli.triage.logs import line, request, served, start, stats, workspace
from tests.support.environments import vllm_release

RELEASES = ("0.30.0", "0.31.0", "0.32.0", "0.33.0", "0.34.0")
# Engine, executor, worker and entry modules, and the process that each logs from.
FOLDERS = {
    "v1/engine": "EngineCore_DP0 pid=648",
    "v1/executor": "EngineCore_DP0 pid=648",
    "v1/worker": "Worker_TP0 pid=703",
    "v1/utils.py": "APIServer pid=588",
    "entrypoints": "APIServer pid=588",
}
CALLS = {"error", "exception", "critical", "error_once", "fatal"}


def messages(tree: Path) -> Iterator[tuple[str, str, str]]:
    """Of each call: the process it logs from, its place, and the message as it is logged."""
    for folder, process in FOLDERS.items():
        root = tree / folder
        for file in sorted([root] if root.is_file() else root.rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                    continue
                if node.func.attr in CALLS and "log" in ast.unparse(node.func.value).lower():
                    text = message(node.args[0]) if node.args else ""
                    yield process, f"{file.name}:{node.lineno}", text


def message(node: ast.expr) -> str:
    """A format string with its parts filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
    elif isinstance(node, ast.JoinedStr):
        text = "".join(
            part.value if isinstance(part, ast.Constant) else "7" for part in node.values
        )
    else:
        text = "7"
    for letter in "sdrfi":
        text = text.replace(f"%{letter}", "7")
    return text.split("\n")[0]


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_no_message_of_vllm_is_taken_for_health(release: str, tmp_path: Path) -> None:
    found = sorted({*messages(vllm_release(release) / "vllm")})
    assert len(found) > 50
    harmless = []
    for number, (process, place, text) in enumerate(found):
        path = tmp_path / f"{number}.log"
        log = [start(), workspace("trtllm"), served(), stats(), request()]
        path.write_text("\n".join([*log, line(process, text, "ERROR", file=place)]) + "\n")
        result = triage([str(path)])
        if result.exit_code == 0:
            harmless.append(text)
            assert sum(result.runs[0].run.excused.values()) == 1, text
        else:
            assert result.exit_code in (1, 4), text
    # Few are harmless, and all of them are what a client did wrong.
    assert len({*harmless}) <= 6, harmless
