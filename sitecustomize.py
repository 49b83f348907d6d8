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

    # What has run already, where other copies of this file see it: one that chains runs us again.
    _ran = sys.__dict__.setdefault("_hisparse_guard_sitecustomize", set())
    _ran.add(__file__)
    # Python makes PYTHONPATH's entries absolute, but not what a chainer in front has put on the
    # path since. One that runs us without a path entry goes on to the next by itself.
    _here = os.path.abspath(os.path.dirname(__file__))
    _path = sys.path if _here in sys.path else [os.path.abspath(str(e)) for e in sys.path]
    _behind = sys.path[_path.index(_here) + 1 :] if _here in _path else []
    if any(ask_finders("sitecustomize", _behind)):
        from hisparse_guard.runtime import chain

        _shadowed = chain.find_shadowed(_behind, _ran)
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
