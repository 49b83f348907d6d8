"""One rank of a tensor-parallel group: real vLLM around stand-ins for the GPU.

Stood in: the platform query, the size table that needs compiled ops, `TorchDistBackend`, and the
one CUDA-only call `create_allreduce_fusion_workspace`, which records the backend it was asked for.
"""

from __future__ import annotations

import datetime
import importlib
import importlib.util
import re
from types import FunctionType, SimpleNamespace

FI = "vllm.distributed.device_communicators.flashinfer_all_reduce"
HOLDERS = (
    "vllm.compilation.passes.fusion.allreduce_rms_fusion",
    "vllm.model_executor.layers.fused_allreduce_gemma_rms_norm",
)


class Workspace:
    """What FlashInfer would have made: the backend asked for, and no memory behind it."""

    mc_ptr = 1

    def __init__(self, backend):
        self.backend = backend
        self.alive = True

    def destroy(self):
        self.alive = False

    def is_buffer_size_sufficient(self, **_):
        return True


class Worker:
    """One rank: real vLLM around stand-ins for the GPU."""

    def __init__(self, rank, size, options):
        import torch.distributed as dist

        self.rank, self.size, self.options = rank, size, options
        self.made = []
        self.refuse = set(options.get("refuse", ()))
        self.dist = dist
        self._log()
        from vllm.config import VllmConfig, set_current_vllm_config
        from vllm.config.device import DeviceConfig

        self.set_config = set_current_vllm_config
        self.config = VllmConfig(device_config=DeviceConfig(device="cpu"))
        self.draft = VllmConfig(device_config=DeviceConfig(device="cpu"))
        dist.init_process_group(
            "gloo",
            init_method=options["store"],
            rank=rank,
            world_size=size,
            timeout=datetime.timedelta(seconds=options.get("timeout", 60)),
        )
        from vllm.distributed.parallel_state import init_distributed_environment

        with set_current_vllm_config(self.draft):
            init_distributed_environment(
                world_size=size, rank=rank, local_rank=rank, backend="gloo"
            )
        self.group = dist.group.WORLD
        if options["hisparse"]:
            try:
                from vllm.config.attention import HiSparseConfig

                self.config.attention_config.hisparse_config = HiSparseConfig()
            except ImportError:
                # A fork that carries HiSparse on an older base has the attribute.
                self.config.attention_config.hisparse_config = SimpleNamespace()
        self.fi = importlib.import_module(FI)
        self._stand_in()

    def _log(self):
        # From 0.31 on vLLM's workers do this by hand; before, importing vLLM does.
        try:
            from vllm.config.logging import LoggingConfig
            from vllm.logger import configure_logging
        except ImportError:
            return
        import vllm.logger

        # The platform warnings ask for a GPU.
        vllm.logger._log_platform_warnings = lambda config: None
        configure_logging(LoggingConfig())

    def _stand_in(self):
        fi = self.fi
        capability = SimpleNamespace(to_int=lambda: 90, major=9, minor=0)
        fi.current_platform = SimpleNamespace(
            is_cuda=lambda: self.options.get("platform", "cuda") == "cuda",
            get_device_capability=lambda *a, **k: capability,
            has_device_capability=lambda *a, **k: self.options.get("blackwell", True),
        )
        from vllm.config.compilation import PassConfig

        PassConfig.default_fi_allreduce_fusion_max_size_mb = staticmethod(lambda: {self.size: 1})
        fi.TorchDistBackend = lambda group: SimpleNamespace(group=group)
        fi.fi_ar_available = True

        def create(*, backend, **_):
            self.made.append(backend)
            if backend in self.refuse:
                raise RuntimeError(f"no {backend} here")
            return Workspace(backend)

        fi.flashinfer_comm.create_allreduce_fusion_workspace = create
        nodes = self.options.get("nodes", 1)
        if nodes > 1:
            # The nodes of a world are told by shared memory; one machine has one.
            for name in ("_node_count", "get_node_count"):
                if hasattr(fi, name):
                    real = getattr(fi, name)

                    def count(*args, real=real):
                        real(*args)
                        return nodes

                    setattr(fi, name, count)

    def standalone(self, group=None):
        return self.fi.FlashInferAllReduce(group or self.group, "cpu")

    def arguments(self, group=None):
        import torch

        return {
            "world_size": self.size,
            "rank": self.rank,
            "max_token_num": 16,
            "hidden_dim": 64,
            "dtype": torch.bfloat16,
            "group": group or self.group,
        }

    def get(self, group=None, **more):
        return self.fi.get_fi_ar_workspace(**self.arguments(group), **more)

    def get_quant(self, group=None):
        return self.fi.get_fi_ar_quant_workspace(**self.arguments(group))

    def first_all_reduce(self, communicator):
        """The first all-reduce that is small enough makes the workspace, outside the context."""
        import torch

        if communicator.disabled:
            # As `should_use_fi_ar` answers then.
            return False
        return communicator._ensure_workspace(64, torch.bfloat16)


def backend(workspace):
    return getattr(workspace, "backend", None)


def lazy(w):
    """The fault: resolved in the config context, made outside it by the first all-reduce."""
    with w.set_config(w.config):
        communicator = w.standalone()
    usable = w.first_all_reduce(communicator)
    return {"usable": usable, "backend": backend(w.fi._fi_ar_workspace)}


def kind(function):
    return "original function" if type(function) is FunctionType else "guarded"


def is_there(name):
    return importlib.util.find_spec(name) is not None


def preload():
    """What a forked rank finds imported: as in vLLM, whose workers may be forked."""
    import torch.distributed  # noqa: F401
    import vllm.config  # noqa: F401

    importlib.import_module(FI)
    for name in HOLDERS:
        if is_there(name):
            import_with_ops(name)


_libraries = []


def import_with_ops(name):
    """Imports a module that looks up ops of vLLM's compiled extension while it is imported:
    each that is missing is declared, without an implementation."""
    import torch

    while True:
        try:
            return importlib.import_module(name)
        except AttributeError as error:
            pattern = r"'_OpNamespace' '(\w+)' object has no attribute '(\w+)'"
            missing = re.search(pattern, str(error))
            if missing is None:
                raise
            library = torch.library.Library(missing[1], "FRAGMENT")
            library.define(f"{missing[2]}(Tensor x) -> Tensor")
            _libraries.append(library)
