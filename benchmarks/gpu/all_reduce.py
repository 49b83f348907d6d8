#!/usr/bin/env python3
"""The guard with real kernels: what vLLM asks FlashInfer for, what it gets, and what that costs.

    pip install vllm==0.33.0 hisparse-guard
    python benchmarks/gpu/all_reduce.py --out results

One process a GPU, two GPUs by default. vLLM's own `flashinfer_all_reduce` runs in three arms:
`unguarded` (HiSparse, nothing set), `guarded` (the same with a guard bundle on PYTHONPATH) and
`environment` (VLLM_FLASHINFER_ALLREDUCE_BACKEND=trtllm, no guard). As in a server, the backend is
resolved while the config is current and the workspace is made outside, by the first all-reduce.
For the times `environment` runs twice beside `guarded`: how far these two lie apart is what a
difference has to exceed.

**No `mnnvl` workspace is ever made.** It needs NVLink multicast, which must stay off where GPUs
are shared. Before any CUDA call, each process replaces FlashInfer's ways to one by
functions that raise, and calls them to see that they do. The unguarded arm ends there: what it
asked for is the result. NCCL_NVLS_ENABLE, TORCH_SYMM_MEM_DISABLE_MULTICAST and
NVSHMEM_DISABLE_NVLS are left as they are found, and checked to be.

`--dry`: no GPU at all; a gloo all-reduce stands in for the kernels. It checks this script.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.util
import itertools
import json
import os
import re
import selectors
import signal
import statistics
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType, SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent.parent
BACKEND = "VLLM_FLASHINFER_ALLREDUCE_BACKEND"
MULTICAST = ("NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS")
FI = "vllm.distributed.device_communicators.flashinfer_all_reduce"
FUSED = "vllm.compilation.passes.fusion.allreduce_rms_fusion"
EAGER_FUSED = "vllm.models.common.ops.fused_allreduce_rms_norm"
GEMMA = "vllm.model_executor.layers.fused_allreduce_gemma_rms_norm"
MULTICAST_CALL = re.compile(r"cuMulticast(Create|AddDevice|Bind)")
REPLY = "\x1dREPLY "
TOKENS = (1, 2, 8, 16, 17, 64, 256, 1024, 2048)
# Largest ||out - reference|| / ||reference|| against a sum in float64. One rounding of the result
# alone is 2**-9 in bfloat16, 2**-12 in float16 and 2**-25 in float32, at most.
LIMITS = {"bfloat16": 4e-3, "float16": 5e-4, "float32": 1e-6}
# The norm multiplies the rounding of the sum: three roundings at most.
FUSED_LIMITS = {"bfloat16": 1e-2, "float16": 1.5e-3}


# In each rank ------------------------------------------------------------------------------------


class Asked(BaseException):
    """FlashInfer was asked for a workspace that must not be made here.

    A BaseException: vLLM takes an Exception for a failure and tries the next backend.
    """


class Refusal:
    """Makes an `mnnvl` workspace impossible in this process."""

    def __init__(self):
        self.asked = []
        import flashinfer.comm as comm
        import flashinfer.comm.allreduce as allreduce
        import flashinfer.comm.mnnvl as mnnvl
        import flashinfer.comm.trtllm_mnnvl_ar as mnnvl_ar

        self.create = comm.create_allreduce_fusion_workspace

        def create(backend="auto", *args, **kwargs):
            self.asked.append(backend)
            if backend != "trtllm":
                raise Asked(backend)
            return self.create(backend, *args, **kwargs)

        def never(*args, **kwargs):
            raise Asked("mnnvl")

        real = mnnvl.SymmDeviceMemory.__init__

        def symmetric(memory, *args, **kwargs):
            multicast = args[5] if len(args) > 5 else kwargs.get("enable_multicast", True)
            if multicast:
                raise Asked("multicast memory")
            real(memory, *args, **kwargs)

        self.places = [
            (comm, "create_allreduce_fusion_workspace", create),
            (allreduce, "create_allreduce_fusion_workspace", create),
            (mnnvl_ar.MNNVLAllReduceFusionWorkspace, "__init__", never),
            (mnnvl.McastGPUBuffer, "__init__", never),
            (mnnvl.SymmDeviceMemory, "__init__", symmetric),
            *((mnnvl.cuda, name, never) for name in dir(mnnvl.cuda) if MULTICAST_CALL.match(name)),
        ]
        for owner, name, function in self.places:
            setattr(owner, name, function)
        self.check()
        for backend in ("mnnvl", "mnnvl-cutedsl", "auto"):
            self._expect(comm.create_allreduce_fusion_workspace, backend=backend)
        # Not by making objects: half-made ones would complain when they are deleted.
        self._expect(mnnvl_ar.MNNVLAllReduceFusionWorkspace.__init__, None)
        self._expect(mnnvl.McastGPUBuffer.__init__, None)
        self._expect(mnnvl.SymmDeviceMemory.__init__, None, 1, 1, 0, 0)
        self._expect(mnnvl.cuda.cuMulticastCreate, None)
        self.asked.clear()

    def check(self):
        """Whether all are in place (again: later imports could have put others there)."""
        for owner, name, function in self.places:
            if getattr(owner, name) is not function:
                raise RuntimeError(f"{owner}.{name} is not refused: nothing is run here")

    @staticmethod
    def _expect(function, *args, **kwargs):
        try:
            function(*args, **kwargs)
        except Asked:
            return
        raise RuntimeError(f"{function} was not refused: nothing is run here")


class Workspace:
    """--dry: what FlashInfer would have made."""

    mc_ptr = 1

    def __init__(self, backend):
        self.backend = backend

    def destroy(self):
        pass

    def is_buffer_size_sufficient(self, **_):
        return True


class Rank:
    """One rank of a tensor-parallel group, doing what the parent tells it."""

    def __init__(self, options):
        before = {name: os.environ.get(name) for name in MULTICAST}
        self.options = options
        self.rank, self.size, self.dry = options["rank"], options["size"], options["dry"]
        self.refusal = Refusal()
        if self.dry:
            self.refusal.create = self._stand_in_create
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.device = torch.device("cpu" if self.dry else f"cuda:{self.rank}")
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
        self._groups(options)
        if self.dry:
            self._stand_in()
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
                local_rank=self.rank,
                distributed_init_method=options["store"],
                backend=options["collectives"],
                # The kernels may have to be compiled while a rank waits.
                timeout=datetime.timedelta(minutes=20),
            )
            self.tp = parallel_state.GroupCoordinator(
                group_ranks=[list(range(self.size))],
                local_rank=self.rank,
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

    def _stand_in_create(self, backend, **_):
        return Workspace(backend)

    def _stand_in(self):
        fi, dist = self.fi, self.dist
        capability = SimpleNamespace(to_int=lambda: 90, major=9, minor=0)
        platform = SimpleNamespace(
            is_cuda=lambda: True,
            get_device_capability=lambda *a, **k: capability,
            has_device_capability=lambda *a, **k: True,
        )
        from vllm.config.compilation import PassConfig

        fi.current_platform = sys.modules[FUSED].current_platform = platform
        PassConfig.default_fi_allreduce_fusion_max_size_mb = staticmethod(lambda: {self.size: 64})
        fi.TorchDistBackend = lambda group: SimpleNamespace(group=group)

        def all_reduce(*, input, workspace, pattern, **rest):
            total = input.double()
            dist.all_reduce(total, group=self.tp.cpu_group)
            if pattern == fi.flashinfer_comm.AllReduceFusionPattern.kAllReduce:
                return total.to(input.dtype)
            residual, normed = self._norm(total, rest["residual_in"], rest["rms_gamma"], 1e-6)
            rest["residual_out"].copy_(residual)
            rest["norm_out"].copy_(normed)
            return rest["norm_out"]

        fi.flashinfer_comm.allreduce_fusion = all_reduce
        gemma = sys.modules[GEMMA]
        real = gemma._can_use_flashinfer
        meta = lambda x: SimpleNamespace(  # noqa: E731
            is_cuda=True,
            dim=x.dim,
            is_contiguous=x.is_contiguous,
            dtype=x.dtype,
            shape=x.shape,
        )
        eager = sys.modules[EAGER_FUSED]
        eager._can_use_flashinfer = lambda x, size: real(meta(x), size)
        eager.flashinfer_trtllm_fused_allreduce_norm = sys.modules[
            FUSED
        ].call_trtllm_fused_allreduce_norm

    # What the parent asks for -------------------------------------------------------------------

    def environment(self):
        torch = self.torch
        import flashinfer
        import vllm

        found = {
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "vllm": vllm.__version__,
            "flashinfer": flashinfer.__version__,
            "gpu": None if self.dry else torch.cuda.get_device_name(self.device),
            "gpus": 0 if self.dry else torch.cuda.device_count(),
            "collectives": self.options["collectives"],
            "multicast": {name: os.environ.get(name) for name in MULTICAST},
            "vllm's compiled operators": self.extension,
            "guard": "hisparse_guard.runtime.activate" in sys.modules,
        }
        if not self.dry and self.options["collectives"] == "nccl":
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        return found

    def resolve(self):
        """As vLLM's worker does: the communicator is built while the config is current."""
        with self.set_config(self.config):
            self.communicator = self.fi.FlashInferAllReduce(self.tp.cpu_group, self.device)
        return {"disabled": self.communicator.disabled}

    def first(self, hidden, dtype):
        """The first all-reduce, outside the context: makes the workspace, or is stopped."""
        self.refusal.check()
        self.refusal.asked.clear()
        started = time.perf_counter()
        stopped = None
        try:
            # For this dtype and width; the backend is the getter's to resolve, with no config.
            self.communicator.max_num_tokens = 0
            if self.dry:
                used = self.communicator._ensure_workspace(hidden, getattr(self.torch, dtype))
            else:
                used = self.communicator.should_use_fi_ar(self._input(1, hidden, dtype))
        except Asked as asked:
            used, stopped = False, str(asked)
        made = self.fi._fi_ar_workspace
        return {
            "asked": list(self.refusal.asked),
            "stopped": stopped,
            "used": bool(used),
            "backend": getattr(made, "backend", None),
            "type": type(made).__name__,
            "multicast_pointer": getattr(made, "mc_ptr", 0) if not self.dry and made else 0,
            "seconds": round(time.perf_counter() - started, 3),
        }

    def destroy(self):
        self.fi.destroy_fi_ar_workspace()
        return {"workspace": self.fi._fi_ar_workspace is not None}

    def hot_path(self):
        """What answers to the getter's name now, here and in the modules that took it by name."""
        modules = [self.fi, sys.modules[FUSED], sys.modules[GEMMA]]
        getters = [vars(module)["get_fi_ar_workspace"] for module in modules]
        return {
            "getter": sorted({type(getter).__name__ for getter in getters}),
            "one object": all(getter is getters[0] for getter in getters),
            "resolver": type(self.fi._resolve_fi_ar_backend).__name__,
            "create": type(self.fi._create_workspace).__name__,
        }

    def check(self, hidden, dtype, tokens, rounds=3):
        """The all-reduce against a sum in float64, on fresh inputs each round."""
        worst = 0.0
        for _ in range(rounds):
            x = self._input(tokens, hidden, dtype)
            if not self._usable(x):
                return {"used": False}
            worst = max(worst, self._error(self.communicator.all_reduce(x), self._sum(x)))
        return {"used": True, "error": worst}

    def check_collective(self, hidden, dtype, tokens):
        """The same sum by the group's own all-reduce (NCCL), for comparison."""
        x = self._input(tokens, hidden, dtype)
        reference, out = self._sum(x), x.clone()
        self.dist.all_reduce(out, group=self.tp.device_group)
        return {"error": self._error(out, reference)}

    def check_graph(self, hidden, dtype, tokens, replays=5):
        """Captured once, replayed on fresh inputs; the output is poisoned before each replay."""
        x = self._input(tokens, hidden, dtype)
        if not self._usable(x):
            return {"used": False}
        graph, out = self._capture(lambda: self.communicator.all_reduce(x))
        worst = 0.0
        for _ in range(replays):
            x.copy_(self._input(tokens, hidden, dtype))
            reference = self._sum(x)
            out.fill_(float("nan"))
            self._together()
            graph.replay()
            self._sync()
            worst = max(worst, self._error(out, reference))
        return {"used": True, "error": worst}

    def check_fused(self, hidden, dtype, tokens, how="eager"):
        """vLLM's fused all-reduce + residual + RMSNorm against the same in float64."""
        torch = self.torch
        fused = sys.modules[EAGER_FUSED].fused_allreduce_rms_norm
        weight = torch.linspace(0.5, 1.5, hidden).to(self.device, getattr(torch, dtype))
        norm = SimpleNamespace(weight=weight, variance_epsilon=1e-6)
        shared = torch.Generator().manual_seed(tokens)
        residual = torch.randn(tokens, hidden, generator=shared).to(self.device, weight.dtype)
        x = self._input(tokens, hidden, dtype)
        reference = self._norm(self._sum(x), residual, weight, 1e-6)
        if how == "graph":
            source = x.clone()

            def call():
                x.copy_(source)
                return fused(x, residual, norm)

            graph, (normed, added) = self._capture(call)
            normed.fill_(float("nan"))
            self._together()
            graph.replay()
            self._sync()
        else:
            normed, added = fused(x, residual, norm)
            self._sync()
        return {
            "error": self._error(normed, reference[1]),
            "residual_error": self._error(added, reference[0]),
        }

    def measure(self, hidden, dtype, tokens, how, iterations):
        """Microseconds an all-reduce on this rank's GPU by device events."""
        torch = self.torch
        inputs = self._inputs(hidden, dtype, tokens)
        if not self._usable(inputs[0]):
            return {"used": False}
        key = (hidden, dtype, tokens)
        if how == "graph" and not self.dry:
            if key not in self.graphs:
                self.graphs[key] = self._capture(
                    lambda: [self.communicator.all_reduce(x) for x in inputs]
                )
            call, calls = self.graphs[key][0].replay, len(inputs)
        else:
            turn = itertools.cycle(inputs)

            def call():
                self.communicator.all_reduce(next(turn))

            calls = 1
        for _ in range(5):
            call()
        self._together()
        if self.dry:
            times = []
            for _ in range(iterations):
                started = time.perf_counter()
                call()
                times.append((time.perf_counter() - started) * 1e6)
            return {"used": True, "us": times}
        events = [torch.cuda.Event(enable_timing=True) for _ in range(iterations + 1)]
        events[0].record()
        for event in events[1:]:
            call()
            event.record()
        self._sync()
        times = [a.elapsed_time(b) * 1000 / calls for a, b in itertools.pairwise(events)]
        return {"used": True, "us": times}

    def measure_python(self, hidden, dtype, tokens, batches, calls=50):
        """Microseconds of Python an eager all-reduce: `should_use_fi_ar` and `all_reduce`, as
        vLLM's communicator calls them; launches are queued and waited for between batches."""
        x = self._input(tokens, hidden, dtype)
        found = []
        for _ in range(batches + 1):
            self._together()
            started = time.perf_counter()
            for _ in range(calls):
                if self._usable(x):
                    self.communicator.all_reduce(x)
            found.append((time.perf_counter() - started) / calls * 1e6)
            self._sync()
        return {"used": True, "us": found[1:]}

    # How ----------------------------------------------------------------------------------------

    def _input(self, tokens, hidden, dtype):
        torch = self.torch
        # Rounded first, so that the reference sums what the kernel is given.
        return torch.randn(tokens, hidden, device=self.device).to(getattr(torch, dtype))

    def _inputs(self, hidden, dtype, tokens):
        key = ("inputs", hidden, dtype, tokens)
        if key not in self.graphs:
            self.graphs[key] = [self._input(tokens, hidden, dtype) for _ in range(8)]
        return self.graphs[key]

    def _usable(self, x):
        return True if self.dry else self.communicator.should_use_fi_ar(x)

    def _sum(self, x):
        total = x.double()
        self.dist.all_reduce(total, group=self.tp.device_group)
        return total

    @staticmethod
    def _norm(total, residual, weight, epsilon):
        added = total + residual.double()
        scale = (added.pow(2).mean(-1, keepdim=True) + epsilon).rsqrt()
        return added, added * scale * weight.double()

    def _error(self, out, reference):
        """||out - reference|| / ||reference||; NaN where anything was not written."""
        return float((out.double() - reference).norm() / reference.norm())

    def _sync(self):
        if not self.dry:
            self.torch.cuda.synchronize()

    def _together(self):
        self._sync()
        self.dist.barrier(group=self.tp.cpu_group)

    def _capture(self, call):
        torch = self.torch
        if self.dry:
            out = call()

            def replay():
                again = call()
                pairs = (
                    zip(out, again, strict=True)
                    if isinstance(out, (tuple, list))
                    else [(out, again)]
                )
                for mine, new in pairs:
                    mine.copy_(new)

            return SimpleNamespace(replay=replay), out
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            call()
        torch.cuda.current_stream().wait_stream(stream)
        self._together()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            out = call()
        self._together()
        return graph, out

    def stop(self):
        self.graphs.clear()
        self._together()
        self.fi.destroy_fi_ar_workspace()
        self.dist.barrier(group=self.tp.cpu_group)
        self.dist.destroy_process_group()
        return {}


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


