"""Labels read from code: vLLM's build class and FlashInfer's kernel class.

Read from source text, never from a version number, and nothing is imported. The running guard
and `hisparse-guard doctor` both take the labels from here. The guard's rule depends on neither.

Both functions are total: what cannot be read is "unknown", with the reason.
"""

import ast
import itertools
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Literal, NamedTuple

BuildClass = Literal["no-fi-allreduce", "no-hisparse", "unguarded", "leaky", "fixed", "unknown"]
KernelClass = Literal["waits", "races", "unknown"]

ALL_REDUCE = "vllm.distributed.device_communicators.flashinfer_all_reduce"
RESOLVER = "_resolve_fi_ar_backend"
GETTER = "get_fi_ar_workspace"
# The getter's parameters in vLLM 0.19 to 0.33.
GETTER_PARAMETERS = {"world_size", "rank", "max_token_num", "hidden_dim", "dtype", "group"}
KERNEL_FILE = "trtllm_mnnvl_allreduce.cuh"

# What reading foreign source can raise: the file system, the parser, a file nested too deeply.
_UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)


class Build(NamedTuple):
    """vLLM's build class and what it rests on.

    Attributes:
        reasons: one short clause each, for a person.
        parameter: the getter's parameter that takes the backend resolved at init, if any.
    """

    label: BuildClass
    reasons: tuple[str, ...]
    parameter: str | None = None


class Kernel(NamedTuple):
    """The class of FlashInfer's mnnvl all-reduce kernel and what it rests on.

    Attributes:
        reason: one short clause, for a person.
        suggestion: what the version of a compiled copy suggests; a hint, not a reading.
    """

    label: KernelClass
    reason: str
    suggestion: KernelClass | None = None


# vLLM ------------------------------------------------------------------------------------------


def build_class(vllm_locations: Iterable[str]) -> Build:
    """The build class of the package ``vllm`` that lies in these folders (its ``__path__``)."""
    try:
        return _build_class([Path(location) for location in vllm_locations])
    except _UNREADABLE as error:
        return Build("unknown", (f"vLLM's source cannot be read: {error!r}",))


def _build_class(folders: list[Path]) -> Build:
    if module_source(folders, "vllm") is None:
        return Build("unknown", ("no vLLM source here",))
    tree = ast.parse(module_source(folders, ALL_REDUCE) or b"")
    getter = functions(tree).get(GETTER)
    if getter is None:
        return Build("no-fi-allreduce", (f"no function {GETTER} in {ALL_REDUCE}",))
    where = _config_with_hisparse(folders)
    if where is None:
        return Build("no-hisparse", ("no module of vllm.config names hisparse_config",))
    parameter = init_parameter(getter)
    reader = _reader_of_hisparse(folders, tree)
    reasons = [f"{where} has hisparse_config", reader or "nothing in the resolver reads HiSparse"]
    if reader is None:
        return Build("unguarded", tuple(reasons), parameter)
    if parameter is None:
        reasons.append("the getter resolves again, in whatever context it is called")
        return Build("leaky", tuple(reasons))
    reasons.append(f"the getter takes what init resolved as {parameter}")
    return Build("fixed", tuple(reasons), parameter)


def module_source(folders: Iterable[Path], module: str) -> bytes | None:
    """The source of a module of vLLM; None where there is no such module.

    Raises:
        OSError: it cannot be read, or is there without its source.
    """
    for folder in folders:
        base = folder.joinpath(*module.split(".")[1:])
        for path in (base / "__init__.py", base.with_suffix(".py")):
            if path.is_file():
                return path.read_bytes()
        for pattern in (f"{base.name}.*", f"__pycache__/{base.name}.*"):
            for compiled in base.parent.glob(pattern):
                raise FileNotFoundError(f"only compiled: {compiled}")
    return None


def functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def names(node: ast.AST) -> Iterator[str]:
    """The identifiers in `node`, and the strings that could be one, as `getattr` takes them."""
    for part in ast.walk(node):
        for value in part.__dict__.values():
            if isinstance(value, str) and value.replace(".", "_").isidentifier():
                yield from value.split(".")


def _config_with_hisparse(folders: list[Path]) -> str | None:
    """The first module of ``vllm.config`` whose code names ``hisparse_config``."""
    files = [file for folder in folders for file in folder.glob("config/*.py")]
    if not files:
        raise FileNotFoundError("no source of vllm.config")
    # The smallest first: one is enough, and the largest takes 40 ms to parse.
    for file in sorted(files, key=lambda file: file.stat().st_size):
        source = file.read_bytes()
        if b"hisparse_config" in source and "hisparse_config" in names(ast.parse(source)):
            return f"vllm.config ({file.name})"
    return None


def init_parameter(getter: ast.FunctionDef) -> str | None:
    """The getter's parameter that decides whether it asks the resolver, whatever it is called."""
    parameters = {part.arg for part in ast.walk(getter.args) if isinstance(part, ast.arg)}
    for node in ast.walk(getter):
        if isinstance(node, (ast.If, ast.IfExp, ast.BoolOp)) and RESOLVER in names(node):
            condition = node if isinstance(node, ast.BoolOp) else node.test
            for name in names(condition):
                if name in parameters - GETTER_PARAMETERS:
                    return name
    return None


