"""Runtime guard for vLLM servers that run HiSparse and cannot be rebuilt.

This file is loaded by every Python process, so it imports only what the interpreter has loaded at
its start. It holds what both ways in share: the finder that notices vLLM's modules.
"""

import os
import sys
from _thread import get_ident

__version__ = "0.2.0"

# The modules that hold what is patched; a test holds this against `runtime.patches`.
PATCHED_MODULES = (
    "vllm.config",
    "vllm.config.vllm",
    "vllm.envs",
    "vllm.distributed.device_communicators.flashinfer_all_reduce",
)

# What is asked of the other finders right now: the name, and by which thread.
_asking: set[tuple[str, int]] = set()

# Which way in put the finder in place: "sitecustomize" or "entry point".
injected_via = ""

_failed = False


class PatchFinder:
    """Meta-path finder that wraps the loader of each patched module.

    It imports nothing: finders are asked under the global import lock, and a thread that waits for
    a module's lock inside one would wait for ever. It stays in ``sys.meta_path`` for good: a finder
    that takes itself out while the list is walked makes Python skip the finder behind it.
    """

    def find_spec(self, name, path=None, target=None):
        # Another finder that delegates, as this one does, asks us again. By thread, since
        # `importlib.util.find_spec` asks without the module's lock.
        question = (name, get_ident())
        if name not in PATCHED_MODULES or question in _asking:
            return None
        _asking.add(question)
        try:
            spec = next(ask_finders(name, path, target), None)
        finally:
            _asking.discard(question)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = PatchLoader(spec.loader)
        return spec


class PatchLoader:
    """Has a module executed by its own loader, then patched. Imports are safe here, and every
    execution comes by: the first, one after ``del sys.modules[…]``, `importlib.reload`."""

    def __init__(self, loader) -> None:
        self._loader = loader

    def __getattr__(self, name):
        # Not by `self._loader`: `copy` asks an object that has none yet.
        return getattr(object.__getattribute__(self, "_loader"), name)

    def exec_module(self, module) -> None:
        # Put back first: the module, `inspect` and `importlib.resources` see what they always saw.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        patch(module)


def ask_finders(name, path, target=None):
    """The specs that the finders of ``sys.meta_path`` answer with, in their order."""
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        spec = find(name, path, target) if find else None
        if spec is not None:
            yield spec


_finder = PatchFinder()


def install_finder(via: str) -> None:
    """Puts the finder in place; not where HISPARSE_GUARD_MODE is ``off``.

    The second way in does so again where the image's own start has taken it out.

    Args:
        via: the way in, for the log: ``"sitecustomize"`` or ``"entry point"``.
    """
    global injected_via
    if not (is_off() or _finder in sys.meta_path):
        injected_via = via
        sys.meta_path.insert(0, _finder)


def is_off() -> bool:
    """Whether the environment says ``off`` now. Here, and not in `runtime.settings` with all other
    settings, since every process asks this one."""
    return os.environ.get("HISPARSE_GUARD_MODE", "").strip().lower() == "off"


def register() -> None:
    """Entry point of the group ``vllm.general_plugins``: the second way in.

    vLLM calls it unprotected in the API server, the engine core and every worker, so it does not
    raise.
    """
    patch(None)


def patch(module) -> None:
    """Patches `module`; without one, for the entry point, what is loaded by now. Never raises."""
    global _failed
    try:
        if module is None:
            install_finder("entry point")
        from hisparse_guard.runtime import activate

        activate.patch(module)
    except Exception as error:
        # One line, not one for each module.
        if _failed:
            return
        _failed = True
        try:
            # Past Python's buffer: what a full device refuses would turn the exit code into 120.
            line = b"hisparse-guard: vLLM is not patched, this server is unguarded: %a\n" % error
            os.write(sys.stderr.fileno(), line)
        except Exception:  # standard error is absent, closed or full
            pass
