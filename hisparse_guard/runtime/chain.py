"""Runs the `sitecustomize` that ours shadows. Loaded only where there may be one.

Debian's Python ships a `sitecustomize`, and so do OpenTelemetry, ddtrace and many images. Python
imports the first on the path only, so whoever stands in front has to run the next.
"""

import os
import sys

from hisparse_guard import ask_finders


def find_shadowed(own_file):
    """The spec of the next `sitecustomize` on the path that has not run yet.

    Args:
        own_file: the `sitecustomize` that asks. The one that is found counts as run from now on.
    """
    # Where other copies of the guard see it: one that chains runs us again.
    ran = sys.__dict__.setdefault("_hisparse_guard_sitecustomize", set())
    ran.add(own_file)
    # Python makes PYTHONPATH's entries absolute, but not what a chainer in front has put on the
    # path since. One that runs us without a path entry goes on to the next by itself.
    here = os.path.abspath(os.path.dirname(own_file))
    path = sys.path if here in sys.path else [os.path.abspath(str(entry)) for entry in sys.path]
    for entry in path[path.index(here) + 1 :] if here in path else ():
        for spec in ask_finders("sitecustomize", [entry]):
            # No loader: a folder of that name, which Python would not run either.
            if spec.loader is not None and spec.origin not in ran:
                ran.add(spec.origin)
                return spec
    return None


def run(spec):
    """Imports `sitecustomize` by this spec, by Python's own means: locks, packages, error texts.

    Raises:
        BaseException: what that module raises, as Python would report it.
    """
    once = _OneShotFinder(spec)
    ours = sys.modules.pop("sitecustomize", None)
    sys.meta_path.insert(0, once)
    try:
        import sitecustomize  # noqa: F401
    finally:
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not once]
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


class _OneShotFinder:
    """Answers the first import of `sitecustomize` with a spec found beforehand."""

    def __init__(self, spec):
        self._spec = spec

    def find_spec(self, name, path=None, target=None):
        if name != "sitecustomize":
            return None
        spec, self._spec = self._spec, None
        return spec
