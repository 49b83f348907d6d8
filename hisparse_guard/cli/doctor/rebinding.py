"""Whether code of vLLM, or of a plugin, replaces what the guard patches, after it was patched."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hisparse_guard.cli.doctor.model import Finding
from hisparse_guard.cli.doctor.signs import code_files

# `__path__` says where a package's modules are found.
_MOVES_MODULES = re.compile(rb"__path__\s*(?:=[^=]|\+=|\[)|__path__\.\w+\(|\bextend_path\b")


def rebindings(
    folders: Sequence[str], patches: Sequence[Any], plugins: bool = False
) -> Iterator[Finding]:
    """A finding for each file that replaces a patched function or the module that holds it.

    Args:
        folders: of vLLM's package, or with `plugins` of the plugins that it loads.
    """
    modules = {module for patch in patches for module in patch.modules}
    names = {patch.name for patch in patches}
    pattern = _replacing(names, modules)
    # A search for plain words takes a fraction of the time that the patterns do.
    words = [word.encode() for word in (*names, *modules, "flashinfer_all_reduce", "_path")]
    parents = {module.rpartition(".")[0] for module in modules} | modules
    for folder in folders:
        for path, problem in code_files(Path(folder)):
            module = "" if plugins else _module(path, folder)
            # What cannot be read is told with the signs.
            text = path.read_bytes() if problem is None and path.suffix == ".py" else b""
            if not any(word in text for word in words):
                continue
            found = None if module in modules else pattern.search(text)
            if (
                found is None
                and not plugins
                and any(f"{one}.".startswith(f"{module}.") for one in parents)
            ):
                found = _MOVES_MODULES.search(text)
            if found is not None:
                said = os.fsdecode(found[0]).strip()
                where = str(path) if plugins else os.path.relpath(path, folder)
                said = f"{where} has {said!r}: it may replace what the guard patches"
                yield Finding("unknown", "patches", said)


def _module(path: Path, folder: str) -> str:
    parts = Path("vllm", os.path.relpath(path, folder)).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _replacing(names: Iterable[str], modules: Iterable[str]) -> re.Pattern[bytes]:
    """`module.name = …`, the same of its `__code__`, a name written as text, a module replaced."""
    any_name = "|".join(map(re.escape, sorted(names)))
    last = "|".join(sorted({module.rpartition(".")[2] for module in modules} - {"config", "vllm"}))
    whole = "|".join(map(re.escape, sorted(modules)))
    return re.compile(
        rf"\.(?:{any_name})(?:\.__\w+__)?\s*=[^=]"
        rf"|[\"'](?:[\w.]+[.:])?(?:{any_name})[\"']"
        rf"|\bmodules\[\s*[\"'](?:{whole})[\"']\s*\]\s*=[^=]"
        rf"|\b(?:{last})\.__(?:dict|class)__".encode()
    )
