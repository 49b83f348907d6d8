"""Arming: once a process, from whichever way in comes first."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable

_armed = False
_finalized = False


def arm(how: str) -> None:
    """Puts the hooks in place; idempotent, and never raises.

    Args:
        how: the way in, for the log: ``"sitecustomize"`` or ``"entry point"``.
    """
    global _armed
    if _armed:
        return
    _armed = True
    if os.environ.get("HISPARSE_GUARD_MODE", "").strip().lower() == "off":
        return
    try:
        # Everything that will ever be needed, now: the zip that this comes from may be
        # replaced under the running process.
        from hisparse_guard.runtime import hooks, log
        from hisparse_guard.runtime.guard import guard

        guard.begin(how)
        hooks.install()

        ended = None

        def at_exit() -> None:
            nonlocal ended
            if ended != os.getpid():
                ended = os.getpid()
                guard.end()

        def after_fork() -> None:
            log.forget()
            guard.begin("fork")
            _finalize(at_exit)

        os.register_at_fork(after_in_child=after_fork)
        atexit.register(at_exit)
        _finalize(at_exit)
    except Exception as error:
        try:
            sys.stderr.write(
                f"hisparse-guard: not armed, this process runs unguarded: {error!r}; use a bundle, "
                "which brings all that the guard needs, or install wrapt\n"
            )
        except Exception:
            pass


def _finalize(at_exit: Callable[[], None]) -> None:
    """Has multiprocessing call `at_exit` in its children, vLLM's workers among them: it leaves
    them by `os._exit`, past atexit, but not past its own finalizers."""
    global _finalized
    util = sys.modules.get("multiprocessing.util")
    if util is None or _finalized:
        return
    _finalized = True

    def register(function: Callable[[], None]) -> None:
        # The lowest priority: after what others still do at exit.
        util.Finalize(None, function, exitpriority=-1000)

    try:
        # A child forgets its parent's finalizers when it starts, and then runs these.
        util.register_after_fork(at_exit, register)
        register(at_exit)
    except Exception:
        # Only the counts at exit are lost.
        pass
