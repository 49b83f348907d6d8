"""Labels read from code: vLLM's build class and FlashInfer's kernel class.

Read from source text, never from a version number, and nothing is imported. The running guard
and `hisparse-guard doctor` both take the labels from here. The guard's rule depends on neither.

No function of the two labels raises anything: what cannot be read is "unknown", with the reason.
"""

import ast
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
    """

    label: KernelClass
    reason: str


def labels() -> tuple[BuildClass, KernelClass]:
    """The labels of the vLLM that is loaded and of the FlashInfer that it would import."""
    vllm, flashinfer = sys.modules.get("vllm"), PathFinder.find_spec("flashinfer")
    folders = getattr(flashinfer, "submodule_search_locations", ())
    return build_class(getattr(vllm, "__path__", ())).label, kernel_class(folders).label


# vLLM ------------------------------------------------------------------------------------------


def build_class(vllm_locations: Iterable[str]) -> Build:
    """The build class of the package ``vllm`` that lies in these folders (its ``__path__``)."""
    try:
        return _build_class([Path(location) for location in vllm_locations])
    except Exception as error:  # of the file system, the parser, a file nested too deeply
        return Build("unknown", (f"vLLM's source cannot be read: {error!r}",))


def _build_class(folders: list[Path]) -> Build:
    has_hisparse = _config_has_hisparse(folders)
    tree = ast.parse(module_source(folders, ALL_REDUCE) or b"")
    getter = functions(tree).get(GETTER)
    if getter is None:
        return Build("no-fi-allreduce", (f"no function {GETTER} in {ALL_REDUCE}",))
    if not has_hisparse:
        return Build("no-hisparse", ("no module of vllm.config names hisparse_config",))
    parameter, reader = init_parameter(getter), _reader_of_hisparse(folders, tree)
    if reader is None:
        return Build("unguarded", ("nothing in the resolver reads HiSparse",), parameter)
    if parameter is None:
        return Build(
            "leaky", (reader, "the getter resolves again, in whatever context it is called")
        )
    return Build(
        "fixed", (reader, f"the getter takes what init resolved as {parameter}"), parameter
    )


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
        beside = base.parent
        if [*beside.glob(f"{base.name}.*"), *beside.glob(f"__pycache__/{base.name}.*")]:
            raise FileNotFoundError(f"only compiled: {base}")
    return None


def functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def names(node: ast.AST) -> Iterator[str]:
    """The identifiers in `node`, and the strings that could be one, as `getattr` takes them."""
    for part in ast.walk(node):
        for value in part.__dict__.values():
            if isinstance(value, str) and value.replace(".", "_").isidentifier():
                yield from value.split(".")


def _config_has_hisparse(folders: list[Path]) -> bool:
    """Whether the code of a module of ``vllm.config`` names ``hisparse_config``."""
    files = [file.read_bytes() for folder in folders for file in folder.glob("config/*.py")]
    if not files:
        raise FileNotFoundError("no source of vllm.config")
    # The smallest first: one is enough, and the largest takes 40 ms to parse.
    candidates = sorted((text for text in files if b"hisparse_config" in text), key=len)
    return any("hisparse_config" in names(ast.parse(text)) for text in candidates)


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
    trees = {ALL_REDUCE: all_reduce}
    pending = [(ALL_REDUCE, RESOLVER)]
    for module, name in pending:  # grows on the way
        if module not in trees:
            source = module_source(folders, module) or b""
            trees[module] = ast.parse(source if b"hisparse" in source.lower() else b"")
        function = functions(trees[module]).get(name)
        if function is not None:
            imported = _imports(trees[module])
            for word in sorted(set(names(function))):
                if "hisparse" in word.lower():
                    return f"{name} in {module} reads {word}"
                helper = imported.get(word, (module, word))
                pending += [helper] if helper not in pending else []
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
_COMMENT = rf"(?s){_STRING}|//[^\n]*|/\*.*?\*/"
# Without \b, which makes a search through the whole file 30 times slower.
_DEFINITION = r"void\s+ctaArrive\s*\(\s*\)\s*(?=\{)"

_CLUSTER = r"(?:auto|\w+::cluster_group)(?P<cluster>\w+)=\w+::this_cluster\(\);"
_BRANCH = rf"\{{ifconstexpr\(\w+\)\{{{_CLUSTER}__cluster_barrier_arrive\(\);"
_WAIT = r"__cluster_barrier_wait\(\);"
# How the body of `ctaArrive` begins, without blanks. Nothing else is recognised.
_SHAPES: dict[str, KernelClass] = {
    # FlashInfer up to 0.6.12: cluster.sync().
    r"\{int(?P<tid>\w+)\{0\};#if\(defined\(__CUDA_ARCH__\)&&\(__CUDA_ARCH__>=900\)\)"
    rf"{_CLUSTER}(?P=tid)=(?P=cluster)\.thread_rank\(\);(?P=cluster)\.sync\(\);#else": "waits",
    # 0.6.13 to 0.7.2.post1: one warp waits.
    rf"{_BRANCH}if\([^{{;]*threadIdx[^{{;]*\)\{{{_WAIT}[^#}}]*\}}return;\}}": "races",
    # 0.7.4: every thread waits.
    _BRANCH + _WAIT: "waits",
}


def kernel_class(flashinfer_locations: Iterable[str]) -> Kernel:
    """The kernel class of the package ``flashinfer`` in these folders (its ``__path__``)."""
    try:
        return _kernel_class([Path(location) for location in flashinfer_locations])
    except Exception as error:  # as above
        return Kernel("unknown", f"FlashInfer's source cannot be read: {error!r}")


def _kernel_class(folders: list[Path]) -> Kernel:
    if compiled_copy(folders):
        return Kernel("unknown", "flashinfer-jit-cache brings the kernel compiled")
    # The source that FlashInfer compiles on first use.
    files = [file for folder in folders for file in folder.glob(f"data/include/**/{KERNEL_FILE}")]
    classes = {_shape(file.read_text(errors="replace")) for file in files}
    found = "copies differ:" if classes else "no"
    return classes.pop() if len(classes) == 1 else Kernel("unknown", f"{found} {KERNEL_FILE}")


def compiled_copy(folders: Iterable[Path]) -> str | None:
    """Where flashinfer-jit-cache lies, if installed: its kernel is loaded, whatever the source
    says."""
    path = [*(str(folder.parent) for folder in folders), *sys.path]
    return getattr(PathFinder.find_spec("flashinfer_jit_cache", path), "origin", None)


def _shape(text: str) -> Kernel:
    text = re.sub(_COMMENT, lambda found: found[0] if found[0][0] == '"' else " ", text)
    bodies = [definition.end() for definition in re.finditer(_DEFINITION, text)]
    if len(bodies) != 1 or not re.search(r"\.\s*ctaArrive\s*\(", text):
        return Kernel("unknown", f"{KERNEL_FILE} does not define and call one ctaArrive")
    body = "".join(text[bodies[0] :].split())
    label = next((label for shape, label in _SHAPES.items() if re.match(shape, body)), None)
    if label is None:
        return Kernel("unknown", "ctaArrive has a shape that this guard does not know")
    if label == "races" and len(re.findall(r"__cluster_barrier_wait|\.\s*sync\s*\(", text)) > 1:
        return Kernel("unknown", "the cluster may wait outside ctaArrive")
    return Kernel(label, f"as ctaArrive in {KERNEL_FILE} is written")
