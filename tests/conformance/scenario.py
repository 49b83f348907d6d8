"""What a tensor-parallel worker of vLLM does around the all-reduce workspace, on gloo ranks.

Run as a program in an image-like interpreter with a vLLM release on PYTHONPATH, with the guard in
front of it or without:

    python scenario.py NAME [NAME …]              # readable
    python scenario.py --jobs < jobs.json         # for the tests: a list of jobs

A job: {"name", "start_method", "ranks", "options", "env"}. For each, one line of JSON: what each
rank found, and all that the ranks wrote to standard output and error.

vLLM's own code runs, from its releases. Stood in, since there is no GPU: the platform query, the
size table that needs compiled ops, `TorchDistBackend`, and the one CUDA-only call
`create_allreduce_fusion_workspace`, which records the backend it was asked for.
"""

from __future__ import annotations

import datetime
import importlib
import json
import multiprocessing
import os
import queue
import re
import sys
import tempfile
import traceback
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
            is_cuda=lambda: True,
            get_device_capability=lambda *a, **k: capability,
            has_device_capability=lambda *a, **k: True,
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


def kind(function):
    return "original function" if type(function) is FunctionType else "guarded"


def lazy(w):
    """The fault: resolved in the config context, made outside it by the first all-reduce."""
    with w.set_config(w.config):
        communicator = w.standalone()
    usable = w.first_all_reduce(communicator)
    return {"usable": usable, "backend": backend(w.fi._fi_ar_workspace)}


def eager(w):
    """The workspace is made inside the context."""
    with w.set_config(w.config):
        communicator = w.standalone()
        w.first_all_reduce(communicator)
    return {"backend": backend(w.fi._fi_ar_workspace)}


def no_standalone(w):
    """No `FlashInferAllReduce`: nothing is resolved at init, the fused op makes the workspace."""
    with w.set_config(w.config):
        pass
    return {"backend": backend(w.get())}


def quant_last(w):
    with w.set_config(w.config):
        w.standalone()
    first, second = w.get(), w.get_quant()
    return {"backend": backend(first), "quant": backend(second), "shared": first is second}


def quant_first(w):
    with w.set_config(w.config):
        w.standalone()
    first, second = w.get_quant(), w.get()
    return {"quant": backend(first), "backend": backend(second), "shared": first is second}


def recreate(w):
    with w.set_config(w.config):
        communicator = w.standalone()
    w.first_all_reduce(communicator)
    before = w.fi._fi_ar_workspace
    w.fi.destroy_fi_ar_workspace()
    again = w.get()
    return {
        "backend": backend(before),
        "again": backend(again),
        "new": again is not before,
        "destroyed": not before.alive,
    }


def groups(w):
    """Two process groups; the first is forgotten before the second is used."""
    first = w.dist.new_group(backend="gloo")
    with w.set_config(w.config):
        w.standalone(first)
    one = backend(w.get(first))
    w.fi.destroy_fi_ar_workspace()
    second = w.dist.new_group(backend="gloo")
    two = backend(w.get(second))
    return {"backend": one, "second": two}


def draft(w):
    """A draft model's config, without HiSparse, is current when the resolver runs."""
    with w.set_config(w.config):
        pass
    with w.set_config(w.draft):
        communicator = w.standalone()
        w.first_all_reduce(communicator)
    return {"backend": backend(w.fi._fi_ar_workspace)}


def thread(w):
    import threading

    with w.set_config(w.config):
        communicator = w.standalone()
    found = []
    runner = threading.Thread(target=lambda: found.append(w.first_all_reduce(communicator)))
    runner.start()
    runner.join(60)
    return {"usable": found, "backend": backend(w.fi._fi_ar_workspace)}


def failed(w):
    """No workspace can be made: vLLM goes on without, and never falls back to mnnvl."""
    w.refuse = {"trtllm", "mnnvl"}
    with w.set_config(w.config):
        communicator = w.standalone()
    usable = w.first_all_reduce(communicator)
    second = w.get()
    return {
        "usable": usable,
        "backend": backend(second),
        "disabled": communicator.disabled,
    }


def hot_path(w):
    """After the first verified workspace the original function is back everywhere."""
    holders = [import_with_ops(name) for name in HOLDERS if _there(name)]
    with w.set_config(w.config):
        w.standalone()
    names = ("get_fi_ar_workspace", "get_fi_ar_quant_workspace")
    before = {n: kind(getattr(w.fi, n)) for n in names}
    w.get(), w.get_quant()
    after = {n: kind(getattr(w.fi, n)) for n in names}
    same = [getattr(h, n) is getattr(w.fi, n) for h in holders for n in names if hasattr(h, n)]
    return {
        "before": before,
        "after": after,
        "same": same,
        "resolver": kind(w.fi._resolve_fi_ar_backend),
        "create": kind(w.fi._create_workspace),
        "backend": backend(w.fi._fi_ar_workspace),
    }


