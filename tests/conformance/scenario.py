"""What a tensor-parallel worker of vLLM does around the all-reduce workspace, on gloo ranks.

Run as a program in an image-like interpreter with a vLLM release on PYTHONPATH, with the guard in
front of it or without:

    python scenario.py NAME [NAME …]              # readable
    python scenario.py --jobs < jobs.json         # for the tests: a list of jobs

A job: {"name", "start_method", "ranks", "options", "env"}. For each, one line of JSON: what each
rank found, and all that the ranks wrote to standard output and error.

vLLM's own code runs, from its releases; `worker` says what is stood in for the GPU.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import sys
import tempfile
import timeit
import traceback
from types import FunctionType, SimpleNamespace

import callers
import conditions
from worker import HOLDERS, Worker, backend, import_with_ops, is_there, kind, preload


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
    holders = [import_with_ops(name) for name in HOLDERS if is_there(name)]
    with w.set_config(w.config):
        w.standalone()
    names = ("get_fi_ar_workspace", "get_fi_ar_quant_workspace")
    before = {n: kind(getattr(w.fi, n)) for n in names}
    # Where the quant getter makes one of its own (0.25), the first one verifies once more.
    w.get(), w.get_quant(), w.get()
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
    """What one call costs, in microseconds: medians of 21 repetitions."""
    sys.setprofile(None)
    arguments = w.arguments()
    held_outside = w.fi.get_fi_ar_workspace

    def microseconds(call, number):
        runs = timeit.repeat(call, number=number, repeat=21)
        return sorted(runs)[len(runs) // 2] / number * 1e6

    def context():
        with w.set_config(w.config):
            pass

    def made_anew():
        w.fi.destroy_fi_ar_workspace()
        w.get()

    def getter():
        w.fi.get_fi_ar_workspace(**arguments)

    def outside():
        held_outside(**arguments)

    with w.set_config(w.config):
        w.standalone()
    w.get(), w.get_quant(), w.get()
    found = {
        "config context, in and out": microseconds(context, 2000),
        "resolver": microseconds(lambda: w.fi._resolve_fi_ar_backend(w.group), 50),
        "workspace made anew, first getter call": microseconds(made_anew, 20),
        "getter, verified": microseconds(getter, 20_000),
        "getter held outside vLLM": microseconds(outside, 20_000),
    }
    w.refuse = {"trtllm", "mnnvl"}
    w.fi.destroy_fi_ar_workspace()
    w.get()
    found["getter after a failed creation"] = microseconds(outside, 20_000)
    return {"microseconds": found}


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


def repeated(w):
    """Getters called over and over: how often does vLLM's collective resolver run?"""
    with w.set_config(w.config):
        w.standalone()
    return {"backends": [backend(w.get()) for _ in range(5)], "quant": backend(w.get_quant())}


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
        result = SCENARIOS[name](worker)
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


def main():
    readable = sys.argv[1:] != ["--jobs"]
    if readable:
        if not sys.argv[1:] or not set(sys.argv[1:]) <= set(SCENARIOS):
            print(f"{__doc__}\nNames: {', '.join(SCENARIOS)}", file=sys.stderr)
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
    code = what.__code__ if isinstance(what, FunctionType) else None
    return code is not None and code.co_varnames[: code.co_argcount] == ("w",)


SCENARIOS = {
    name: what
    for module in (vars(callers), vars(conditions), globals())
    for name, what in list(module.items())
    if _is_scenario(what)
}


if __name__ == "__main__":
    sys.exit(main())
