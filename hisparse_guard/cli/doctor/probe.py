"""Runs inside the interpreter that is to serve, and prints what that one sees, as JSON.

Its source is handed over with ``-c``: it imports the standard library only, and must stay free of
syntax that an old Python refuses. It never imports vLLM, torch or FlashInfer: specs and files.

Arguments: how many entries of ``sys.path`` came after ``site`` had run; the patched modules.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional  # noqa: UP035 - for old interpreters

# Of the variables that decide whether the guard gets in, and what it does.
PREFIXES = ["PYTHON", "HISPARSE_GUARD_", "VLLM_"]


def _location(name: str) -> Any:
    """(folders, origin, loader's name) of a top-level module, which is not imported."""
    from importlib.util import find_spec

    try:
        spec = find_spec(name)
    except Exception as error:
        return {"error": repr(error)}
    # A folder of that name without code in it is not the package.
    if spec is None or spec.loader is None or spec.origin is None:
        return None
    loader = getattr(spec.loader, "_loader", spec.loader)
    return {
        "folders": list(spec.submodule_search_locations or ()),
        "origin": spec.origin,
        "loader": type(loader).__name__,
    }


def _distribution(name: str, folders: Iterable[str]) -> Any:
    """The distribution that `name` came from: of that name, else the one that lists its files."""
    from importlib import metadata

    entries = {str(Path(folder).parent) for folder in folders}
    here = list(metadata.distributions(path=list(entries)))
    named = [d for d in here if (d.metadata["Name"] or "").lower().replace("_", "-") == name]
    if not named:
        listed = f"{name}/__init__.py"
        for one in here:
            tops = (one.read_text("top_level.txt") or "").split()
            if name in tops or ("\n" + listed) in "\n" + (one.read_text("RECORD") or ""):
                named.append(one)
    if not named:
        # Elsewhere on the path: an editable install.
        try:
            named = [metadata.distribution(name)]
        except metadata.PackageNotFoundError:
            return None
    direct = json.loads(named[0].read_text("direct_url.json") or "{}")
    return {
        "name": named[0].metadata["Name"],
        "version": named[0].version,
        "editable": bool(direct.get("dir_info", {}).get("editable")),
    }


def _plugins() -> List[Dict[str, Any]]:  # noqa: UP006
    from importlib import metadata

    found = []
    for one in metadata.distributions():
        try:
            points = list(one.entry_points)
        except Exception:
            # Metadata of someone else's that cannot be read.
            continue
        for point in points:
            if point.group.startswith("vllm."):
                top = point.value.partition(":")[0].partition(".")[0].strip()
                own = top in ("vllm", "hisparse_guard")
                found.append(
                    {
                        "group": point.group.partition(".")[2],
                        "name": point.name,
                        "value": point.value,
                        "folders": [] if own else _code_of(top),
                        "own": own,
                    }
                )
    return found


def _code_of(name: str) -> List[str]:  # noqa: UP006
    """Where the code of a top-level module is, a package without an ``__init__`` included."""
    from importlib.util import find_spec

    try:
        spec = find_spec(name)
    except Exception:
        return []
    if spec is None:
        return []
    return list(spec.submodule_search_locations or ()) or [spec.origin or ""]


def _site(names: Iterable[str]) -> List[Optional[str]]:  # noqa: UP006, UP045
    """Every `sitecustomize` on the path, in the order in which Python would find them."""
    from importlib.machinery import PathFinder

    found = []
    for entry in names:
        try:
            spec = PathFinder.find_spec("sitecustomize", [entry])
        except Exception:
            continue
        if spec is not None and spec.loader is not None:
            found.append(spec.origin)
    return found


def _at_start(guard: Any) -> List[str]:  # noqa: UP006
    """Where the code is that the image's own start has loaded: a sitecustomize, a .pth file's."""
    own = [str(Path(folder).parent) for folder in (guard or {}).get("folders", ())]
    known = ("vllm", "torch", "flashinfer", "wrapt", "hisparse_guard")
    known += tuple(getattr(sys, "stdlib_module_names", ()))
    names = {name.partition(".")[0] for name in sys.modules if not name.startswith("__")}
    found = [folder for name in names.difference(known) for folder in _code_of(name)]
    found += [file for file in _site(sys.path) if file]
    found = [file for file in found if str(Path(file).parent) not in own]
    return sorted({file for file in found if Path(file).exists()})


def _patched(names: Iterable[str], folders: List[str]) -> List[Dict[str, Any]]:  # noqa: UP006
    """Who would load each of the modules that are patched, asked as Python asks.

    Stand-ins take the parents' places, so that no finder imports vLLM on the way.
    """
    from importlib.util import find_spec
    from types import ModuleType

    found = []
    for name in names:
        parts = name.split(".")
        for depth in range(1, len(parts)):
            parent = ModuleType(".".join(parts[:depth]))
            parent.__path__ = [str(Path(folder, *parts[1:depth])) for folder in folders]
            sys.modules[parent.__name__] = parent
        try:
            spec = find_spec(name)
        except Exception as error:
            found.append({"module": name, "patched": False, "loader": repr(error)})
            continue
        finally:
            for depth in range(1, len(parts)):
                del sys.modules[".".join(parts[:depth])]
        if spec is not None:
            kind = type(spec.loader).__name__
            found.append({"module": name, "patched": kind == "PatchLoader", "loader": kind})
    return found


def _remnants() -> List[str]:  # noqa: UP006
    """What is named like FlashInfer on the path, whether Python can import it or not."""
    found = []
    for entry in sys.path:
        try:
            names = [path.name for path in Path(entry or ".").iterdir()]
        except OSError:
            continue
        ours = ("flashinfer", "flashinfer_jit_cache")
        found += [str(Path(entry, name)) for name in names if name.partition(".")[0] in ours]
    return found


def _unlisted() -> List[str]:  # noqa: UP006
    """Folders of the path that are there and cannot be listed: a package in them is not found."""
    found = []
    for entry in sys.path:
        try:
            if Path(entry).is_dir():
                list(Path(entry).iterdir())
        except OSError:
            found.append(entry)
    return found


def main() -> None:
    late, modules = sys.argv[1:3]
    flags = sys.flags
    seen = {
        "executable": sys.executable,
        "python": ".".join(map(str, sys.version_info[:3])),
        "implementation": sys.implementation.name,
        "prefix": sys.prefix,
        "isolated": flags.isolated,
        "ignore_environment": flags.ignore_environment,
        "no_site": flags.no_site,
        "path": list(sys.path),
        "prefixes": PREFIXES,
        "environment": {n: v for n, v in os.environ.items() if n.startswith(tuple(PREFIXES))},
        "planted": any(type(f).__name__ == "PatchFinder" for f in sys.meta_path),
        "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None),
        "sitecustomizes": _site(sys.path[int(late) :]),
        "guard": _location("hisparse_guard"),
        "wrapt": _location("wrapt"),
        "vllm": _location("vllm"),
        "torch": _location("torch"),
        "flashinfer": _location("flashinfer"),
        "jit_cache": _location("flashinfer_jit_cache"),
    }
    for name, distribution in (
        ("vllm", "vllm"),
        ("flashinfer", "flashinfer-python"),
        ("jit_cache", "flashinfer-jit-cache"),
        ("wrapt", "wrapt"),
    ):
        found = seen[name]
        if found and found.get("folders"):
            try:
                found["distribution"] = _distribution(distribution, found["folders"])
            except Exception as error:
                found["distribution"] = None
                found["metadata_error"] = repr(error)
    seen["plugins"] = _plugins()
    seen["at_start"] = _at_start(seen["guard"])
    seen["unlisted"] = _unlisted()
    seen["flashinfer_named"] = _remnants()
    folders = (seen["vllm"] or {}).get("folders") or []
    wanted = modules.split(",") if folders and seen["planted"] else []
    seen["patched_modules"] = _patched(wanted, folders)
    loaded = {name.partition(".")[0] for name in sys.modules}
    seen["imported"] = sorted(loaded & {"vllm", "torch", "flashinfer", "wrapt"})
    sys.stdout.write("\n" + json.dumps(seen) + "\n")


main()
