"""Start of every Python process that has this folder or zip on PYTHONPATH.

Puts the finder of hisparse-guard in place, and has the `sitecustomize` run that this one shadows.
Most processes load this file and `hisparse_guard/__init__.py` and no other; both import only what
the interpreter has loaded by now. The package is imported here, before the current folder or a
script's own is on the path: later they cannot shadow it.
"""

import os
import sys
from _frozen_importlib import _find_spec  # type: ignore[attr-defined]

_chain = None
try:
    from hisparse_guard import install_finder

    install_finder("sitecustomize")

    # What has run already, where other copies of this file see it: one that chains runs us again.
    _ran = sys.__dict__.setdefault("_hisparse_guard_sitecustomize", set())
    _ran.add(__file__)
    _here = os.path.dirname(__file__)
    _behind = sys.path[sys.path.index(_here) + 1 :] if _here in sys.path else sys.path
    if _find_spec("sitecustomize", _behind):
        from hisparse_guard.runtime import chain as _chain  # type: ignore[assignment]
except Exception as _error:
    try:
        # Past Python's buffer: what a full device refuses would turn the exit code into 120.
        os.write(
            sys.stderr.fileno(),
            b"hisparse-guard: the start failed, so this process may run without the guard and "
            b"without the sitecustomize that this one shadows: %a\n" % _error,
        )
    except Exception:
        pass

if _chain:
    _chain.run_shadowed(_here, _ran)
