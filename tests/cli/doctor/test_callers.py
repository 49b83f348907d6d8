"""Calls that do not pass what init resolved: on real releases, derived trees and written files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hisparse_guard.cli.doctor.callers import Unreadable, find_unpassed_calls
from tests.conformance import harness
from tests.support import environments

ALL_REDUCE = "vllm/distributed/device_communicators/flashinfer_all_reduce.py"
PASS = "vllm/compilation/passes/fusion/allreduce_rms_fusion.py"
FUSED = "vllm/model_executor/layers/fused_allreduce_gemma_rms_norm.py"
WORKSPACE, QUANT = "get_fi_ar_workspace", "get_fi_ar_quant_workspace"


def found(name: str) -> list[tuple[str, str, str]]:
    calls = find_unpassed_calls(harness.tree(name) / "vllm")
    return [(call.file, call.function, call.getter) for call in calls]


def test_vllm_0_34_0() -> None:
    root = environments.vllm_release("0.34.0")
    calls = find_unpassed_calls(root / "vllm")
    muse = "vllm/models/muse_spark/nvidia/specialized_decode/runtime/flashinfer_ops.py"
    qwen = "vllm/models/qwen3_5/nvidia/ops/fused_allreduce_norm_quant.py"
    assert [(call.file, call.function, call.getter) for call in calls] == [
        (PASS, "call_trtllm_fused_allreduce_norm", f"{QUANT} or {WORKSPACE}"),
        (PASS, "AllReduceFusionPass.__init__", WORKSPACE),
        (PASS, "AllReduceFusionPass.__init__", QUANT),
        (ALL_REDUCE, "FlashInferAllReduce.should_use_fi_ar", WORKSPACE),
        (ALL_REDUCE, "FlashInferAllReduce.all_reduce", WORKSPACE),
        (FUSED, "_can_use_flashinfer", WORKSPACE),
        (muse, "stock_all_reduce", WORKSPACE),
        (qwen, "_get_workspace", QUANT),
    ]
    assert all(call.matters for call in calls)
    for call in calls:
        line = (root / call.file).read_text().splitlines()[call.line - 1]
        assert "workspace" in line and "(" in line


@pytest.mark.parametrize("name", ["fixed-backend", "fixed-choice"])
def test_the_fix_with_a_renamed_parameter(name: str) -> None:
    before = [call for call in found("0.33.0") if call[0] == ALL_REDUCE]
    after = [call for call in found(name) if call[0] == ALL_REDUCE]
    assert (ALL_REDUCE, "FlashInferAllReduce._ensure_workspace", WORKSPACE) in before
    assert after == []


def test_where_nothing_can_be_passed_no_setting_is_named() -> None:
    calls = find_unpassed_calls(environments.vllm_release("0.33.0") / "vllm")
    assert calls and all(call.matters is None for call in calls)


def package(home: Path, text: str) -> Path:
    """0.34.0's getters, and one more module that holds `text`."""
    module = home / ALL_REDUCE
    module.parent.mkdir(parents=True)
    source = (environments.vllm_release("0.34.0") / ALL_REDUCE).read_text()
    module.write_text(source[: source.index("class FlashInferAllReduce")])
    (home / "vllm" / "caller.py").write_text(text)
    return home / "vllm"


FROM = "from vllm.distributed.device_communicators.flashinfer_all_reduce import "


@pytest.mark.parametrize(
    ("text", "line", "getter"),
    [
        (f"{FROM}{WORKSPACE} as ws\nws(1, 2)", 2, WORKSPACE),
        (f"import vllm.x as fi\ndef f():\n  return fi.{QUANT}(**kw)", 3, QUANT),
        (f"{FROM}{WORKSPACE}\nget = {WORKSPACE}\nagain = get\nagain()", 4, WORKSPACE),
        (f"{WORKSPACE} = None\nif {WORKSPACE}:\n  {WORKSPACE}()", 3, WORKSPACE),
        (f"class A:\n  get = fi.{WORKSPACE}\n  def f(self):\n    self.get()", 4, WORKSPACE),
        (f"getattr(fi, '{WORKSPACE}')(group=g)", 1, WORKSPACE),
        (f"functools.partial({WORKSPACE}, group=g)", 1, WORKSPACE),
        (f"({QUANT} if quant else {WORKSPACE})()", 1, f"{QUANT} or {WORKSPACE}"),
        (f"{WORKSPACE}(resolved_backend=None)", 1, WORKSPACE),
        (f"{WORKSPACE}(resolved_backend=_resolve_fi_ar_backend(g))", 1, WORKSPACE),
        (f"r = _resolve_fi_ar_backend(g)\n{WORKSPACE}(resolved_backend=r)", 2, WORKSPACE),
        (f"kw = dict(group=g)\n{WORKSPACE}(**kw)", 2, WORKSPACE),
        (f"async def f():\n  x = await g({WORKSPACE}(1))", 2, WORKSPACE),
        # The getter takes no such thing.
        (f"{QUANT}(resolved_backend=self.resolved)", 1, QUANT),
    ],
)
def test_a_call_that_does_not_pass_it(tmp_path: Path, text: str, line: int, getter: str) -> None:
    (call,) = find_unpassed_calls(package(tmp_path, text))
    assert (call.file, call.line, call.getter) == ("vllm/caller.py", line, getter)


@pytest.mark.parametrize(
    "text",
    [
        f"{WORKSPACE}(group=g, resolved_backend=self.resolved)",
        f"{WORKSPACE}(1, 2, 3, 4, t, g, self.resolved)",
        f"ws = {WORKSPACE}\nws(resolved_backend=resolved)",
        f"kw = dict(group=g, resolved_backend=self.resolved)\n{WORKSPACE}(**kw)",
        f"functools.partial({WORKSPACE}, resolved_backend=self.resolved)",
        f"# {WORKSPACE}()\n'''{WORKSPACE}()'''",
    ],
)
def test_a_call_that_passes_it(tmp_path: Path, text: str) -> None:
    assert find_unpassed_calls(package(tmp_path, text)) == []


def test_what_cannot_be_searched_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="no Python source"):
        find_unpassed_calls(tmp_path)
    with pytest.raises(Unreadable, match=r"caller\.py cannot be read"):
        find_unpassed_calls(package(tmp_path, f"{WORKSPACE}(\n"))
