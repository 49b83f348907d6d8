"""What real vLLM logs at ERROR and above: known, known to be harmless, or not health."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from hisparse_guard.cli.triage import triage
from tests.cli.triage.logs import line, request, start, started_up, stats, traceback, workspace
from tests.cli.triage.test_inputs import lead
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
        log = [start(), workspace("trtllm"), started_up(), stats(), request()]
        path.write_text("\n".join([*log, line(process, text, "ERROR", file=place)]) + "\n")
        result = triage([str(path)])
        if result.exit_code == 0:
            harmless.append(text)
            assert sum(result.runs[0].run.harmless.values()) == 1, text
        else:
            assert result.exit_code in (1, 4), text
    # Few are harmless, and all of them are what a client did wrong.
    assert len({*harmless}) <= 6, harmless


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_what_vllm_raises_for_too_little_gpu_memory_is_known(release: str, tmp_path: Path) -> None:
    tree = vllm_release(release) / "vllm" / "v1"
    found = {
        text
        for file in [*tree.glob("core/kv_cache_*.py"), *tree.glob("worker/utils.py")]
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args
        if ("memory" in (text := message(node.exc.args[0])) and "GiB" in text) or "gpu_mem" in text
    }
    assert len(found) >= 3
    for text in found:
        path = tmp_path / "vllm.log"
        error = traceback(0, [("vllm/v1/worker/utils.py", 1, "x", "raise")], f"ValueError: {text}")
        path.write_text(f"{start(connector='None')}\n{error}\n")
        assert lead(triage([str(path)]))[:1] == [("gpu-out-of-memory", "proven")], text