# The parent --------------------------------------------------------------------------------------


class Failed(RuntimeError):
    """A rank failed, or did not answer in time."""


class Arm:
    """The ranks of one arm, and what they found."""

    def __init__(self, name, run, *, guarded=False, env=None):
        self.name, self.run = name, run
        if time.monotonic() > run.deadline:
            raise Failed(f"{name}: not begun, the limit has passed")
        self.processes = []
        environment = {
            k: v
            for k, v in os.environ.items()
            if k != BACKEND and not k.startswith("HISPARSE_GUARD_")
        }
        environment["PYTHONUNBUFFERED"] = "1"
        if guarded:
            paths = [str(run.bundle), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
            environment["HISPARSE_GUARD_EVIDENCE_DIR"] = str(run.evidence(name))
        environment.update(env or {})
        store = f"tcp://127.0.0.1:{free_port()}"
        for rank in range(run.size):
            options = {
                "rank": rank,
                "size": run.size,
                "dry": run.dry,
                "collectives": "gloo" if run.dry else "nccl",
                "store": store,
                "instance": f"gpu-{name}",
                "log": str(run.out / f"{name}-rank{rank}.log"),
            }
            process = subprocess.Popen(
                [sys.executable, __file__, "--rank", json.dumps(options)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            self.processes.append(process)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.do("stop", 60)
        finally:
            self._end(20 if kind is None else 5)

    def ready(self):
        """Started, and the backend resolved in the config's context."""
        self._gather(240)
        self.do("resolve")
        return self

    def do(self, what, seconds=120, **arguments):
        """Every rank does `what`; their answers, by rank.

        Raises:
            Failed: A rank raised, is gone, or did not answer in `seconds` (less where the whole
                run's limit comes first).
        """
        for process in self.processes:
            try:
                process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                raise Failed(f"{self.name}: a rank is gone before {what}") from None
        return self._gather(seconds, what)

    def _gather(self, seconds, what="start"):
        deadline = min(time.monotonic() + seconds, self.run.deadline)
        answers = {}
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self.processes):
                selector.register(process.stdout, selectors.EVENT_READ, rank)
            while len(answers) < len(self.processes):
                ready = selector.select(max(0, deadline - time.monotonic()))
                if not ready:
                    missing = sorted(set(range(len(self.processes))) - set(answers))
                    raise Failed(f"{self.name}: no answer to {what} in time from ranks {missing}")
                for key, _ in ready:
                    line = key.fileobj.readline()
                    if not line:
                        raise Failed(
                            f"{self.name}: rank {key.data} ended during {what}; see its log"
                        )
                    if not line.startswith(REPLY):
                        continue
                    found = json.loads(line.removeprefix(REPLY))
                    if "traceback" in found:
                        # At once: the other ranks may be waiting for this one.
                        raise Failed(f"{self.name}: rank {key.data}, {what}: {found['traceback']}")
                    answers[key.data] = found
                    selector.unregister(key.fileobj)
        return [answers[rank] for rank in range(len(self.processes))]

    def _end(self, seconds):
        deadline = time.monotonic() + seconds
        for process in self.processes:
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process in self.processes:
            try:
                process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(30)


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Run:
    """All arms, the checks and the results."""

    def __init__(self, options):
        self.out = options.out
        self.dry = options.dry
        self.size = options.ranks or (2 if self.dry else gpus())
        self.hidden, self.quick = options.hidden, options.quick
        self.started = time.monotonic()
        self.deadline = self.started + options.limit
        self.results = {
            "schema": 1,
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "mode": "dry" if self.dry else f"{self.size} GPUs",
            "ranks": self.size,
            "hidden": self.hidden,
            "checks": [],
        }
        self.bundle = options.guard.resolve() if options.guard else self._bundle()

    def _bundle(self):
        path = self.out / "guard.zip"
        command = [sys.executable, "-m", "hisparse_guard", "bundle", str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"no bundle to inject: {done.stderr.strip() or done.stdout.strip()}")
        self.results["bundle"] = done.stdout.split()
        return path

    def evidence(self, arm):
        folder = self.out / "evidence" / arm
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def say(self, text):
        print(f"[{time.monotonic() - self.started:6.1f} s] {text}", flush=True)

    def check(self, name, ok, **detail):
        self.results["checks"].append({"name": name, "ok": bool(ok), **detail})
        self.say(f"{'ok  ' if ok else 'FAIL'} {name} {json.dumps(detail) if detail else ''}")
        self.write()

    def stage(self, name, function):
        """One stage; a failure of it is a failed check, and the next stage runs all the same."""
        self.say(f"--- {name}")
        try:
            function()
        except Exception as error:
            traceback.print_exc()
            self.check(name, False, error=str(error)[-2000:] or repr(error))

    def write(self):
        """After each finding: what ends the run early loses nothing before it."""
        self.results["seconds"] = round(time.monotonic() - self.started, 1)
        (self.out / "results.json").write_text(json.dumps(self.results, indent=1) + "\n")
        (self.out / "results.md").write_text(markdown(self.results))

    # Stages ---------------------------------------------------------------------------------------

    def unguarded(self):
        """What vLLM asks FlashInfer for by itself; every rank is stopped there."""
        with Arm("unguarded", self) as arm:
            arm.ready()
            found = arm.do("environment")
            self.check("unguarded: no rank has the guard", not any(f["guard"] for f in found))
            found = arm.do("first", hidden=self.hidden, dtype="bfloat16")
            self.check(
                "unguarded: every rank asks FlashInfer for mnnvl, and is stopped there",
                all(f["asked"] == ["mnnvl"] and f["stopped"] == "mnnvl" for f in found),
                asked=[f["asked"] for f in found],
            )

    def guarded(self):
        """The real workspace, its kernels against NCCL, and made anew."""
        with Arm("guarded", self, guarded=True) as arm:
            arm.ready()
            found = arm.do("environment")
            self.results["environment"] = {**found[0], "driver": driver()}
            self.check("guarded: every rank has the guard", all(f["guard"] for f in found))
            self._first(arm, "bfloat16")
            expected = {
                "getter": ["function"],
                "one object": True,
                "resolver": "UntracedFunction",
                "create": "UntracedFunction",
            }
            found = arm.do("hot_path")
            self.check(
                "guarded: the getter is vLLM's own function again, the rest stays wrapped",
                all(f == expected for f in found),
                found=found,
            )
            sizes = (1, 16, 17, 256) if self.quick else TOKENS
            collective = f"{'gloo' if self.dry else 'NCCL'}'s all-reduce"
            for dtype in ("bfloat16", "float16"):
                self._series(arm, "all-reduce", "check", dtype, sizes)
                self._series(arm, "replayed all-reduce", "check_graph", dtype, sizes)
                self._series(arm, "fused norm", "check_fused", dtype, sizes)
                self._series(arm, "replayed fused norm", "check_fused", dtype, sizes, how="graph")
                self._series(arm, collective, "check_collective", dtype, sizes)
            # A workspace is for 2-byte or for 4-byte elements: made anew for float32, and back.
            for dtype in ("float32", "bfloat16"):
                arm.do("destroy")
                self._first(arm, dtype, ", after destroy_fi_ar_workspace")
                self._series(arm, "all-reduce, made anew", "check", dtype, sizes)
                self._series(arm, "replayed all-reduce, made anew", "check_graph", dtype, sizes)
            self._series(arm, collective, "check_collective", "float32", sizes)

    def _first(self, arm, dtype, when=""):
        # The kernels may have to be compiled first.
        found = arm.do("first", seconds=900, hidden=self.hidden, dtype=dtype)
        self.check(
            f"{arm.name}: every rank asks for trtllm alone, gets and uses it, for {dtype}{when}",
            all(f["backend"] == "trtllm" and f["asked"] == ["trtllm"] and f["used"] for f in found),
            seconds=[f["seconds"] for f in found],
            type=found[0]["type"],
        )

    def _series(self, arm, what, do, dtype, tokens, **arguments):
        """One kind of check for each size; the largest error of all ranks against the limit."""
        limit = (FUSED_LIMITS if do == "check_fused" else LIMITS)[dtype]
        rows = []
        for count in tokens:
            found = arm.do(do, hidden=self.hidden, dtype=dtype, tokens=count, **arguments)
            errors = [v for f in found for k, v in f.items() if k.endswith("error")]
            if not errors or not all(f.get("used", True) for f in found):
                raise Failed(f"{arm.name}: {what}, {count} tokens: not by FlashInfer")
            # NaN counts as the largest.
            worst = max(errors, key=lambda e: (e != e, e))
            rows.append({"what": what, "dtype": dtype, "tokens": count, "error": worst})
        self.results.setdefault("errors", []).extend(rows)
        self.check(
            f"{arm.name}: {what}, {dtype}, {tokens[0]} to {tokens[-1]} tokens",
            all(r["error"] <= limit for r in rows),  # false for NaN
            worst=max((r["error"] for r in rows), key=lambda e: (e != e, e)),
            limit=limit,
        )

    def times(self):
        """The same work, guarded and twice with the environment variable, in turns."""
        with contextlib.ExitStack() as stack:
            arms = {}
            for name in ("guarded", "environment", "environment again"):
                guarded = name == "guarded"
                arm = Arm(
                    f"times-{name.replace(' ', '-')}",
                    self,
                    guarded=guarded,
                    env={} if guarded else {BACKEND: "trtllm"},
                )
                arms[name] = stack.enter_context(arm)
            for arm in arms.values():
                arm.ready()
                self._first(arm, "bfloat16")
            self._device_times(arms)
            self._python_times(arms)

    def _device_times(self, arms):
        iterations = 20 if self.quick or self.dry else 200
        self.results["times"] = []
        for how in ("eager", "graph"):
            for tokens in (1, 256) if self.quick else TOKENS:
                row = self._turns(arms, "measure", tokens=tokens, how=how, iterations=iterations)
                self.results["times"].append({"how": how, "tokens": tokens, **row})
                self.say(f"{how:6} {tokens:5} tokens {json.dumps(row)}")
                self.write()
            self._same(how, [r for r in self.results["times"] if r["how"] == how])

    def _python_times(self, arms):
        row = self._turns(arms, "measure_python", tokens=1, batches=9)
        self.results["python"] = [{"how": "Python, eager", "tokens": 1, **row}]
        self._same("Python", self.results["python"])

    def _turns(self, arms, do, **arguments):
        """Arms take turns, in changing order; each arm's median over rounds."""
        medians = {name: [] for name in arms}
        names = list(arms)
        for turn in range(3 if self.quick or self.dry else 21):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                found = arms[name].do(do, hidden=self.hidden, dtype="bfloat16", **arguments)
                if not all(f["used"] for f in found):
                    raise Failed(f"{name}: {arguments} is not reduced by FlashInfer")
                # Ranks wait for each other in the kernel: the slowest one's time is the group's.
                medians[name].append(max(statistics.median(f["us"]) for f in found))
        row = {name: round(statistics.median(values), 3) for name, values in medians.items()}
        row["ratio"] = round(row["guarded"] / row["environment"], 4)
        row["control"] = round(row["environment again"] / row["environment"], 4)
        return row

    def _same(self, what, rows):
        """The guard's ratio, the median over the sizes, lies no further from 1 than 2 %, or than
        twice what the control's does at a size in the middle."""
        ratio = statistics.median(r["ratio"] for r in rows)
        noise = max(0.02, 2 * statistics.median(abs(r["control"] - 1) for r in rows))
        if self.dry:
            self.say(f"times, {what}: not judged, since no kernel ran")
            return
        self.check(
            f"times, {what}: guarded / environment is 1.00 within noise",
            abs(ratio - 1) <= noise,
            ratio=round(ratio, 4),
            noise=round(noise, 4),
        )

    def report(self):
        """The evidence, judged by `hisparse-guard report`; without evidence, that is a failure."""
        for arm in ("guarded", "times-guarded"):
            folder = self.evidence(arm)
            command = [sys.executable, "-m", "hisparse_guard", "report", str(folder), "--json"]
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
            )
            (self.out / f"report-{arm}.json").write_text(done.stdout or done.stderr)
            try:
                verdict = json.loads(done.stdout)["verdict"]
            except (ValueError, KeyError):
                verdict = (done.stderr or done.stdout)[-500:]
            self.check(
                f"{arm}: `report` says safe",
                done.returncode == 0 and verdict == "safe",
                verdict=verdict,
                exit=done.returncode,
            )

    def everything(self):
        self.stage("what vLLM asks for by itself", self.unguarded)
        self.stage("guarded: the real workspace and its kernels", self.guarded)
        self.stage("times", self.times)
        self.stage("evidence", self.report)
        failed = [c["name"] for c in self.results["checks"] if not c["ok"]]
        self.say(f"{len(self.results['checks'])} checks, {len(failed)} failed: {failed}")
        return 1 if failed else 0


def markdown(results):
    environment = results.get("environment", {})
    lines = [
        f"Measured {results['date'][:10]}, {results['mode']}, {results['ranks']} ranks, "
        f"hidden size {results['hidden']}: "
        + ", ".join(
            f"{k} {environment[k]}"
            for k in ("gpu", "driver", "torch", "cuda", "nccl", "vllm", "flashinfer", "python")
            if environment.get(k)
        )
        + ".",
        "",
    ]
    rows = results.get("times", []) + results.get("python", [])
    if rows:
        lines += [
            "| µs, bfloat16 | tokens | guarded | environment | ratio | control |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {r['how']} | {r['tokens']} | {r['guarded']:.1f} | {r['environment']:.1f} "
            f"| {r['ratio']:.3f} | {r['control']:.3f} |"
            for r in rows
        ]
        lines.append("")
    worst = {}
    for row in results.get("errors", ()):
        worst.setdefault((row["what"], row["dtype"]), []).append(row)
    if worst:
        lines += ["| guarded | dtype | tokens | largest relative error |", "|---|---|---|---|"]
        for (what, dtype), rows in worst.items():
            tokens = [r["tokens"] for r in rows]
            error = max((r["error"] for r in rows), key=lambda e: (e != e, e))
            lines.append(f"| {what} | {dtype} | {min(tokens)} to {max(tokens)} | {error:.2g} |")
        lines.append("")
    lines += [f"- {'ok' if c['ok'] else '**failed**'}: {c['name']}" for c in results["checks"]]
    return "\n".join(lines) + "\n"


def gpus():
    count = len(nvidia_smi("index"))
    if count < 2:
        raise SystemExit(
            f"{count} NVIDIA GPUs here: this needs two, since the kernels do not serve two ranks "
            "on one (each waits for the other); --dry runs without any, and checks this script only"
        )
    return min(count, 2)


def driver():
    return next(iter(nvidia_smi("driver_version")), None)


def nvidia_smi(field):
    """`field` of each GPU; empty where there is no nvidia-smi, or it fails."""
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return done.stdout.split()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="a new folder")
    parser.add_argument("--ranks", type=int, help="default: 2")
    parser.add_argument("--hidden", type=int, default=7168, help="default: DeepSeek-V3.2's 7168")
    parser.add_argument(
        "--dry",
        action="store_true",
        help="no GPU, gloo in place of the kernels: checks this script",
    )
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    parser.add_argument("--guard", type=Path, help="a bundle to inject (default: made here)")
    parser.add_argument(
        "--limit", type=float, default=3600, help="seconds for all; what is not done fails"
    )
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    # So that the ranks are ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(124))
    if options.rank:
        return rank_main(json.loads(options.rank))
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    if (options.out / "results.json").exists():
        parser.error(f"{options.out} holds results already: name a new folder")
    return Run(options).everything()


if __name__ == "__main__":
    sys.exit(main())
