"""Runs many vLLM-shaped packages in one interpreter, one forked child each.

    python program.py < cases.json > results.json

A case: {"name", "path", "env", "main", "before"}. The child puts `path` in front of
`sys.path`, runs `before` and `main`, uses the package as a worker of vLLM
does, and ends as a program ends: with exit handlers, and the flush of its streams. What it printed
and how it ended is the result.
"""

import gc
import json
import os
import re
import shutil
import signal
import sys
import tempfile

FI = "vllm.distributed.device_communicators.flashinfer_all_reduce"
PATIENCE_S = 30


def shown(value):
    """A value in words that are the same with and without the guard."""
    try:
        kind = value.__class__.__name__
        if hasattr(type(value), "__exit__"):
            return "a context manager"  # the guard's is of its own class
        backend = getattr(value, "backend", "-")
        text = f"{kind} {value!r:.300} backend={backend!r:.300}"
    except Exception as error:
        text = f"{type(value).__name__} that raises {type(error).__name__}"
    return re.sub(r"0x[0-9a-f]+", "0x", text)


def step(name, function, *args, **kwargs):
    try:
        value = function(*args, **kwargs)
        print(name, "->", shown(value))
        return value
    except BaseException as error:
        try:
            print(name, "raised", type(error).__name__, re.sub(r"0x[0-9a-f]+", "0x", str(error)))
        except Exception:
            print(name, "raised", type(error).__name__)
        return None


def get(module, name):
    try:
        return getattr(module, name)
    except Exception as error:
        print(name, "cannot be had:", type(error).__name__)
        return None


class Group:
    """A process group; not hashable, as vLLM's own are not."""

    __hash__ = None

    def __init__(self, size=2):
        self.world_size, self.rank = size, 0

    def __eq__(self, other):
        raise RuntimeError("groups are not compared")

    def __repr__(self):
        return "Group"


def run_in_context(enter, config, function):
    with enter(config):
        return function()


def use(hisparse):
    """What a worker of vLLM does with the package."""
    import importlib

    modules = []
    for name in ("vllm", "vllm.config", "vllm.config.vllm", "vllm.envs", FI, "vllm.fused"):
        modules.append(step(f"import {name}", importlib.import_module, name))
    _, config, home, envs, fi, fused = modules
    VllmConfig = get(home, "VllmConfig") or dict
    part = get(home, "Part") or dict
    given = VllmConfig(
        attention_config=part(hisparse_config=object() if hisparse else None),
        model_config=part(model="m"),
        instance_id="i",
    )
    group, second = Group(), Group(4)
    enter, resolve = get(config, "set_current_vllm_config"), get(fi, "_resolve_fi_ar_backend")
    current = get(home, "get_current_vllm_config_or_none")
    extra = getattr(config, "extra_config", None)
    if hasattr(config, "extra_config"):
        step("extra", run_in_context, enter, extra, lambda: 1)
        step("extra by name", enter, vllm_config=extra)
    step("init", run_in_context, enter, given, lambda: shown(resolve(group)))
    step("never entered", enter, given)
    step("raising inside", run_in_context, enter, given, lambda: 1 / 0)
    step("decorated", lambda: enter(given)(lambda x: x)(3))
    step("current", current)
    for getter in ("get_fi_ar_workspace", "get_fi_ar_quant_workspace"):
        for module in (fi, fused):
            function = get(module, getter)
            for _ in range(2):
                step(getter, lambda f=function: f(2, 0, group))
                step(getter, lambda f=function: f(world_size=2, rank=0, group=group))
        step(getter + " wrongly", lambda f=function: f(1, 2, 3, 4, 5, 6, 7, 8, 9))
        step(getter + " bare", lambda f=function: f())
    step("destroy", lambda: fi.destroy_fi_ar_workspace())  # noqa: PLW0108 - fi may be None
    step("again", lambda: fi.get_fi_ar_workspace(4, 0, second))
    create = get(fi, "_create_workspace")
    step("create", lambda: create("trtllm", 2, 0, group))
    step("create by name", lambda: create(group=group, backend="trtllm", world_size=2, rank=0))
    step("create wrongly", create)
    for given_group in ((), (group,), (None,), (7,), ("x", None), (2, "cpu")):
        step("resolve", lambda g=given_group: resolve(*g))
    for keywords in ({"group": second}, {"pg": second}, {"nonsense": 1}, {"world_size": 2}):
        step("resolve by name", lambda k=keywords: resolve(**k))
    if not hisparse:
        step("factors", lambda: envs.compile_factors())  # noqa: PLW0108 - envs may be None
    else:
        step("factors", lambda: type(envs.compile_factors()))
    for module, name in (
        (config, "set_current_vllm_config"),
        (home, "get_current_vllm_config_or_none"),
        (fi, "_resolve_fi_ar_backend"),
        (fi, "_create_workspace"),
        (fi, "get_fi_ar_workspace"),
        (fi, "get_fi_ar_quant_workspace"),
        (envs, "compile_factors"),
    ):
        function = get(module, name)
        step(name + " looks", looks, function)
    print("calls", get(fi, "calls"))


def looks(function):
    import inspect

    return (
        getattr(function, "__name__", None),
        getattr(function, "__doc__", None),
        getattr(function, "__qualname__", None),
        callable(function),
        isinstance(function, type),
        inspect.isfunction(function),
        inspect.iscoroutinefunction(function),
        inspect.isasyncgenfunction(function),
        inspect.isgeneratorfunction(function),
        str(inspect.signature(function)) if callable(function) else None,
    )


def child(case, folder):
    for number, name in ((1, "stdout"), (2, "stderr")):
        handle = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(handle, number)
        os.close(handle)
    signal.alarm(PATIENCE_S)
    os.environ.update(case["env"])
    sys.path[:0] = case["path"]
    sys.path_importer_cache.clear()
    for code in (case.get("before"), case.get("main")):
        if code:
            exec(compile(code, "main.py", "exec"), {"__name__": "main"})
    use(case["env"].get("SHAPE_HISPARSE") == "1")


def collect(case):
    """Forks the case's child. Returns the result in the parent, the child's folder in the child."""
    folder = tempfile.mkdtemp()
    pid = os.fork()
    if pid == 0:
        return folder
    _, status = os.waitpid(pid, 0)
    result = {"name": case["name"], "exit": os.waitstatus_to_exitcode(status)}
    for name in ("stdout", "stderr"):
        with open(f"{folder}/{name}", errors="replace") as text:
            result[name] = text.read()
    shutil.rmtree(folder)
    return result


# At the top level, so that a child ends as any program does.
if __name__ == "__main__":
    given = json.load(sys.stdin)
    for name in given["preload"]:
        __import__(name)
    results = []
    # A child's collector then leaves alone what it shares with us: half of a child's cost.
    gc.freeze()
    for case in given["cases"]:
        found = collect(case)
        if isinstance(found, str):
            child(case, found)
            break
        results.append(found)
    else:
        json.dump(results, sys.stdout)
