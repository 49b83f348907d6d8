"""Threads that import vLLM at the same time, at a point of the import that is chosen."""

from __future__ import annotations

# Not by time: the second thread starts at the `at`-th module of vLLM that the first one imports.
RACE = """
import importlib, os, sys, threading, time

def race(first, second, at):
    go, main, seen, errors = threading.Event(), threading.get_ident(), [], []
    def hook(event, given):
        if event == "import" and given[0].startswith("vllm") and threading.get_ident() == main:
            seen.append(given[0])
            if len(seen) == at:
                go.set()
                time.sleep(0.1)
    def other():
        go.wait()
        try:
            importlib.import_module(second)
        except BaseException as error:
            errors.append(repr(error))
    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    sys.addaudithook(hook)
    importlib.import_module(first)
    assert go.is_set(), f"{first} has only {len(seen)} imports"
    thread.join()
    print("errors", errors)
"""

# 50 threads, each with a module of its own. vLLM alone fails there at times: a thread meets what
# another one has executed in part. It is one kind of error, in several wordings.
CROWD = """
import importlib, json, pkgutil, random, sys, threading

PARTLY = ("partially initialized module", "cannot import name", "has no attribute",
          "is not a package", "deadlock detected", "No module named 'vllm.")

def crowd(count=50):
    import vllm.version
    names = sorted(
        name for package in ("vllm/config", "vllm/distributed/device_communicators", "vllm/utils")
        for _, name, _ in pkgutil.iter_modules(
            [vllm.__path__[0][:-4] + package], package.replace("/", ".") + "."))
    wanted = ["vllm.envs", "vllm.config", "vllm.config.vllm", "vllm.distributed",
              "vllm.distributed.device_communicators.flashinfer_all_reduce"]
    random.Random(1).shuffle(names)
    # One that does not import alone either: it wants FlashInfer's own tests.
    names = [n for n in names if not n.endswith(".mnnvl_compat")]
    names = [*wanted, *(n for n in names if n not in wanted)][:count]
    together, errors = threading.Barrier(count), []
    def load(name):
        together.wait()
        try:
            importlib.import_module(name)
        except Exception as error:
            partly = any(text in str(error) for text in PARTLY) or isinstance(error, KeyError)
            errors.append("partly imported" if partly else f"{name}: {error!r}")
    threads = [threading.Thread(target=load, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("threads", len(threads), len(errors))
    print("kinds", json.dumps(sorted(set(errors))))
"""
