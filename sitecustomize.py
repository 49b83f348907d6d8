"""Start of every Python process that has this folder or zip on PYTHONPATH.

Puts the finder of hisparse-guard in place, and has the `sitecustomize` run that this one shadows.
Most processes load this file and `hisparse_guard/__init__.py` and no other; both import only what
the interpreter has loaded by now. The package is imported here, before the current folder or a
script's own is on the path: later they cannot shadow it.
"""

import os
import sys

_shadowed = None
try:
    from hisparse_guard import ask_finders, install_finder

    install_finder("sitecustomize")

    # A cheap look; which one is next, if any, is found out there.
    _here = os.path.dirname(__file__)
    _others = [entry for entry in sys.path if isinstance(entry, str) and entry != _here]
    if any(ask_finders("sitecustomize", _others)):
        from hisparse_guard.runtime import chain

        _shadowed = chain.find_shadowed(__file__)
except Exception as _error:
    try:
        # Past Python's buffer: what a full device refuses would turn the exit code into 120.
        _line = (
            b"hisparse-guard: the start failed, so this process may run without the guard and "
            b"without the sitecustomize that this one shadows: %a\n"
        )
        os.write(sys.stderr.fileno(), _line % _error)
    except Exception:
        pass

if _shadowed:
    chain.run(_shadowed)
