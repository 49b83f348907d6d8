"""The wrappers under torch.compile, which takes a wrapped function for the function in it.

On real vLLM 0.31 and 0.33 torch 2.13 fails to trace the collectives on the way to a workspace, with
the guard and without. A fork's resolver without any is traced from end to end.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import harness
from tests.startup.sandbox import hisparse_folder
from tests.support.bundles import bundled

USES = {
    # The getter is inlined, and what it calls.
    "made in traced code": """
with config.set_current_vllm_config(config.given):
    pass
def forward(x):
    return x + 1 if fi.get_fi_ar_workspace() else x
""",
    # A closure is in this one, which torch's guards cannot see through a wrapper.
    "context in traced code": """
def forward(x):
    with config.set_current_vllm_config(config.given):
        return x + 1
""",
    # There by the time the model is compiled, and not verified yet.
    "there before": """
with config.set_current_vllm_config(config.given):
    pass
fi.workspace = fi._create_workspace("trtllm", None)
fullgraph = True
def forward(x):
    return x + 1 if fi.get_fi_ar_workspace().backend == "trtllm" else x
""",
}
RUN = """
import json, torch, vllm.config as config
import vllm.distributed.device_communicators.flashinfer_all_reduce as fi
fullgraph = False
%s
answer = torch.compile(forward, backend="eager", fullgraph=fullgraph)(torch.zeros(1))
print(json.dumps([answer.tolist(), fi.get_fi_ar_workspace().backend]))
"""


def result(use: str, path: list[Path]) -> Any:
    code = f"{RUN % USES[use]}{harness.LEAVE}"
    done = harness.forks("vllm").run({"name": use, "path": list(map(str, path)), "code": code})
    assert done["exit"] == 0, done["stderr"][-2000:]
    return json.loads(done["stdout"].splitlines()[-1])


@pytest.mark.parametrize("use", USES)
def test_compiled_code_is_guarded_too(use: str, tmp_path: Path) -> None:
    image = hisparse_folder(tmp_path / "image")
    alone = "trtllm" if use == "there before" else "mnnvl"
    assert result(use, [image]) == [[1.0], alone]
    assert result(use, [bundled(tmp_path / "guard.zip"), image]) == [[1.0], "trtllm"]
