"""Start of every Python process that has this folder or zip on PYTHONPATH.

Plants the tripwire that arms hisparse-guard when vLLM is first imported, and sees to it that the
`sitecustomize` runs that this one shadows. Standard library only, and only what the interpreter
has loaded by now. Most processes need no more than this file, and without byte code its
compilation is most of what they pay; so it is short, and what few of them need is in
`hisparse_guard/runtime/start.py`.
"""

import os
import sys
from _frozen_importlib import _find_spec, _load  # type: ignore[attr-defined]


class HisparseGuardTripwire:
    """Finder that arms the guard when the first module of vLLM is executed.

    It stays in ``sys.meta_path`` for good: a finder that takes itself out while the list is
    walked makes the walk skip the finder behind it.
    """

    def find_spec(self, name, path=None, target=None):
        if name[:5] in ("vllm", "vllm."):
            return _start("find_spec", _nothing)(name, path, target)
        return None


def _start(what, otherwise):
    # Run, not imported: finders are asked under the global import lock, and a thread that holds
    # a module's lock and waits for that one would never get it.
    if not _names:
        _names.update(__name__="hisparse_guard.runtime.start", here=_here, say=_say)
        # In a wheel this file lies in the package.
        folders = [_here + "/hisparse_guard/runtime", _here + "/../../hisparse_guard/runtime"]
        # Twice: a passing failure must not leave this rank alone unguarded.
        for tell in (_nothing, _say):
            try:
                spec = _find_spec("hisparse_guard.runtime.start", folders)
                exec(spec.loader.get_code(spec.name), _names)
                break
            except Exception as error:
                tell(b"not armed, this process runs unguarded", error)
    return _names.get(what, otherwise)


def _say(what, error):
    # Standard error may be absent, closed or full. Written past Python's buffer: what a full
    # device refuses would stay there and turn the exit code into 120.
    try:
        os.write(sys.stderr.fileno(), b"hisparse-guard: %b: %a\n" % (what, error))
    except Exception:
        pass


def _nothing(*_):
    return None


_names = {}  # type: dict[str, object]
try:
    # Chainers behind us import us again; other copies of us on the path look here too.
    _seen = sys.__dict__.setdefault("_hisparse_guard_sitecustomize", set())
    if not _seen and os.environ.get("HISPARSE_GUARD_MODE", "").strip().lower() != "off":
        sys.meta_path.insert(0, HisparseGuardTripwire())
    _seen.add(__file__)
    _here = os.path.dirname(__file__)
    _next = _find_spec("sitecustomize", sys.path[sys.path.index(_here) + 1 :])
except Exception as _error:
    # `chain` looks closer, and says what is wrong.
    _next = _error
if _next:
    # Were the guard damaged, what it shadows would run all the same.
    _start("chain", _load)(_next)
