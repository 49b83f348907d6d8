"""Mixed into a real server's workers by ``--worker-extension-cls``, called by `collective_rpc`."""

import os
import sys
from types import SimpleNamespace

FI = "vllm.distributed.device_communicators.flashinfer_all_reduce"


class Probe:
    def lazy_workspace(self):
        """`FlashInferAllReduce` inside the config context with HiSparse, the workspace outside.

        There is no GPU: the platform query, the size table of compiled ops, `TorchDistBackend` and
        the CUDA-only creation are stood in; what decides is vLLM's own code.
        """
        import importlib

        import torch
        from vllm.config import set_current_vllm_config
        from vllm.config.attention import HiSparseConfig
        from vllm.config.compilation import PassConfig
        from vllm.distributed.parallel_state import get_tp_group

        fi = importlib.import_module(FI)
        made = []

        def create(*, backend, **_):
            made.append(backend)
            return SimpleNamespace(backend=backend, mc_ptr=1, destroy=lambda: None)

        capability = SimpleNamespace(to_int=lambda: 90, major=9, minor=0)
        fi.current_platform = SimpleNamespace(
            is_cuda=lambda: True,
            get_device_capability=lambda *a, **k: capability,
            has_device_capability=lambda *a, **k: True,
        )
        fi.TorchDistBackend = lambda group: SimpleNamespace(group=group)
        fi.flashinfer_comm = SimpleNamespace(create_allreduce_fusion_workspace=create)
        fi.fi_ar_available = True

        group = get_tp_group()
        sizes = PassConfig.__dict__["default_fi_allreduce_fusion_max_size_mb"]
        PassConfig.default_fi_allreduce_fusion_max_size_mb = staticmethod(
            lambda: {group.world_size: 1}
        )
        attention = self.vllm_config.attention_config
        attention.hisparse_config = HiSparseConfig()
        try:
            with set_current_vllm_config(self.vllm_config):
                communicator = fi.FlashInferAllReduce(group.cpu_group, "cpu")
            usable = communicator._ensure_workspace(64, torch.bfloat16)
        finally:
            attention.hisparse_config = None
            PassConfig.default_fi_allreduce_fusion_max_size_mb = sizes
        return {"usable": usable, "backend": fi._fi_ar_workspace.backend, "made": made, **self.me()}

    def me(self):
        opentelemetry = sys.modules.get("opentelemetry.trace")
        provider = opentelemetry and opentelemetry.get_tracer_provider()
        return {
            "pid": os.getpid(),
            "opentelemetry": type(provider).__name__,
            "wrapt": getattr(sys.modules.get("wrapt"), "__file__", None),
            "guard": getattr(sys.modules.get("hisparse_guard"), "__file__", None),
        }
