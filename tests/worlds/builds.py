"""Packages in vLLM's shape, and ways in which builds and forks of it differ.

`files` gives the text of a package that is used as vLLM is: a config context, a resolver, a
creator, two getters, environment variables. A `Shape` changes it: names missing, renamed or turned
into something else, other signatures, odd answers, modules that are loaded in odd ways. No torch
is needed, and vLLM's own code is not copied: only its names and their order of calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

CONFIG = "vllm/config/vllm.py"
ALL_REDUCE = "vllm/distributed/device_communicators/flashinfer_all_reduce.py"
ENVS = "vllm/envs.py"

# Every name the guard hooks, the module it lies in, and its plain form.
HOOKED: dict[str, tuple[str, str]] = {
    "set_current_vllm_config": (
        CONFIG,
        """
@contextmanager
def set_current_vllm_config(vllm_config, check_compile=False, prefix=None):
    global _current
    before, _current = _current, vllm_config
    try:
        yield
    finally:
        _current = before
""",
    ),
    "get_current_vllm_config_or_none": (
        CONFIG,
        """
def get_current_vllm_config_or_none():
    return _current
""",
    ),
    "_resolve_fi_ar_backend": (
        ALL_REDUCE,
        """
def _resolve_fi_ar_backend(group):
    note("resolve", group)
    if envs.VLLM_FLASHINFER_ALLREDUCE_BACKEND != "auto":
        return envs.VLLM_FLASHINFER_ALLREDUCE_BACKEND, False
    return "mnnvl", True
""",
    ),
    "_create_workspace": (
        ALL_REDUCE,
        """
def _create_workspace(backend, world_size, rank, group):
    note("create", backend, group)
    return Workspace(backend)
""",
    ),
    "get_fi_ar_workspace": (
        ALL_REDUCE,
        """
def get_fi_ar_workspace(world_size, rank, group):
    "The workspace."
    global _workspace
    if _workspace is None:
        backend = first(_resolve_fi_ar_backend(group))
        if backend is not None:
            _workspace = _create_workspace(backend, world_size, rank, group)
    return _workspace
""",
    ),
    "get_fi_ar_quant_workspace": (
        ALL_REDUCE,
        """
def get_fi_ar_quant_workspace(world_size, rank, group):
    global _quant
    if _quant is None:
        backend = first(_resolve_fi_ar_backend(group))
        if backend is not None:
            if getattr(_workspace, "backend", None) == backend:
                _quant = _workspace
            else:
                _quant = _create_workspace(backend, world_size, rank, group)
    return _quant
""",
    ),
    "compile_factors": (
        ENVS,
        """
def compile_factors():
    return {"VLLM_FLASHINFER_ALLREDUCE_BACKEND": "auto"}
""",
    ),
}

HEAD = {
    "vllm/__init__.py": """
import logging, os, sys
__version__ = "0.33.0"
if os.environ.get("VLLM_CONFIGURE_LOGGING", "1") == "1":
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    logging.getLogger("vllm").addHandler(handler)
    logging.getLogger("vllm").setLevel(logging.INFO)
    logging.getLogger("vllm").propagate = False
""",
    ENVS: """
import os
def __getattr__(name):
    if name == "VLLM_FLASHINFER_ALLREDUCE_BACKEND":
        return os.environ.get(name, "auto")
    raise AttributeError(name)
""",
    "vllm/config/__init__.py": "from vllm.config.vllm import *\n",
    CONFIG: """
from contextlib import contextmanager
import functools, operator, sys, types
_current = None
class Part:
    def __init__(self, **parts):
        self.__dict__.update(parts)
class VllmConfig(Part):
    pass
""",
    "vllm/distributed/__init__.py": "",
    "vllm/distributed/device_communicators/__init__.py": "",
    ALL_REDUCE: """
import atexit, functools, operator, sys, types
import vllm.envs as envs
calls = []
def note(what, *about):
    calls.append((what, *[a for a in about if isinstance(a, (str, int))]))
def first(answer):
    return answer[0] if isinstance(answer, tuple) and answer else answer
class Workspace:
    def __init__(self, backend):
        self.backend = backend
