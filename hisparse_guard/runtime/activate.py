"""Active: imported with the first patched module, then called after each execution of one.

Importing this imports all that the guard will ever need: the zip that it comes from may be replaced
under the running process.
"""

import atexit
import os
import sys
from types import ModuleType

import hisparse_guard
from hisparse_guard.runtime import patches, patching, telemetry
from hisparse_guard.runtime.state import state


def patch_module(module: ModuleType) -> None:
    """Patches `module`, which was executed just now."""
    if not (hisparse_guard.is_off() or state.is_off()):
        patches.apply_patches(module)


def patch_loaded_modules() -> None:
    """Patches what is loaded already, and the names that vLLM's modules took from it."""
    for name in hisparse_guard.PATCHED_MODULES:
        module = sys.modules.get(name)
        # One that another thread executes now is patched when it is done.
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            patch_module(module)
    patching.switch(True)


def _after_fork() -> None:
    state.creations = state.destroyed = 0
    telemetry.begin("fork")


def _finalize_multiprocessing() -> None:
    """Has multiprocessing's children, vLLM's workers among them, call `telemetry.end`: they leave
    by `os._exit`, past atexit, but not past multiprocessing's own finalizers."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        # A child forgets its parent's finalizers when it starts, and then runs these.
        util.register_after_fork(telemetry, _finalize)
        _finalize(telemetry)


def _finalize(_: ModuleType) -> None:
    # The lowest priority: after what others still do at exit.
    sys.modules["multiprocessing.util"].Finalize(None, telemetry.end, exitpriority=-1000)


telemetry.begin(hisparse_guard.injected_via)
os.register_at_fork(after_in_child=_after_fork)
atexit.register(telemetry.end)
_finalize_multiprocessing()
