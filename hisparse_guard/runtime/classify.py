"""What kind of vLLM build this is, read from its code: never from a version, never by importing it.

The one classifier: the running guard and ``hisparse-guard doctor`` both call `classify` with the
folders of the package ``vllm``. It reads code objects, so a tree of .pyc files will do.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from pkgutil import iter_modules
from types import CodeType
from typing import Any, Literal, NamedTuple

BuildClass = Literal["no-fi-allreduce", "no-hisparse", "unguarded", "leaky", "fixed"]

ALL_REDUCE = "vllm.distributed.device_communicators.flashinfer_all_reduce"
RESOLVER = "_resolve_fi_ar_backend"
GETTER = "get_fi_ar_workspace"
# The getter's parameters in every release from 0.19 to 0.33.
GETTER_PARAMETERS = {"world_size", "rank", "max_token_num", "hidden_dim", "dtype", "group"}

_HELPER_DEPTH = 4


class Build(NamedTuple):
    """A build class and what it rests on.

    Attributes:
        reasons: one short clause each, for a person.
        parameter: the getter's parameter that takes the backend resolved at init, if any.
    """

    label: BuildClass
    reasons: tuple[str, ...]
    parameter: str | None = None


class Tree:
    """The code of one ``vllm`` package, by module name, without importing any of it."""

    def __init__(self, locations: Iterable[str]) -> None:
        self._locations = list(locations)
        self._codes: dict[str, CodeType | None] = {}

    def _spec(self, name: str) -> Any:
        path = self._locations
        for depth, part in enumerate(name.split(".")):
            if depth == 0:
                continue
            spec = PathFinder.find_spec(part, path)
            if spec is None:
                return None
            path = list(spec.submodule_search_locations or ())
        # A loader answers for the one name it was made for.
        return spec if name != "vllm" else None

    def code(self, name: str) -> CodeType | None:
        """The code of the module `name`; None where it is absent or cannot be read."""
        if name not in self._codes:
            code = None
            try:
                spec = self._spec(name)
                if spec is not None and spec.loader is not None:
                    code = spec.loader.get_code(spec.name)
            except (ImportError, OSError, SyntaxError, ValueError, EOFError):
                code = None
            self._codes[name] = code
        return self._codes[name]

    def source(self, name: str) -> str | None:
        """The text of the module `name`; None where there is only bytecode, or nothing."""
        spec = self._spec(name)
        try:
            text = spec.loader.get_source(spec.name)
        except (AttributeError, ImportError, OSError, ValueError):
            return None
        return text if isinstance(text, str) else None

    def mentions(self, package: str, word: str) -> str | None:
        """The first module of `package` whose code names `word`, or None."""
        spec = self._spec(package)
        if spec is None:
            return None
        for entry in iter_modules(list(spec.submodule_search_locations or ())):
            name = f"{package}.{entry.name}"
            # Identifiers lie in source and in bytecode as plain bytes: most files are
            # ruled out without being compiled.
            found = self._spec(name)
            try:
                raw = found.loader.get_data(found.origin)
            except (AttributeError, ImportError, OSError):
                continue
            if word.encode() in raw:
                code = self.code(name)
                if code is not None and any(word in _words(c) for c in _nested(code)):
                    return name
        return None


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _words(code: CodeType) -> set[str]:
    """The names a piece of code uses, and its string constants that could be names."""
    words = {*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars}
    for constant in code.co_consts:
        if isinstance(constant, str) and constant.replace(".", "_").isidentifier():
            words.update(constant.split("."))
    return words


def _functions(code: CodeType) -> dict[str, CodeType]:
    """Functions and classes that `code` (a module or a class body) defines, by name."""
    return {c.co_name: c for c in code.co_consts if isinstance(c, CodeType)}


def _imports(code: CodeType, package: str) -> dict[str, tuple[str, str]]:
    """Names bound by ``from X import Y`` in `code`: name -> (module, name there)."""
    bound: dict[str, tuple[str, str]] = {}
    module = member = None
    level: Any = 0
    previous: list[Any] = [None, None]
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            level = previous[-2] if isinstance(previous[-2], int) else 0
            module = instruction.argval
            if level:
                parents = package.split(".")
                parents = parents[: len(parents) - level + 1]
                module = ".".join([*parents, module] if module else parents)
        elif instruction.opname == "IMPORT_FROM":
            member = instruction.argval
        elif instruction.opname.startswith("STORE_") and module and member:
            if isinstance(instruction.argval, str):
                bound[instruction.argval] = (module, member)
            member = None
        previous = [previous[-1], instruction.argval]
    return bound


def _reads_hisparse(tree: Tree, module: str, code: CodeType, depth: int = 0) -> str | None:
    """How `code`, or a helper it calls, comes to read HiSparse; None if it does not."""
    for part in _nested(code):
        for word in sorted(_words(part)):
            if "hisparse" in word.lower():
                return f"{code.co_name} in {module} reads {word}"
    if depth == _HELPER_DEPTH:
        return None
    package = module.rpartition(".")[0]
    whole = tree.code(module)
    local = _functions(whole) if whole is not None else {}
    imported = _imports(whole, package) if whole is not None else {}
    for part in _nested(code):
        for name, source in {**imported, **_imports(part, package)}.items():
            if name not in {*part.co_names, *part.co_varnames} or not source[0].startswith("vllm"):
                continue
            target = tree.code(source[0])
            helper = _functions(target).get(source[1]) if target is not None else None
            if helper is not None:
                found = _reads_hisparse(tree, source[0], helper, depth + 1)
                if found:
                    return found
        for name in part.co_names:
            helper = local.get(name)
            if helper is not None and helper is not code:
                found = _reads_hisparse(tree, module, helper, depth + 1)
                if found:
                    return found
    return None


def _parameters(code: CodeType) -> list[str]:
    return list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _as_names(value: Any) -> tuple[str, ...]:
    # One instruction handles two variables on 3.13 and later.
    values = value if isinstance(value, tuple) else (value,)
    return tuple(v for v in values if isinstance(v, str))


def _kept_at_init(init: CodeType) -> set[str]:
    """Attributes in which ``__init__`` keeps what the resolver answered."""
    lines: dict[int, list[dis.Instruction]] = {}
    line = 0
    for instruction in dis.get_instructions(init):
        positions = getattr(instruction, "positions", None)
        starts = positions.lineno if positions is not None else instruction.starts_line
        line = starts or line
        lines.setdefault(line, []).append(instruction)
    answers: set[str] = set()
    kept: set[str] = set()
    for _, instructions in sorted(lines.items()):
        resolves = any(i.argval == RESOLVER for i in instructions)
        loads: set[str] = set()
        for instruction in instructions:
            names = _as_names(instruction.argval)
            if "LOAD_FAST" in instruction.opname:
                loads.update(names)
            if resolves and "STORE_FAST" in instruction.opname:
                answers.update(names)
            if instruction.opname == "STORE_ATTR" and (resolves or loads & answers):
                kept.update(names)
    return kept


def _backend_parameter(module: CodeType, getter: CodeType) -> str | None:
    """The getter's parameter for the backend resolved at init, whatever it is called."""
    extra = [p for p in _parameters(getter) if p not in GETTER_PARAMETERS]
    for parameter in extra:
        if "backend" in parameter.lower():
            return parameter
    for holder in _functions(module).values():
        methods = _functions(holder)
        init = methods.get("__init__")
        kept = _kept_at_init(init) if init is not None and RESOLVER in init.co_names else set()
        for method in methods.values():
            if GETTER not in method.co_names or not kept.intersection(method.co_names):
                continue
            passed = {k for c in method.co_consts if isinstance(c, tuple) for k in c}
            for parameter in extra:
                if parameter in passed and parameter != "device":
                    return parameter
    return None