_workspace = _quant = None
def destroy_fi_ar_workspace():
    global _workspace, _quant
    _workspace = _quant = None
atexit.register(lambda: print("destroyed", _workspace is None))
""",
    # As the fusion pass and the fused op: names taken at import, where there are any.
    "vllm/fused.py": """
import vllm.distributed.device_communicators.flashinfer_all_reduce as _home
for _name in ("get_fi_ar_workspace", "get_fi_ar_quant_workspace"):
    try:
        globals()[_name] = getattr(_home, _name)
    except Exception as error:
        globals()[_name] = None
""",
}


class Shape(NamedTuple):
    """One variation.

    Attributes:
        name: of the case.
        bodies: hooked name -> the text in its place (empty: the name is missing).
        after: file -> text that is put at its end.
        replaced: file -> its whole text, or None for a file that is not there.
        main: code that is run instead of the usual program's imports.
        form: "folder", "zip" or "pyc" (no source).
    """

    name: str
    bodies: Mapping[str, str] = MappingProxyType({})
    after: Mapping[str, str] = MappingProxyType({})
    replaced: Mapping[str, str | None] = MappingProxyType({})
    main: str = ""
    form: str = "folder"


def files(shape: Shape) -> dict[str, str]:
    """The package of a shape: file -> text."""
    out = dict(HEAD)
    for name, (file, plain) in HOOKED.items():
        out[file] += shape.bodies.get(name, plain)
    for file, text in shape.after.items():
        out[file] = out.get(file, "") + text
    for file, whole in shape.replaced.items():
        if whole is None:
            out.pop(file, None)
        else:
            out[file] = whole
    return out


def missing() -> Iterator[Shape]:
    """Each patched name missing, the module's getters, and all."""
    getters = ("get_fi_ar_workspace", "get_fi_ar_quant_workspace")
    for names in ((), *((name,) for name in HOOKED), getters, tuple(HOOKED)):
        yield Shape("missing-" + ("+".join(names) or "nothing"), dict.fromkeys(names, ""))


def renamed() -> Iterator[Shape]:
    for name, (_, plain) in HOOKED.items():
        yield Shape(f"renamed-{name}", {name: plain.replace(f"def {name}(", f"def new{name}(")})


# What a function may have been turned into: text after its plain form.
TURNED: dict[str, str] = {
    "class": """
_plain_NAME = NAME
class NAME:
    def __new__(cls, *args, **kwargs):
        return _plain_NAME(*args, **kwargs)
""",
    "partial": "NAME = functools.partial(NAME)\n",
    "lru-cache": "NAME = functools.lru_cache(maxsize=1)(NAME)\n",
    "wrapped": """
_plain_NAME = NAME
@functools.wraps(_plain_NAME)
def NAME(*args, **kwargs):
    return _plain_NAME(*args, **kwargs)
""",
    "coroutine": """
_plain_NAME = NAME
async def NAME(*args, **kwargs):
    return _plain_NAME(*args, **kwargs)
""",
    "callable-object": """
_plain_NAME = NAME
class _Callable_NAME:
    def __call__(self, *args, **kwargs):
        return _plain_NAME(*args, **kwargs)
NAME = _Callable_NAME()
""",
    "none": "NAME = None\n",
    "raises": "def NAME(*args, **kwargs):\n    raise RuntimeError('its own')\n",
    "exits": "def NAME(*args, **kwargs):\n    raise SystemExit(3)\n",
    "interrupts": "def NAME(*args, **kwargs):\n    raise KeyboardInterrupt\n",
    "module-getattr": """
_plain_NAME = NAME
del NAME
def __getattr__(name):
    if name == "NAME":
        return _plain_NAME
    raise AttributeError(name)
""",
}


def turned() -> Iterator[Shape]:
    for name, (file, plain) in HOOKED.items():
        for kind, text in TURNED.items():
            if kind == "module-getattr" and file == ENVS:
                continue  # that module has one already
            if kind in ("exits", "interrupts") and name == "get_current_vllm_config_or_none":
                continue  # the guard asks it once more, and both pass by rule
            if (kind, name) == ("coroutine", "set_current_vllm_config"):
                continue  # no build has a config context that is awaited
            yield Shape(f"{kind}-{name}", {name: plain + text.replace("NAME", name)})


