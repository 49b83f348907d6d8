"""Programs on the stand-in vLLM that print what is guarded, with a bundle on PYTHONPATH or not."""

from __future__ import annotations

LOOK = """
import sys
CONFIG, FI = "vllm.config", "vllm.distributed.device_communicators.flashinfer_all_reduce"
CONTEXT = "set_current_vllm_config"
FUNCTIONS = {
    CONFIG: [CONTEXT],
    "vllm.config.vllm": [CONTEXT],
    FI: ["_resolve_fi_ar_backend", "_create_workspace", "get_fi_ar_workspace"],
}

def times_guarded(function):
    # A wrapper looks like what it wraps, so `__dict__` of the object itself is not asked.
    times = 0
    while function is not None:
        times += getattr(type(function), "__hisparse_guard__", False) is True
        function = getattr(function, "__wrapped__", None)
    return times

def look():
    "How often each function that is loaded is guarded."
    return {
        f"{name}.{function}": times_guarded(getattr(sys.modules[name], function))
        for name, functions in FUNCTIONS.items() if name in sys.modules
        for function in functions if hasattr(sys.modules[name], function)
    }

def backend():
    "The backend that a server gets: HiSparse is seen, and the workspace is made after it."
    import importlib
    config, fi = importlib.import_module(CONFIG), importlib.import_module(FI)
    with config.set_current_vllm_config(config.given):
        pass
    return fi.get_fi_ar_workspace().backend

def register():
    "As vLLM loads its plugins: unprotected."
    import importlib.metadata
    for entry in importlib.metadata.entry_points(group="vllm.general_plugins"):
        entry.load()()
"""
