"""Runs scenarios on real vLLM trees: the releases, and builds derived from them."""

from __future__ import annotations

import functools
import json
import os
import re
from pathlib import Path
from typing import Any

from tests.support import environments
from tests.support.forks import Forks

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = Path(__file__).with_name("scenario.py")
MODULE = "vllm/distributed/device_communicators/flashinfer_all_reduce.py"

Job = dict[str, Any]


def _edit(text: str, *edits: tuple[str, str]) -> str:
    for pattern, replacement in edits:
        text, found = re.subn(pattern, replacement, text, flags=re.S)
        if not found:
            raise AssertionError(f"the release no longer holds {pattern!r}")
    return text


RULE = """
def _hisparse_is_on() -> bool:
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    return config is not None and config.attention_config.hisparse_config is not None


def _resolve_fi_ar_backend("""


def leaky(text: str) -> str:
    """vLLM main after PR #65201: the rule is there, read from the current config."""
    return _edit(
        text,
        (r"\ndef _resolve_fi_ar_backend\(", RULE.replace("\\", r"\\")),
        (
            r"(        return backend, False\n)(\n    node_count)",
            r'\1\n    if _hisparse_is_on():\n        return "trtllm", False\n\2',
        ),
    )


def fixed(parameter: str, attribute: str) -> Any:
    """The upstream fix: the getters take the backend resolved at init."""

    def edit(text: str) -> str:
        return _edit(
            leaky(text),
            (
                r"(def get_fi_ar(?:_quant)?_workspace\([^)]*group: ProcessGroup,\n)",
                rf"\1    {parameter}: str | None = None,\n",
            ),
            (
                r"    backend, allow_trtllm_fallback = _resolve_fi_ar_backend\(group\)\n",
                f"    if {parameter} is not None:\n"
                f"        backend, allow_trtllm_fallback = {parameter}, False\n"
                "    else:\n"
                "        backend, allow_trtllm_fallback = _resolve_fi_ar_backend(group)\n",
            ),
            (
                r"        backend, _ = _resolve_fi_ar_backend\(self\.group\)\n",
                "        backend, _ = _resolve_fi_ar_backend(self.group)\n"
                f"        self.{attribute} = backend\n",
            ),
            (
                r"(            group=self\.group,\n)(        \))",
                rf"\1            {parameter}=self.{attribute},\n\2",
            ),
        )

    return edit


def device_fork(text: str) -> str:
    """A public fork: the resolver is told a world size and a device, the getter a device."""
    return _edit(
        text,
        (
            r"def _resolve_fi_ar_backend\(group: ProcessGroup\)",
            "def _resolve_fi_ar_backend(world_size, device=None)",
        ),
        (r"    node_count = _node_count\(group\)\n    if node", "    node_count = 1\n    if node"),
        (r"_resolve_fi_ar_backend\(group\)", "_resolve_fi_ar_backend(world_size, device=device)"),
        (r"_resolve_fi_ar_backend\(self\.group\)", "_resolve_fi_ar_backend(self.world_size)"),
        (
            r"(def get_fi_ar(?:_quant)?_workspace\([^)]*group: ProcessGroup,\n)",
            r"\1    device=None,\n",
        ),
    )


def keyword_group(text: str) -> str:
    call = r"_resolve_fi_ar_backend\((self\.)?group\)"
    return _edit(text, (call, r"_resolve_fi_ar_backend(group=\1group)"))


def odd_shape(text: str) -> str:
    """An answer of a shape that nobody has seen yet."""
    return _edit(
        text,
        (r"return backend, allow_trtllm_fallback\n", "return backend, allow_trtllm_fallback, 3\n"),
        (
            r"backend, allow_trtllm_fallback = _resolve_fi_ar_backend\(group\)",
            "backend, allow_trtllm_fallback, _ = _resolve_fi_ar_backend(group)",
        ),
        (r"backend, _ = _resolve", "backend, *_ = _resolve"),
    )


def with_hisparse(text: str) -> str:
    """A fork with HiSparse on a base that has none: its config gains the field."""
    return _edit(
        text,
        (
            r"(@config[^\n]*\nclass AttentionConfig:\n    \"\"\".*?\"\"\"\n)",
            '@config\nclass HiSparseConfig:\n    """HiSparse."""\n\n'
            "    device_buffer_size: int = 0\n\n\n"
            r"\1"
            "\n    hisparse_config: HiSparseConfig | None = None\n"
            '    """HiSparse host-resident KV configuration."""\n',
        ),
    )


KEPT = """
_kept_fi_ar_backends = {}


def keep_fi_ar_backend(group):
    _kept_fi_ar_backends[id(group)] = _resolve_fi_ar_backend(group)


def kept_fi_ar_backend(group):
    return _kept_fi_ar_backends.get(id(group))


def get_fi_ar_workspace("""


def mended(text: str) -> str:
    """0.34.0's module, keeping for each group what was resolved while its config was current."""
    return _edit(
        text,
        (r"\ndef get_fi_ar_workspace\(", KEPT),
        (
            r"(def get_fi_ar_quant_workspace\([^)]*group: ProcessGroup,\n)",
            r"\1    resolved_backend: tuple[str | None, bool] | None = None,\n",
        ),
        (
            r"backend, allow_trtllm_fallback = _resolve_fi_ar_backend\(group\)\n",
            "backend, allow_trtllm_fallback = resolved_backend or _resolve_fi_ar_backend(group)\n",
        ),
        (
            r"(input_tensor\.dtype,\n            group=self\.group,\n)",
            r"\1            resolved_backend=self.resolved_backend,\n",
        ),
    )


