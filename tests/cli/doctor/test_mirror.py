"""Whether `finish_kv_update` skips the host mirror under FULL CUDA graphs, from its source."""

from __future__ import annotations

import pytest

from hisparse_guard.cli.doctor.checks.mirror import skips_under_full_graphs
from tests.support.environments import HISPARSE_RELEASES, vllm_release

SUBMIT = "self.submit_layer_mirror()"
MODE = "get_forward_context().cudagraph_runtime_mode"


def written(body: str) -> str:
    lines = "\n".join("        " + line for line in body.splitlines())
    return f"class Runtime:\n    def finish_kv_update(self) -> None:\n{lines}\n"


@pytest.mark.parametrize("version", HISPARSE_RELEASES)
def test_releases_skip_it(version: str) -> None:
    source = (vllm_release(version) / "vllm/v1/hisparse/runtime.py").read_text()
    assert skips_under_full_graphs(source) is True


@pytest.mark.parametrize("version", HISPARSE_RELEASES)
def test_the_same_source_without_the_condition_does_not(version: str) -> None:
    source = (vllm_release(version) / "vllm/v1/hisparse/runtime.py").read_text()
    condition = f"            and {MODE} != CUDAGraphMode.FULL\n"
    assert source.count(condition) == 1
    assert skips_under_full_graphs(source.replace(condition, "")) is False


@pytest.mark.parametrize(
    ("body", "skips"),
    [
        (f"if {MODE} != CUDAGraphMode.FULL:\n    {SUBMIT}", True),
        (f"if {MODE} is not CUDAGraphMode.FULL and self.x:\n    {SUBMIT}", True),
        (f"if not {MODE} == CUDAGraphMode.FULL:\n    {SUBMIT}", True),
        (f"if {MODE} == CUDAGraphMode.FULL:\n    return\n{SUBMIT}", True),
        (f"if {MODE} == CUDAGraphMode.FULL:\n    pass\nelse:\n    {SUBMIT}", True),
        (f"if self.dummy_batch:\n    return\n{SUBMIT}", False),
        (f"if {MODE} == CUDAGraphMode.FULL:\n    {SUBMIT}", False),
        (f"if self.a:\n    if {MODE} != CUDAGraphMode.FULL:\n        {SUBMIT}", True),
        (f"if {MODE} in (CUDAGraphMode.FULL, 3):\n    return\n{SUBMIT}", None),
        (f"if {MODE} != CUDAGraphMode.FULL or self.x:\n    {SUBMIT}", None),
        ("return", None),
        ("def broken(:", None),
    ],
)
def test_shapes(body: str, skips: bool | None) -> None:
    assert skips_under_full_graphs(written(body)) is skips
