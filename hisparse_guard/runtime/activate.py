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
    state.creations = 0
    telemetry.begin("fork")


telemetry.begin(hisparse_guard.injected_via)
os.register_at_fork(after_in_child=_after_fork)
# Not in multiprocessing's forked children, which leave by `os._exit`.
atexit.register(telemetry.end)
