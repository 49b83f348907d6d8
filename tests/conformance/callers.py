"""Callers of FlashInfer's all-reduce workspace in vLLM 0.34.0, each through vLLM's own code.

Imported by `scenario`. Stood in beside what `Worker` stands in: the tensor-parallel group, tensors
that say they are on a GPU, and FlashInfer's kernel, which records the workspace it was given.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType, SimpleNamespace

from worker import backend, import_with_ops

FUSED = "vllm.compilation.passes.fusion.allreduce_rms_fusion"
GEMMA = "vllm.model_executor.layers.fused_allreduce_gemma_rms_norm"
COMMON = "vllm.models.common.ops.fused_allreduce_rms_norm"
KIMI = "vllm.models.kimi_k3.nvidia.latent_moe_runner"
KIMI_METHOD = "allreduce_norm_latent_out"
MUSE = "vllm.models.muse_spark.nvidia.specialized_decode.runtime.flashinfer_ops"
QWEN = "vllm.models.qwen3_5.nvidia.ops.fused_allreduce_norm_quant"


def prepare(w):
    """vLLM's tensor-parallel group, and FlashInfer's kernel."""
    import vllm.distributed.parallel_state as state

    w.ran = []
    state._TP = SimpleNamespace(
        cpu_group=w.group,
        device_group=w.group,
        world_size=w.size,
        rank_in_group=w.rank,
        # What callers fall back to where there is no workspace.
        all_reduce=lambda rows: rows,
    )
    state._ENABLE_CUSTOM_ALL_REDUCE = False
    if not w.options.get("flashinfer", True):
        return

    def kernel(*, input, workspace, **_):
        w.ran.append(workspace.backend)
        return input

    w.fi.flashinfer_comm.allreduce_fusion = kernel
    fused = import_with_ops(FUSED)
    fused.current_platform = w.fi.current_platform
    gemma = import_with_ops(GEMMA)
    # The op as torch knows it runs on a GPU only; this is the function that it is made of.
    gemma.flashinfer_trtllm_fused_allreduce_norm = fused.call_trtllm_fused_allreduce_norm
    import_with_ops(
        COMMON
    ).flashinfer_trtllm_fused_allreduce_norm = gemma.flashinfer_trtllm_fused_allreduce_norm


def tensor(w, rows=4, columns=64):
    import torch

    class OnGpu(torch.Tensor):
        is_cuda = w.options.get("platform", "cuda") == "cuda"

    return torch.zeros(rows, columns, dtype=torch.bfloat16).as_subclass(OnGpu)


class Norm:
    variance_epsilon = 1e-5
    weight = None

    def __call__(self, rows, residual=None):
        return rows, residual


def communicator(w):
    """vLLM's own communicator of a tensor-parallel group, which builds `FlashInferAllReduce`
    unless its settings are against it."""
    import torch

    pynccl = importlib.import_module("vllm.distributed.device_communicators.pynccl")
    pynccl.PyNcclCommunicator = lambda **_: SimpleNamespace(disabled=True)
    home = import_with_ops("vllm.distributed.device_communicators.cuda_communicator")
    made = home.CudaCommunicator(
        cpu_group=w.group, device=torch.device("cpu"), device_group=w.group, unique_name="tp:0"
    )
    return made.fi_ar_comm


def in_context(w):
    prepare(w)
    with w.set_config(w.config):
        return communicator(w)


def outcome(w, standalone, **more):
    return {
        "standalone": standalone is not None and not standalone.disabled,
        "backend": backend(w.fi._fi_ar_workspace or w.fi._fi_ar_quant_workspace),
        "ran": w.ran,
        **more,
    }


def embedding(w, standalone):
    """The embedding's all-reduce, the first of a model: as `CudaCommunicator.all_reduce` asks."""
    rows = tensor(w)
    if standalone is not None and standalone.should_use_fi_ar(rows):
        standalone.all_reduce(rows)


def fused_op(w):
    """`fused_allreduce_rms_norm` of DeepSeek-V3.2 and other eager models."""
    import_with_ops(COMMON).fused_allreduce_rms_norm(tensor(w), tensor(w), Norm())