def _passing(*patterns: str) -> Any:
    """Callers that pass what is kept for their group, as the last argument."""
    kept = "from vllm.distributed.device_communicators.flashinfer_all_reduce import (\n"
    kept += "    kept_fi_ar_backend,\n)\n"
    more = r"\1, resolved_backend=kept_fi_ar_backend(get_tp_group().cpu_group)\2"

    def edit(text: str) -> str:
        first = r"(\nimport torch\n)"
        edits = [(rf"({pattern})(,?\s*\))", more) for pattern in patterns]
        return _edit(text, (first, rf"\1{kept}"), *edits)

    return edit


def keeping_communicator(text: str) -> str:
    return _edit(
        text,
        (
            r"(            FlashInferAllReduce,\n        \)\n)",
            r"\1        from vllm.distributed.device_communicators import flashinfer_all_reduce\n\n"
            '        if unique_name.split(":")[0] == "tp":\n'
            r"            flashinfer_all_reduce.keep_fi_ar_backend(self.cpu_group)\n",
        ),
    )


GROUP = r"group=get_tp_group\(\)\.cpu_group"
MENDED = {
    MODULE: mended,
    "vllm/distributed/device_communicators/cuda_communicator.py": keeping_communicator,
    "vllm/model_executor/layers/fused_allreduce_gemma_rms_norm.py": _passing(GROUP),
    "vllm/models/qwen3_5/nvidia/ops/fused_allreduce_norm_quant.py": _passing(GROUP),
    "vllm/models/muse_spark/nvidia/specialized_decode/runtime/flashinfer_ops.py": _passing(
        r"group=wrapper\.group"
    ),
    "vllm/compilation/passes/fusion/allreduce_rms_fusion.py": _passing(
        GROUP, r"\*\*workspace_kwargs"
    ),
}

ATTENTION = "vllm/config/attention.py"
DERIVED: dict[str, tuple[str, dict[str, Any]]] = {
    "leaky": ("0.33.0", {MODULE: leaky}),
    "fixed-backend": ("0.33.0", {MODULE: fixed("backend", "backend")}),
    "fixed-choice": ("0.33.0", {MODULE: fixed("chosen", "_init_choice")}),
    "fork-0.24": ("0.24.0", {ATTENTION: with_hisparse}),
    "fork-0.25": ("0.25.1", {ATTENTION: with_hisparse}),
    "fork-device": ("0.33.0", {MODULE: device_fork}),
    "keyword-group": ("0.33.0", {MODULE: keyword_group}),
    "odd-shape": ("0.33.0", {MODULE: odd_shape}),
    # Every caller passes what was resolved while the config was current.
    "mended": ("0.34.0", MENDED),
}

# What a release imports that the one of the environment does not.
WANTS = {"0.19.1": (environments.gguf_path,)}


@functools.cache
def tree(name: str) -> Path:
    """A folder for ``sys.path`` that holds the vLLM of this name."""
    if name not in DERIVED:
        return environments.vllm_release(name)
    base, edits = DERIVED[name]
    release = environments.vllm_release(base)
    texts = {path: edit((release / path).read_text()) for path, edit in edits.items()}
    return environments.derived_tree(name, release, texts)


def classified(name: str) -> Any:
    from hisparse_guard.runtime.telemetry.build_class import build_class

    return build_class([str(tree(name) / "vllm")])


@functools.cache
def forks(*but: str) -> Forks:
    """An interpreter that has imported what a rank imports, but for the packages `but`.

    One in each test process, for all tests on real releases: it takes 15 s of CPU to start.
    """
    environment = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("HISPARSE_GUARD", "VLLM", "PYTHON"))
    }
    # Trees and `scenario.py` lie there, behind what a job puts in front.
    path = [tree("0.33.0"), SCENARIO.parent]
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, path))}
    # One thread each: the ranks of several tests share few cores.
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    python = environments.image_python()
    return Forks(interpreter=python, env=environment, like=["preload"], but=but)


# The end of a process with torch takes seconds.
LEAVE = "\nimport os, sys\nsys.stdout.flush()\nos._exit(0)\n"
RUN = f"""
import os, runpy, sys
sys.argv[:] = [{str(SCENARIO)!r}, "--jobs"]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    sys.stdout.flush()
    os._exit(end.code)
"""


def run_jobs(
    name: str,
    jobs: list[Job],
    *,
    guard: list[Path] | None,
    env: dict[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Runs `jobs` in one process that has imported neither vLLM nor the guard before.

    Args:
        guard: what is put on PYTHONPATH in front of vLLM; None for a control without the guard.
    """
    path = [*(guard or []), tree(name), *(folder() for folder in WANTS.get(name, ()))]
    # Another FlashInfer than the environment's may be in front.
    own = any((entry / "flashinfer").exists() for entry in path)
    done = forks("vllm", *(["flashinfer"] if own else [])).run(
        {
            "name": name,
            "code": RUN,
            "path": list(map(str, path)),
            "env": {"PYTHONPATH": os.pathsep.join(map(str, path)), **(env or {})},
            "stdin": json.dumps(jobs),
            "patience_s": 900,
        }
    )
    lines = [line[7:] for line in done["stdout"].splitlines() if line.startswith("RESULT ")]
    assert done["exit"] == 0 and len(lines) == len(jobs), (
        f"exit {done['exit']}, {len(lines)} of {len(jobs)} jobs:\n{done['stderr'][-4000:]}"
    )
    return [json.loads(line) for line in lines]


def guard_path() -> list[Path]:
    """The repo's root and wrapt, as a newcomer puts them on PYTHONPATH."""
    return [ROOT, environments.wrapt_path()]
