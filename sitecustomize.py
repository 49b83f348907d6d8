"""Start of every Python process that has this folder or zip on PYTHONPATH.

Plants the tripwire that arms hisparse-guard when vLLM is first imported, then runs the
`sitecustomize` that this one shadows. Standard library only, and only what the interpreter
has loaded by now: this is all that a process pays which never imports vLLM.
"""

import os
import sys
from _thread import get_ident


def _say(text):
    # Standard error may be absent, closed or full; saying so must not hurt the process. Written
    # past Python's buffer: what a full device refuses would stay there and turn the exit code
    # into 120 when the interpreter flushes at exit.
    try:
        os.write(sys.stderr.fileno(), f"hisparse-guard: {text}\n".encode("utf-8", "replace"))
    except Exception:
        pass


class HisparseGuardTripwire:
    """Finder that arms the guard when the first module of vLLM is executed.

    It stays in ``sys.meta_path`` for good: a finder that takes itself out while the list is
    walked makes the walk skip the finder behind it. It imports nothing in `find_spec`, which
    runs under the global import lock: a thread that imports at that moment would deadlock.
    """

    def __init__(self):
        self.armed = False
        self.asking = set()

    def find_spec(self, name, path=None, target=None):
        if self.armed or (name != "vllm" and not name.startswith("vllm.")):
            return None
        # Other finders that delegate as this one does would ask us again. By thread, since
        # `importlib.util.find_spec` asks without the module's lock.
        question = (name, get_ident())
        if question in self.asking:
            return None
        self.asking.add(question)
        try:
            for finder in list(sys.meta_path):
                find = None if finder is self else getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find else None
                if spec is not None:
                    try:
                        if hasattr(spec.loader, "exec_module"):
                            spec.loader = _ArmingLoader(spec.loader, self)
                    except Exception:
                        # A spec of someone's own that does not let itself be changed: the next
                        # module of vLLM arms.
                        pass
                    return spec
            return None
        finally:
            self.asking.discard(question)


class _ArmingLoader:
    """Stands in for a module's loader until the module is executed; a mere spec arms nothing."""

    def __init__(self, loader, tripwire):
        self._loader, self._tripwire = loader, tripwire

    def __getattr__(self, name):
        # Not `self._loader`: while `copy` and `pickle` make a new one, it has none yet.
        return getattr(object.__getattribute__(self, "_loader"), name)

    def exec_module(self, module):
        loader, tripwire = self._loader, self._tripwire
        try:
            spec = getattr(module, "__spec__", None)
            for holder, name in ((module, "__loader__"), (spec, "loader")):
                if getattr(holder, name, None) is self:
                    setattr(holder, name, loader)
            if not tripwire.armed:
                # Before arming, whose own imports ask the tripwire too.
                tripwire.armed = True
                try:
                    from hisparse_guard.runtime.arm import arm
                except Exception:
                    # A passing failure must not leave this rank alone unguarded.
                    from hisparse_guard.runtime.arm import arm

                arm("sitecustomize")
        except Exception as error:
            _say(f"not armed, this process runs unguarded: {error!r}")
        except BaseException:
            # Ctrl-C or an exit: it passes, and whoever imports vLLM all the same is guarded.
            tripwire.armed = False
            raise
        loader.exec_module(module)


class _Once:
    """Finder that answers one import of `sitecustomize` with a spec found beforehand."""

    def __init__(self, spec):
        self.spec = spec

    def find_spec(self, name, path=None, target=None):
        spec = self.spec if name == "sitecustomize" else None
        if spec is not None:
            self.spec = None
        return spec


def _shadowed(seen):
    """The spec of the next `sitecustomize` behind our own path entry that has not run yet."""
    here = os.path.abspath(os.path.dirname(__file__))
    # Python makes PYTHONPATH's entries absolute, but not what a `.pth` file or a chainer in
    # front of us has put there since. Whoever runs this file without a path entry goes on by
    # himself: what is on the path then may be what is running us.
    own = [isinstance(e, str) and os.path.abspath(e) == here for e in sys.path]
    behind = sys.path[own.index(True) + 1 :] if True in own else []
    for entry in behind:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find("sitecustomize", [entry], None) if find else None
            # No loader: a folder of that name, which Python would not run either.
            if spec is not None and spec.loader is not None and spec.origin not in seen:
                return spec
    return None


def _main():
    spec = None
    try:
        # Chainers behind us import us again; other copies of us on the path look here too.
        seen = sys.__dict__.setdefault("_hisparse_guard_sitecustomize", set())
        seen.add(__file__)
        off = os.environ.get("HISPARSE_GUARD_MODE", "").strip().lower() == "off"
        if not off and not any(type(f).__name__ == "HisparseGuardTripwire" for f in sys.meta_path):
            sys.meta_path.insert(0, HisparseGuardTripwire())
        spec = _shadowed(seen)
        if spec is not None:
            seen.add(spec.origin)
    except Exception as error:
        _say(f"start failed: {error!r}")
    if spec is not None:
        # Python itself does the rest: spec, locks, packages and the text of its errors.
        once = _Once(spec)
        ours = sys.modules.pop("sitecustomize", None)
        sys.meta_path.insert(0, once)
        try:
            import sitecustomize  # noqa: F401
        finally:
            if once in sys.meta_path:
                sys.meta_path.remove(once)
            if once.spec is not None and ours is not None:
                sys.modules.setdefault("sitecustomize", ours)


_main()
