"""Start of every Python process that has this folder or zip on PYTHONPATH.

Plants the tripwire that arms hisparse-guard when vLLM is first imported, and has the
`sitecustomize` run that this one shadows. Standard library only, and only what the interpreter
has loaded by now. Most processes need no more than this file, and without byte code its
compilation is most of what they pay, by the token; so it is terse, and what the others need is
in `hisparse_guard/runtime/start.py`.
"""

import os
import sys
from _frozen_importlib import _find_spec  # type: ignore[attr-defined]
from _frozen_importlib_external import PathFinder


class HisparseGuardTripwire:
    """Finder that arms the guard when the first module of vLLM is executed.

    It stays in ``sys.meta_path`` for good: a finder that takes itself out while the list is
    walked makes the walk skip the finder behind it.
    """

    def find_spec(self, name, path=None, target=None):
        if name[:5] in ("vllm", "vllm."):
            return _start("find_spec", name, path, target)
        return None


def _start(what, *given):
    if what not in _names:
        try:
            # Found and run, not imported, and no finder asked that may import: finders are asked
            # under the global import lock, and a thread that holds a module's lock and waits for
            # that one would never get it.
            folder = PathFinder.find_spec("hisparse_guard").submodule_search_locations[0]  # type: ignore
            spec = PathFinder.find_spec("hisparse_guard.runtime.start", [folder + "/runtime"])
            exec(spec.loader.get_code(spec.name), _names)  # type: ignore
            _names[what]
        except Exception as error:
            _names.update(find_spec=_nothing, chain=_nothing)
            # Standard error may be absent, closed or full. Written past Python's buffer: what a
            # full device refuses would stay there and turn the exit code into 120.
            try:
                os.write(sys.stderr.fileno(), _DAMAGED % error)
            except Exception:
                pass
    return _names[what](*given)  # type: ignore[operator]


def _nothing(*_):
    return None


_DAMAGED = b"""hisparse-guard: no whole copy of it on PYTHONPATH (put one there): this process \
runs unguarded, and without the sitecustomize that this one may shadow: %a
"""
_names = {"__name__": "hisparse_guard.runtime.start"}  # type: dict[str, object]
_here = ""
try:
    _here = os.path.dirname(__file__)
    # Chainers behind us import us again; other copies of us on the path look here too.
    _seen = sys.__dict__.setdefault("_hisparse_guard_sitecustomize", set())
    if not _seen and os.environ.get("HISPARSE_GUARD_MODE", "").strip().lower() != "off":
        sys.meta_path.insert(0, HisparseGuardTripwire())
    _seen.add(__file__)
    _next = _find_spec("sitecustomize", sys.path[sys.path.index(_here) + 1 :])
except Exception as _error:
    # Which `chain` meets too, and names; or an entry that is written otherwise.
    _next = _error
if _next:
    _start("chain", _here)