def _reader_of_hisparse(folders: list[Path], all_reduce: ast.Module) -> str | None:
    """How the resolver, or a helper it calls, reads HiSparse; None if it does not."""
    modules = {ALL_REDUCE: (functions(all_reduce), _imports(all_reduce))}
    pending = [(ALL_REDUCE, RESOLVER)]
    for module, name in pending:  # grows on the way
        if module not in modules:
            source = module_source(folders, module) or b""
            tree = ast.parse(source if b"hisparse" in source.lower() else b"")
            modules[module] = (functions(tree), _imports(tree))
        defined, imported = modules[module]
        used = sorted(set(names(defined[name]))) if name in defined else []
        for word in used:
            if "hisparse" in word.lower():
                return f"{name} in {module} reads {word}"
        called = [imported.get(word, (module, word)) for word in used]
        pending += [helper for helper in called if helper not in pending]
    return None


def _imports(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Names that ``from vllm.… import …`` binds anywhere: module and name there."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("vllm.")
        for alias in node.names
    }


# FlashInfer ------------------------------------------------------------------------------------

_STRING = r'"(?:\\.|[^"\\\n])*"'
# Strings too, lest a "//" within one be taken for a comment.
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.S)
_TOKEN = re.compile(rf"{_STRING}|\w+|::|&&|>=|==|[^\w\s]")
# Without \b, which makes a search through the whole file 30 times slower.
_DEFINITION = re.compile(r"void\s+ctaArrive\s*\(\s*\)\s*(?=\{)")

_CLUSTER = r"(?:auto|\w+ :: cluster_group) (?P<cluster>\w+) = \w+ :: this_cluster \( \) ; "
_BRANCH = rf"\{{ if constexpr \( \w+ \) \{{ {_CLUSTER}__cluster_barrier_arrive \( \) ; "
_WAIT = r"__cluster_barrier_wait \( \) ; "
# How the body of `ctaArrive` begins, token by token, with its class. Nothing else is recognised.
_SHAPES: tuple[tuple[str, KernelClass, str], ...] = (
    (  # FlashInfer up to 0.6.12
        r"\{ int (?P<tid>\w+) \{ 0 \} ; # if \( defined \( __CUDA_ARCH__ \) && "
        rf"\( __CUDA_ARCH__ >= 900 \) \) {_CLUSTER}"
        r"(?P=tid) = (?P=cluster) \. thread_rank \( \) ; (?P=cluster) \. sync \( \) ; # else ",
        "waits",
        "every thread of the cluster waits in cluster.sync()",
    ),
    (  # 0.6.13 to 0.7.2.post1
        rf"{_BRANCH}if \( [^{{;]*threadIdx[^{{;]*\) \{{ {_WAIT}[^#}}]*\}} return ; \}} ",
        "races",
        "every thread of the cluster arrives, only one warp waits",
    ),
    (  # 0.7.4
        _BRANCH + _WAIT,
        "waits",
        "every thread of the cluster arrives and waits",
    ),
)


def kernel_class(flashinfer_locations: Iterable[str]) -> Kernel:
    """The kernel class of the package ``flashinfer`` in these folders (its ``__path__``)."""
    try:
        folders = [Path(location) for location in flashinfer_locations]
        return _compiled_copy(folders) or _source_class(folders)
    except _UNREADABLE as error:
        return Kernel("unknown", f"FlashInfer's source cannot be read: {error!r}")


def _source_class(folders: list[Path]) -> Kernel:
    """The class of the source that FlashInfer compiles on first use."""
    for folder in folders:
        include = folder / "data" / "include"
        file = include / "flashinfer" / "comm" / KERNEL_FILE
        files = [file] if file.is_file() else include.rglob(KERNEL_FILE)
        classes = {_shape(file.read_text(errors="replace")) for file in files}
        if len(classes) > 1:
            return Kernel("unknown", f"copies of {KERNEL_FILE} differ")
        if classes:
            return classes.pop()
    return Kernel("unknown", f"no {KERNEL_FILE}")


def _shape(text: str) -> Kernel:
    text = _COMMENT.sub(lambda found: found[0] if found[0][0] == '"' else " ", text)
    bodies = [definition.end() for definition in _DEFINITION.finditer(text)]
    if len(bodies) != 1 or not re.search(r"\.\s*ctaArrive\s*\(", text):
        return Kernel("unknown", f"{KERNEL_FILE} does not define and call one ctaArrive")
    # No known beginning has more than 200 tokens.
    tokens = itertools.islice(_TOKEN.finditer(text, bodies[0]), 200)
    body = " ".join(token[0] for token in tokens) + " "
    for shape, label, reason in _SHAPES:
        if re.match(shape, body):
            waits = re.findall(r"__cluster_barrier_wait|\.\s*sync\s*\(", text)
            if label == "races" and len(waits) > 1:
                return Kernel("unknown", "the cluster may wait outside ctaArrive")
            return Kernel(label, reason)
    return Kernel("unknown", "ctaArrive has a shape that this guard does not know")


def _compiled_copy(folders: list[Path]) -> Kernel | None:
    """flashinfer-jit-cache, if installed: FlashInfer loads its kernel, whatever the source says."""
    path = [*(str(folder.parent) for folder in folders), *sys.path]
    found = PathFinder.find_spec("flashinfer_jit_cache", path)
    if found is None or not found.origin:
        return None
    metadata = Path(found.origin).parent.parent.glob("flashinfer_jit_cache-*.dist-info")
    version = next((m.name.removesuffix(".dist-info").split("-")[1] for m in metadata), "")
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    suggestion: KernelClass | None = None
    # The releases that were read: docs/kernel-class.md.
    if (0, 6, 13) <= numbers < (0, 7, 3):
        suggestion = "races"
    elif (0, 6, 10) <= numbers < (0, 6, 13) or numbers >= (0, 7, 4):
        suggestion = "waits"
    reason = f"flashinfer-jit-cache {version or '(version unknown)'} brings the kernel compiled"
    return Kernel("unknown", reason, suggestion)
