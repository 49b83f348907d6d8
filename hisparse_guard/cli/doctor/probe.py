"""Runs inside the interpreter that is to serve, and prints what that one sees, as JSON.

Its source is handed over with ``-c``: it imports the standard library and, at the very end, the
guard's own classifier, and must stay free of syntax that an old Python refuses. It never imports
vLLM, torch or FlashInfer: specs and files only.

Arguments: how many entries of ``sys.path`` came after ``site`` had run; the path entry of the guard
that asks, for its classifier.
"""

import json
import sys
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional  # noqa: UP035 - for old interpreters


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


def _plugins() -> List[Dict[str, str]]:  # noqa: UP006
    from importlib import metadata

    found = []
    for one in metadata.distributions():
        for point in one.entry_points:
            if point.group == "vllm.general_plugins":
                found.append({"name": point.name, "value": point.value})
    return found


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


def _classified(asker: str, folders: List[str]) -> Any:  # noqa: UP006
    """What the guard's own classifier says of the vLLM in `folders`."""
    for name in [n for n in sys.modules if n.partition(".")[0] == "hisparse_guard"]:
        del sys.modules[name]
    sys.path.insert(0, asker)
    try:
        from hisparse_guard.runtime import classify

        tree = classify.Tree(folders)
        module = tree.mentions("vllm.v1.hisparse", "submit_layer_mirror")
        return {
            "build": classify.classify(folders)._asdict(),
            "mirror": module,
            "mirror_source": None if module is None else tree.source(module),
        }
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    late, asker = sys.argv[1:3]
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
        "planted": any(type(f).__name__ == "HisparseGuardTripwire" for f in sys.meta_path),
        "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None),
        "sitecustomizes": _site(sys.path[int(late) :]),
        "guard": _location("hisparse_guard"),
        "wrapt": _location("wrapt"),
        "vllm": _location("vllm"),
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
    folders = (seen["vllm"] or {}).get("folders")
    seen["classified"] = _classified(asker, folders) if folders else None
    loaded = {name.partition(".")[0] for name in sys.modules}
    seen["imported"] = sorted(loaded & {"vllm", "torch", "flashinfer", "wrapt"})
    sys.stdout.write("\n" + json.dumps(seen) + "\n")


main()