def gemma_op(w):
    import_with_ops(GEMMA).fused_allreduce_gemma_rms_norm(tensor(w), tensor(w), Norm())


def kimi_op(w):
    runner = SimpleNamespace(
        moe_config=SimpleNamespace(tp_size=w.size),
        _get_zero_residual=lambda rows, _: rows,
    )
    home = import_with_ops(KIMI)
    own = [v for v in vars(home).values() if getattr(v, "__module__", None) == KIMI]
    (method,) = [vars(v)[KIMI_METHOD] for v in own if KIMI_METHOD in getattr(v, "__dict__", {})]
    method(runner, tensor(w), Norm())


def qwen_op(w):
    """It looks for the quant workspace; its kernel wants FP8 or FP4."""
    import vllm.models

    # The package itself imports the model, which wants torchvision.
    package = ModuleType("vllm.models.qwen3_5")
    package.__path__ = [os.path.join(os.path.dirname(vllm.models.__file__), "qwen3_5")]
    sys.modules.setdefault(package.__name__, package)
    module = import_with_ops(QWEN)
    workspace = module._get_workspace(tensor(w), w.size)
    w.ran.append(backend(workspace))


def muse_op(w, standalone):
    module = import_with_ops(MUSE)
    module.torch = SimpleNamespace(
        empty=lambda shape, **_: tensor(w, 2, 64), bfloat16=tensor(w).dtype
    )
    found = module.stock_all_reduce(SimpleNamespace(fi_ar_comm=standalone, device="cpu"))
    w.ran.append(found[1])


def fusion_pass(w):
    """The compiler's pass; its patterns need a GPU, its workspaces are made before them."""
    fused = import_with_ops(FUSED)
    kind = fused.AllReduceFusionPass
    kind.register_patterns = kind.dump_patterns = lambda *_: None
    fused._fused_ar_workspace_hidden_dim = lambda _: 64
    base = kind.__mro__[1]
    real = base.__init__

    def initialised(self, config):
        self.model_dtype, self.device = tensor(w).dtype, "cpu"

    base.__init__ = initialised
    try:
        return kind(
            SimpleNamespace(
                model_config=object(),
                compilation_config=SimpleNamespace(
                    pass_config=SimpleNamespace(flashinfer_max_size=lambda _: 1 << 20)
                ),
                scheduler_config=SimpleNamespace(max_num_batched_tokens=64),
            )
        )
    finally:
        base.__init__ = real


OPS = {"fused": fused_op, "gemma": gemma_op, "kimi_k3": kimi_op, "qwen3_5": qwen_op}


def model(w):
    """A served model: the embedding's all-reduce, then a fused op in a layer."""
    standalone = in_context(w)
    embedding(w, standalone)
    OPS[w.options.get("op", "fused")](w)
    return outcome(w, standalone)


def op_first(w):
    """A fused op is the first to ask for the workspace."""
    standalone = in_context(w)
    OPS[w.options.get("op", "fused")](w)
    return outcome(w, standalone)


def muse(w):
    standalone = in_context(w)
    muse_op(w, standalone)
    return outcome(w, standalone)


def quant_getter_first(w):
    standalone = in_context(w)
    w.ran.append(backend(w.get_quant()))
    return outcome(w, standalone)


def compiled(w):
    """The compiler's pass makes the workspaces while the config is current; then its op runs."""
    prepare(w)
    with w.set_config(w.config):
        standalone = communicator(w)
        fusion_pass(w)
    fused_op(w)
    return outcome(w, standalone)


def recreated(w):
    """Made by the first all-reduce, destroyed, made again by another caller."""
    standalone = in_context(w)
    embedding(w, standalone)
    w.fi.destroy_fi_ar_workspace()
    again = w.options["by"]
    if again == "pass":
        fusion_pass(w)
    elif again == "all_reduce":
        standalone.all_reduce(tensor(w))
    else:
        OPS[again](w)
    return outcome(w, standalone)
