"""What our `sitecustomize` needs in few processes: those that import vLLM, and those that have
another `sitecustomize` behind ours.

`sitecustomize.py` runs this file when it comes to that, and does not import it. Until vLLM's
first module is executed it imports nothing but what every interpreter has loaded at its start
(not even `__future__`): finders are asked under the global import lock, and a thread that holds a
module's lock and waits for that one would never get it.
"""

import os
import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

armed = False
_asking: "set[tuple[str, int]]" = set()


def say(text: str) -> None:
    """Writes one line, whatever standard error is; never raises."""
    # Absent, closed or full. Past Python's buffer: what a full device refuses would stay there
    # and turn the exit code into 120 when the interpreter flushes at exit.
    try:
        os.write(sys.stderr.fileno(), f"hisparse-guard: {text}\n".encode("utf-8", "replace"))
    except Exception:
        pass


def _find_vllm(
    name: str, path: "Iterable[str] | None" = None, target: "ModuleType | None" = None
) -> "ModuleSpec | None":
    """The other finders' answer for a module of vLLM, its loader wrapped until the guard is armed.

    Args:
        name: ``vllm`` or ``vllm.*``.
    """
    try:
        return None if armed else _watched(name, path, target)
    except Exception:
        # Python asks the others itself then, and meets there what one of them may have raised;
        # the next module of vLLM arms.
        return None


def _watched(
    name: str, path: "Iterable[str] | None", target: "ModuleType | None"
) -> "ModuleSpec | None":
    # Other finders that delegate as this one does would ask us again. By thread, since
    # `importlib.util.find_spec` asks without the module's lock.
    question = (name, get_ident())
    if question in _asking:
        return None
    _asking.add(question)
    try:
        spec = next(_answers(name, path, target), None)
    finally:
        _asking.discard(question)
    try:
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _ArmingLoader(spec.loader)  # type: ignore[assignment]
    except Exception:
        # A spec of someone's own that does not let itself be changed.
        pass
    return spec


def _answers(
    name: str, path: "Iterable[str] | None", target: "ModuleType | None" = None
) -> "Iterator[ModuleSpec]":
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        spec = find(name, path, target) if find else None
        if spec is not None:
            yield spec


class _ArmingLoader:
    """Stands in for a module's loader until the module is executed; a mere spec arms nothing."""

    def __init__(self, loader: "Any") -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._loader, name)

    def __reduce_ex__(self, protocol: "Any") -> "Any":
        # What copy and pickle make is the loader's own kind; later protocols insist on ours.
        return self._loader.__reduce_ex__(0)

    def exec_module(self, module: "ModuleType") -> None:
        global armed
        try:
            self._put_back(module)
        except Exception:
            # A module of someone's own that does not let itself be changed.
            pass
        if not armed:
            try:
                try:
                    _arm()
                except Exception:
                    # A passing failure must not leave this rank alone unguarded.
                    _arm()
            except Exception as error:
                say(f"not armed, this process runs unguarded: {error!r}")
            except BaseException:
                # Ctrl-C or an exit: it passes, and whoever imports vLLM all the same is guarded.
                armed = False
                raise
        self._loader.exec_module(module)

    def _put_back(self, module: "ModuleType") -> None:
        spec = getattr(module, "__spec__", None)
        for holder, name in ((module, "__loader__"), (spec, "loader")):
            if getattr(holder, name, None) is self:
                setattr(holder, name, self._loader)


def _arm() -> None:
    global armed
    # Before arming, whose own imports ask the tripwire too.
    armed = True
    from hisparse_guard.runtime.arm import arm

    arm("sitecustomize")


class _Once:
    """Finder that answers one import of `sitecustomize` with a spec found beforehand."""

    def __init__(self, spec: "ModuleSpec") -> None:
        self.spec: ModuleSpec | None = spec

    def find_spec(
        self, name: str, path: "Any" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        spec = self.spec if name == "sitecustomize" else None
        if spec is not None:
            self.spec = None
        return spec


def _shadowed(here: str, seen: "set[str | None]") -> "ModuleSpec | None":
    """The spec of the next `sitecustomize` behind our own path entry that has not run yet."""
    # Python makes PYTHONPATH's entries absolute, but not what a chainer in front of us has put
    # there since. Whoever runs ours without a path entry goes on by himself: what is on the path
    # then may be what is running us.
    mine = os.path.abspath(here)
    own = [isinstance(e, str) and os.path.abspath(e) == mine for e in sys.path]
    for entry in sys.path[own.index(True) + 1 :] if True in own else ():
        for spec in _answers("sitecustomize", [entry]):
            # No loader: a folder of that name, which Python would not run either.
            if spec.loader is not None and spec.origin not in seen:
                return spec
    return None


def _chain(here: str) -> None:
    """Runs the next `sitecustomize` behind ours that has not run yet.

    Args:
        here: folder or zip of ours; empty where nobody knows it.

    Raises:
        BaseException: what that one raises, as Python would report it.
    """
    try:
        if not here:
            raise NameError("run without a __file__")
        seen: set[str | None] = sys.__dict__["_hisparse_guard_sitecustomize"]
        spec = _shadowed(here, seen)
        if spec is None:
            return
        seen.add(spec.origin)
    except Exception as error:
        say(f"start failed: {error!r}")
        return
    # Python itself does the rest: locks, packages and the text of its errors.
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


# What `sitecustomize` takes from here; at the end and at once, so that half a file, or half a run
# of it, is none.
find_spec, chain = _find_vllm, _chain