SIGNATURES = {
    "none": "()",
    "optional": "(group=None)",
    "keyword-only": "(*, group=None)",
    "any": "(*args, **kwargs)",
    "fork": "(world_size=None, device=None)",
    "pg": "(pg=None)",
}


def signatures() -> Iterator[Shape]:
    for kind, parameters in SIGNATURES.items():
        resolver = (
            f"def _resolve_fi_ar_backend{parameters}:\n"
            "    note('resolve')\n"
            "    return 'mnnvl', True\n"
        )
        yield Shape(
            f"signature-{kind}-_resolve_fi_ar_backend", {"_resolve_fi_ar_backend": resolver}
        )
        for name, variable in (
            ("get_fi_ar_workspace", "_workspace"),
            ("get_fi_ar_quant_workspace", "_quant"),
        ):
            getter = (
                f"def {name}{parameters}:\n"
                f"    global {variable}\n"
                f"    if {variable} is None:\n"
                "        backend = first(_resolve_fi_ar_backend(None))\n"
                f"        {variable} = _create_workspace(backend, 2, 0, None)\n"
                f"    return {variable}\n"
            )
            yield Shape(f"signature-{kind}-{name}", {name: getter})
        creator = (
            f"def _create_workspace{parameters}:\n"
            "    note('create')\n"
            "    return Workspace('other')\n"
        )
        yield Shape(f"signature-{kind}-_create_workspace", {"_create_workspace": creator})
        context = f"@contextmanager\ndef set_current_vllm_config{parameters}:\n    yield\n"
        yield Shape(
            f"signature-{kind}-set_current_vllm_config", {"set_current_vllm_config": context}
        )


KINDS = """
import enum as _enum
from collections import namedtuple as _namedtuple
Named = _namedtuple("Named", "backend fallback")
class Backend(str, _enum.Enum):
    MNNVL = "mnnvl"
"""

# Answers of resolvers, as source text: releases, forks, and what the next one may say.
ANSWERS = (
    *("None", "'trtllm'", "'mnnvl'", "'oneshot'", "(None, False)", "('trtllm', False)"),
    *("('mnnvl', True)", "('mnnvl', False)", "('other', True)", "('mnnvl', True, 3)"),
    *("Named('mnnvl', True)", "Backend.MNNVL", "(Backend.MNNVL, True)", "{'backend': 'mnnvl'}"),
)
WORKSPACES = ("None", "Workspace('other')", "Workspace(None)", "object()")
MANAGERS = ("nullcontext()", "suppress(ZeroDivisionError)", "ExitStack()")


def answers() -> Iterator[Shape]:
    for answer in ANSWERS:
        body = f"def _resolve_fi_ar_backend(group):\n    note('resolve')\n    return {answer}\n"
        yield Shape(f"answer-{answer}", {"_resolve_fi_ar_backend": KINDS + body})
    for workspace in WORKSPACES:
        body = f"def _create_workspace(backend, world_size, rank, group):\n    return {workspace}\n"
        yield Shape(f"made-{workspace}", {"_create_workspace": body})
    for manager in MANAGERS:
        body = (
            "from contextlib import ExitStack, nullcontext, suppress\n"
            f"def set_current_vllm_config(vllm_config, *a, **k):\n    return {manager}\n"
        )
        yield Shape(f"manager-{manager}", {"set_current_vllm_config": body})


# Configs a caller may hand in, as source text; the program enters the context with each.
CONFIGS = (
    *("None", "Part()", "Part(attention_config=None)", "VllmConfig"),
    *("Part(kv_transfer_config=Part(kv_connector_extra_config={'connectors': [{}]}))",),
)


def configs() -> Iterator[Shape]:
    for number, config in enumerate(CONFIGS):
        yield Shape(
            f"config-{number}-{config[:30]}",
            after={
                "vllm/config/__init__.py": "from vllm.config.vllm import *\n"
                f"extra_config = {config}\n",
            },
        )