def classify(locations: Iterable[str]) -> Build:
    """The build class of the ``vllm`` package that lies in `locations` (its ``__path__``)."""
    tree = Tree(locations)
    module = tree.code(ALL_REDUCE)
    getter = _functions(module).get(GETTER) if module is not None else None
    if module is None or getter is None:
        missing = "module flashinfer_all_reduce" if module is None else f"function {GETTER}"
        return Build("no-fi-allreduce", (f"no {missing}",))
    where = tree.mentions("vllm.config", "hisparse_config")
    if where is None:
        return Build("no-hisparse", ("no module of vllm.config names hisparse_config",))
    reasons = [f"{where} has hisparse_config"]
    resolver = _functions(module).get(RESOLVER)
    parameter = _backend_parameter(module, getter)
    knows = _reads_hisparse(tree, ALL_REDUCE, resolver) if resolver is not None else None
    if resolver is None:
        reasons.append(f"no function {RESOLVER}")
    if knows is None:
        reasons.append("nothing in the resolver reads HiSparse")
        return Build("unguarded", tuple(reasons), parameter)
    reasons.append(knows)
    if parameter is None:
        reasons.append("the getter resolves again, in whatever context it is called")
        return Build("leaky", tuple(reasons))
    reasons.append(f"the getter takes what init resolved as {parameter}")
    return Build("fixed", tuple(reasons), parameter)
