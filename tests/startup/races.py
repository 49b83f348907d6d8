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
