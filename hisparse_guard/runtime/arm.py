"""Arming: once a process, from whichever way in comes first."""

from __future__ import annotations

import atexit
import os
import sys

_armed = False


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

        def after_fork() -> None:
            log.forget()
            guard.begin("fork")

        def at_exit() -> None:
            guard.end()

        os.register_at_fork(after_in_child=after_fork)
        atexit.register(at_exit)
    except Exception as error:
        try:
            sys.stderr.write(
                f"hisparse-guard: not armed, this process runs unguarded: {error!r}; use a bundle, "
                "which brings all that the guard needs, or install wrapt\n"
            )
        except Exception:
            pass
