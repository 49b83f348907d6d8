"""Arming: once a process, from whichever way in comes first."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable

from hisparse_guard.runtime.start import say

_armed = False
_finalized = False


def arm(how: str) -> None:
    """Puts the hooks in place; idempotent, and never raises.

    Args:
        how: the way in, for the log: ``"sitecustomize"`` or ``"entry point"``.
    """
    global _armed
    if _armed:
        _look_again()
        return
    _armed = True
    if os.environ.get("HISPARSE_GUARD_MODE", "").strip().lower() == "off":
        return
    try:
        try:
            _arm(how)
        except Exception:
            # A passing failure must not leave this rank alone unguarded.
            _arm(how)
    except Exception as error:
        say(
            f"not armed, this process runs unguarded: {error!r}; use a bundle, which brings all "
            "that the guard needs, or install wrapt"
        )
    except BaseException:
        # Ctrl-C or an exit: it passes, and the next import of vLLM arms.
        _armed = False
        raise


def _look_again() -> None:
    # Not there in mode off, or while another thread arms.
    hooks = sys.modules.get("hisparse_guard.runtime.hooks")
    try:
        if hooks is not None:
            hooks.look_again()
    except Exception:
        pass


def _arm(how: str) -> None:
    # Everything that will ever be needed, now: the zip that this comes from may be replaced
    # under the running process.
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
