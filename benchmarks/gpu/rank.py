"""One rank: ``python -m benchmarks.gpu.rank OPTIONS`` (JSON), told by the parent what to do.

vLLM's own `flashinfer_all_reduce` in a tensor-parallel group. As in a server, the backend is
resolved while the config is current, and the workspace is made outside, by the first all-reduce.
"""

from __future__ import annotations

import datetime
import importlib
import importlib.util
import json
import os
import re
import sys
import traceback
from types import ModuleType

from benchmarks.gpu import dry
from benchmarks.gpu.measures import Measures
from benchmarks.gpu.names import EAGER_FUSED, FI, FUSED, MULTICAST, REPLY
from benchmarks.gpu.refusal import Refusal


class Rank(Measures):
    """One rank of a tensor-parallel group, doing what the parent tells it."""

    def __init__(self, options):
        before = {name: os.environ.get(name) for name in MULTICAST}
        self.options = options
        self.rank, self.size, self.dry = options["rank"], options["size"], options["mode"] == "dry"
        self.collectives = options["collectives"]
        self.refusal = Refusal()
        if self.dry:
            self.refusal.create = lambda backend, **_: dry.Workspace(backend)
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.device = torch.device("cpu" if self.dry else f"cuda:{options['gpu']}")
        if not self.dry:
            torch.cuda.set_device(self.device)
        torch.manual_seed(1000 + self.rank)
        self.libraries = []
        self.extension = self._extension()
        self._log()
        # Before the config: on a GPU it asks the fused op's module for its size table.
        self._import(FUSED)
        self._import(EAGER_FUSED)
        self.fi = self._import(FI)
        # As an out-of-tree model holds it that took it by name before the first all-reduce.
        self.held = self.fi.get_fi_ar_workspace
        self._groups(options)
        if self.dry:
            dry.stand_in(self)
        self.refusal.check()
        after = {name: os.environ.get(name) for name in MULTICAST}
        if before != after:
            raise RuntimeError(f"multicast settings were changed: {before} became {after}")
        self.graphs = {}
        self.communicator = None
        self._pin()

    def _pin(self):
        """This thread to one core, the same in every arm: cores can differ by half, and what is
        launched eagerly waits for Python. NCCL's and gloo's threads stay free."""
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[self.rank * (len(cores) // self.size)]})

    def _log(self):
        import vllm.logger
        from vllm.config.logging import LoggingConfig

        if self.dry:
            vllm.logger._log_platform_warnings = lambda config: None
        vllm.logger.configure_logging(LoggingConfig())

    def _groups(self, options):
        """A configured vLLM, its world, and a tensor-parallel group of NCCL and gloo."""
        from vllm.config import ParallelConfig, VllmConfig, set_current_vllm_config
        from vllm.config.attention import HiSparseConfig
        from vllm.config.device import DeviceConfig
        from vllm.distributed import parallel_state

        device = DeviceConfig(device="cpu" if self.dry else "cuda")
        parallel = ParallelConfig(tensor_parallel_size=self.size, distributed_executor_backend="mp")
        self.config = VllmConfig(device_config=device, parallel_config=parallel)
        self.config.instance_id = options["instance"]
        self.config.attention_config.hisparse_config = HiSparseConfig()
        self.set_config = set_current_vllm_config
        with set_current_vllm_config(self.config):
            parallel_state.init_distributed_environment(
                world_size=self.size,
                rank=self.rank,
                local_rank=options["gpu"],
                distributed_init_method=options["store"],
                backend=options["collectives"],
                # The kernels may have to be compiled while a rank waits.
                timeout=datetime.timedelta(minutes=20),
            )
            self.tp = parallel_state.GroupCoordinator(
                group_ranks=[list(range(self.size))],
                local_rank=options["gpu"],
                torch_distributed_backend=options["collectives"],
                use_device_communicator=False,
                group_name="tp",
            )
        parallel_state._TP = self.tp

    def _extension(self):
        """Whether this vLLM has its compiled operators. Nothing here calls one: without them an
        empty module and bare names stand in, so that vLLM's Python can be imported."""
        name = "vllm._C_stable_libtorch"
        if importlib.util.find_spec(name) is not None:
            return True
        sys.modules[name] = ModuleType(name)
        return False

    def _import(self, name):
        while True:
            try:
                return importlib.import_module(name)
            except AttributeError as error:
                missing = re.search(
                    r"'_OpNamespace' '(\w+)' object has no attribute '(\w+)'", str(error)
                )
                if missing is None or self.extension:
                    raise
                library = self.torch.library.Library(missing[1], "FRAGMENT")
                library.define(f"{missing[2]}(Tensor x) -> Tensor")
                self.libraries.append(library)


def rank_main(options):
    """Reads commands from standard input, answers on what was standard output."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    log = os.open(options["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)

    def answer(found):
        answers.write(REPLY + json.dumps(found) + "\n")

    try:
        rank = Rank(options)
        answer({"ok": True})
    except BaseException:
        answer({"traceback": traceback.format_exc()})
        return 1
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer(getattr(rank, command.pop("do"))(**command))
        except BaseException:
            traceback.print_exc()
            answer({"traceback": traceback.format_exc()})
    return 0


if __name__ == "__main__":
    sys.exit(rank_main(json.loads(sys.argv[1])))