def timed(w):
    """What one call of the getter costs once the workspace exists, in nanoseconds."""
    import timeit

    with w.set_config(w.config):
        w.standalone()
    w.get(), w.get_quant()
    sys.setprofile(None)
    names = {"get": w.fi.get_fi_ar_workspace, "arguments": w.arguments()}
    number = 20_000
    w.dist.barrier()
    runs = timeit.repeat("get(**arguments)", globals=names, number=number, repeat=21)
    return {"ns": sorted(runs)[len(runs) // 2] / number * 1e9}


def _there(name):
    import importlib.util

    return importlib.util.find_spec(name) is not None


def fused_op(w):
    """The fused op's own way in: `_can_use_flashinfer` of the eager model paths."""
    import torch

    gemma = import_with_ops("vllm.model_executor.layers.fused_allreduce_gemma_rms_norm")
    with w.set_config(w.config):
        pass
    gemma.get_tensor_model_parallel_rank = lambda: w.rank
    # Up to 0.31 the getters are given the device's group.
    gemma.get_tp_group = lambda: SimpleNamespace(cpu_group=w.group, device_group=w.group)
    if gemma.flashinfer_trtllm_fused_allreduce_norm is None:
        # The op needs a compiled extension; whether it is there is not what is asked here.
        gemma.flashinfer_trtllm_fused_allreduce_norm = object()
        gemma._AR_RESIDUAL_RMS_NORM = object()
    if gemma.get_fi_ar_workspace is None:
        gemma.get_fi_ar_workspace = w.fi.get_fi_ar_workspace
    hidden = SimpleNamespace(
        is_cuda=True,
        dim=lambda: 2,
        is_contiguous=lambda: True,
        dtype=torch.bfloat16,
        shape=(4, 64),
    )
    ok = gemma._can_use_flashinfer(hidden, w.size)
    return {"ok": bool(ok[0]), "backend": backend(w.fi._fi_ar_workspace)}


def rank_fault(w):
    """One rank's logging and evidence raise: it answers what the other answers all the same."""
    if w.rank == 0:
        import logging

        class Broken(logging.Handler):
            def emit(self, record):
                if "hisparse-guard" in record.getMessage():
                    raise OSError("no space left on device")

        logging.getLogger("vllm").addHandler(Broken())
        os.environ["HISPARSE_GUARD_EVIDENCE_DIR"] = "/proc/nowhere"
    return lazy(w)


def settings_late(w):
    """The environment arrives after the interpreter has started, as with Ray."""
    os.environ.update(w.options.get("late", {}))
    return lazy(w)


def repeated(w):
    """Getters called over and over: how often does vLLM's collective resolver run?"""
    with w.set_config(w.config):
        w.standalone()
    return {"backends": [backend(w.get()) for _ in range(5)], "quant": backend(w.get_quant())}


def late_hisparse(w):
    """A first engine without HiSparse made its workspace; then HiSparse is seen."""
    with w.set_config(w.draft):
        w.standalone()
        first = backend(w.get())
    aside = kind(w.fi.get_fi_ar_workspace)
    with w.set_config(w.config):
        pass
    back = kind(w.fi.get_fi_ar_workspace)
    second = backend(w.get())
    w.fi.destroy_fi_ar_workspace()
    return {
        "first": first,
        "aside": aside,
        "back": back,
        "second": second,
        "again": backend(w.get()),
    }


def pickled(w):
    """Functions that name what is wrapped travel, as `collective_rpc` and Ray make them."""
    import copy
    import pickle

    import cloudpickle
    import vllm.config

    function = vllm.config.set_current_vllm_config
    home = importlib.import_module("vllm.config.vllm")

    def names_it(worker):
        with home.set_current_vllm_config(worker):
            return 1

    def holds_it(worker, wrapped=function):
        return wrapped

    return {
        "wrapped": kind(function),
        "pickle": pickle.loads(pickle.dumps(function)) is function,
        "cloudpickle": cloudpickle.loads(cloudpickle.dumps(function)) is function,
        "copy": copy.copy(function) is function and copy.deepcopy(function) is function,
        "names": callable(pickle.loads(cloudpickle.dumps(names_it))),
        "holds": pickle.loads(cloudpickle.dumps(holds_it))(0) is function,
    }


def trace(w):
    """Code of vLLM that asks for the config where there is none, beyond the resolver: as in
    graph-capture profiling and serving, the config context was left."""
    import torch
    from vllm.distributed.parallel_state import get_world_group
    from vllm.forward_context import set_forward_context
    from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry
    from vllm.v1.worker.workspace import init_workspace_manager

    result = lazy(w)
    os.environ["VLLM_SPARSE_INDEXER_MAX_LOGITS_MB"] = "1"
    indexer = import_with_ops("vllm.model_executor.layers.sparse_attn_indexer")
    torch.accelerator.empty_cache = lambda: None
    init_workspace_manager(torch.device("cpu"))
    rows = torch.zeros(4, 64)
    with set_forward_context(None, w.config):
        # A dummy run, of the kind that HiSparse's models make when graphs are captured.
        for _ in range(3):
            indexer.sparse_attn_indexer(
                hidden_states=rows,
                k_cache_prefix="layer",
                kv_cache=rows,
                q_quant=rows,
                q_scale=None,
                k=None,
                weights=rows,
                quant_block_size=128,
                scale_fmt=None,
                topk_tokens=8,
                head_dim=128,
                max_model_len=64,
                total_seq_lens=64,
                topk_indices_buffer=torch.zeros(4, 8, dtype=torch.int32),
                skip_k_cache_insert=True,
                use_pcp=False,
                pcp_shard_decode_requests=False,
                dense_mha_metadata_layer_name="layer",
            )
    # What a connector's scheduler, and a worker that is not told its config, begin with.
    KVCacheSpecRegistry.check_kv_cache_spec_registry({})
    get_world_group().make_sibling_device_group()
    return result


def rank_main(rank, size, name, options, env, results):
    log = os.open(options["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        os.environ.update(env)
        os.environ.update(options.get("rank_env", {}).get(str(rank), {}))
        if options.get("register"):
            # The second way in, once everything is imported and names are taken.
            preload()
            sys.path[:0] = options["register"]
            import hisparse_guard

            hisparse_guard.register()
            hisparse_guard.register()
        worker = Worker(rank, size, options)
        calls = count_calls(worker.fi._resolve_fi_ar_backend)
        result = globals()[name](worker)
        sys.setprofile(None)
        result.update(rank=rank, made=worker.made, pid=os.getpid(), resolver_calls=len(calls))
        worker.dist.barrier()
        worker.dist.destroy_process_group()
    except BaseException as error:
        result = {"rank": rank, "pid": os.getpid(), "error": repr(error)}
        result["traceback"] = traceback.format_exc()
    results.put(json.dumps(result))
    results.close()
    results.join_thread()


def count_calls(function):
    """Counts calls of vLLM's own function below whatever wraps it, in this thread."""
    code = getattr(function, "__wrapped__", function).__code__
    calls = []

    def profile(frame, event, _):
        if event == "call" and frame.f_code is code:
            calls.append(1)

    sys.setprofile(profile)
    return calls


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(job):
    options = {"hisparse": True, **job.get("options", {})}
    size = job.get("ranks", 2)
    context = multiprocessing.get_context(job.get("start_method", "fork"))
    results = context.Queue()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        options["store"] = f"tcp://127.0.0.1:{free_port()}"
        options["log"] = os.path.join(folder, "log")
        given = (job["name"], options, job.get("env", {}), results)
        workers = [context.Process(target=rank_main, args=(r, size, *given)) for r in range(size)]
        for worker in workers:
            worker.start()
        for _ in workers:
            try:
                found.append(json.loads(results.get(timeout=options.get("patience", 120))))
            except queue.Empty:
                break
        for worker in workers:
            worker.join(20)
            if worker.is_alive():
                worker.kill()
                worker.join()
        with open(options["log"], errors="replace") as log:
            text = log.read()
    return {"job": job, "ranks": sorted(found, key=lambda r: r["rank"]), "log": text}


def preload():
    """What a forked rank finds imported: as in vLLM, whose workers may be forked."""
    import torch.distributed  # noqa: F401
    import vllm.config  # noqa: F401

    importlib.import_module(FI)
    for name in HOLDERS:
        if _there(name):
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


def main():
    readable = sys.argv[1:] != ["--jobs"]
    if readable:
        known = [name for name, what in globals().items() if _is_scenario(what)]
        if not sys.argv[1:] or not set(sys.argv[1:]) <= set(known):
            print(f"{__doc__}\nNames: {', '.join(known)}", file=sys.stderr)
            return 2
        jobs = [{"name": name, "start_method": "spawn"} for name in sys.argv[1:]]
    else:
        jobs = json.load(sys.stdin)
    if any(job.get("start_method", "fork") == "fork" for job in jobs):
        preload()
    whole = True
    for job in jobs:
        result = run(job)
        whole = whole and not any("error" in rank for rank in result["ranks"])
        if readable:
            print(result["log"], *result["ranks"], sep="\n", flush=True)
        else:
            print("RESULT " + json.dumps(result), flush=True)
    return 0 if whole or not readable else 1


def _is_scenario(what):
    code = getattr(what, "__code__", None)
    return code is not None and code.co_varnames[: code.co_argcount] == ("w",)


if __name__ == "__main__":
    sys.exit(main())
