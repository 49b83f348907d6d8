"""Active: imported with the first patched module, then called after each execution of one.

Importing this imports all that the guard will ever need, labels aside: the zip that it comes from
may be replaced under the running process.
"""

import atexit
import os
import sys
from types import ModuleType

import hisparse_guard
from hisparse_guard.runtime import patches, patching, telemetry
from hisparse_guard.runtime.state import state


def patch(executed: ModuleType | None) -> None:
    """Patches the module that was executed just now; without one, what is loaded already, and the
    names that vLLM's modules took from it."""
    if hisparse_guard.is_off() or state.is_off():
        return
    loaded = [m for m in map(sys.modules.get, hisparse_guard.PATCHED_MODULES) if m is not None]
    # One that another thread executes now is patched when it is done.
    done = [m for m in loaded if not getattr(m.__spec__, "_initializing", False)]
    for module in done if executed is None else [executed]:
        patches.apply_patches(module)
    if executed is None:
        patching.switch(True)


def _after_fork() -> None:
    state.creations = 0
    telemetry.begin("fork")


telemetry.begin(hisparse_guard.injected_via)
os.register_at_fork(after_in_child=_after_fork)
# Not in multiprocessing's forked children, which leave by `os._exit`.
atexit.register(telemetry.end)
