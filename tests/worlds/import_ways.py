"""Unusual ways in which vLLM is laid out, loaded, or fails to load; and all builds together."""

from __future__ import annotations

from collections.abc import Iterator

from tests.worlds.builds import (
    ALL_REDUCE,
    CONFIG,
    ENVS,
    Shape,
    answers,
    configs,
    files,
    missing,
    renamed,
    signatures,
    turned,
)


def import_ways() -> Iterator[Shape]:
    """The package is loaded, or not, in unusual ways. `main` leaves `vllm` usable, or raises."""
    whole = "import vllm, vllm.config, vllm.envs, vllm.fused\n"
    yield Shape("import-absent", replaced=dict.fromkeys(files(Shape("")), None))
    yield Shape("import-no-all-reduce", replaced={ALL_REDUCE: None, "vllm/fused.py": ""})
    yield Shape("import-half-installed", replaced={CONFIG: "from vllm.nowhere import x\n"})
    yield Shape("import-syntax-error", replaced={ALL_REDUCE: "def broken(:\n"})
    yield Shape("import-empty-modules", replaced=dict.fromkeys(files(Shape("")), ""))
    for error in (
        "ImportError('no cuda')",
        "RuntimeError('x')",
        "SystemExit(4)",
        "KeyboardInterrupt()",
    ):
        for file in ("vllm/__init__.py", ALL_REDUCE, CONFIG, ENVS):
            yield Shape(f"import-raises-{error}-{file}", after={file: f"raise {error}\n"})
    yield Shape(
        "import-raises-once",
        after={
            ALL_REDUCE: "if not getattr(sys, 'tried', 0):\n"
            "    sys.tried = 1\n"
            "    raise OSError('once')\n"
        },
        main="try:\n    import vllm.fused\nexcept OSError as e:\n    print('once', e)\n" + whole,
    )
    yield Shape(
        "import-twice",
        main=whole
        + "import sys\n"
        + "old = vllm.fused\n"
        + "for name in [n for n in sys.modules if n.split('.')[0] == 'vllm']:\n"
        + "    del sys.modules[name]\n"
        + whole
        + "print(old is vllm.fused)\n",
    )
    yield Shape(
        "import-reload",
        main=whole
        + "import importlib\n"
        + "import vllm.distributed.device_communicators.flashinfer_all_reduce as fi\n"
        + "for m in (vllm.envs, vllm.config, fi, vllm.fused, vllm): importlib.reload(m)\n"
        + "print(callable(vllm.fused.get_fi_ar_workspace))\n",
    )
    yield Shape(
        "import-threads",
        after={
            ALL_REDUCE: "import time; time.sleep(0.1)\n",
            "vllm/__init__.py": "import time; time.sleep(0.05)\n",
            "vllm/heavy.py": "import time, json, decimal; time.sleep(0.05); import vllm.fused\n",
        },
        main="""
import threading
def load(name):
    try:
        __import__(name)
    except Exception as error:
        print(name, repr(error))
names = ["vllm.heavy", "vllm.fused", "vllm.config", "fractions", "xml.dom.minidom", "vllm.envs"]
threads = [threading.Thread(target=load, args=(n,)) for n in names]
for t in threads: t.start()
for t in threads: t.join(20)
print([t.is_alive() for t in threads])
"""
        + whole,
    )
    yield Shape(
        "import-lazily-replaced",
        after={
            "vllm/__init__.py": """
import types as _types
class _Lazy(_types.ModuleType):
    def __getattr__(self, name):
        import importlib
        if name.startswith("__"):
            raise AttributeError(name)
        return importlib.import_module("vllm." + name)
_lazy = _Lazy("vllm")
for _name in ("__path__", "__spec__", "__version__", "__file__"):
    _lazy.__dict__[_name] = globals()[_name]
sys.modules["vllm"] = _lazy
"""
        },
    )
    yield Shape(
        "import-lazy-loader",
        main="""
import importlib.util, sys
name = "vllm.distributed.device_communicators.flashinfer_all_reduce"
spec = importlib.util.find_spec(name)
spec.loader = importlib.util.LazyLoader(spec.loader)
module = importlib.util.module_from_spec(spec)
sys.modules[name] = module
spec.loader.exec_module(module)
"""
        + whole,
    )
    yield Shape("import-namespace", replaced={"vllm/__init__.py": None})
    yield Shape("import-zip", form="zip")
    yield Shape("import-pyc-only", form="pyc")


def every() -> list[Shape]:
    made = [
        *missing(),
        *renamed(),
        *turned(),
        *signatures(),
        *answers(),
        *configs(),
        *import_ways(),
    ]
    assert len({s.name for s in made}) == len(made), "two shapes of one name"
    return made
