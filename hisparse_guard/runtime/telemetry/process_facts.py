"""What this process can say of itself, its ranks and its callers, without a collective."""

import os
import sys
from typing import Any

from hisparse_guard.runtime.telemetry.events import CodeLocation

_RUNTIME = os.path.dirname(os.path.dirname(__file__)) + os.sep


def global_rank() -> tuple[int | None, int | None]:
    """This process's rank and the world's size in torch.distributed; None before it is set up."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized():
        return None, None
    return distributed.get_rank(), distributed.get_world_size()


def group_fields(group: Any) -> dict[str, Any]:
    """`group`, a torch process group or vLLM's own kind, as the evidence has it: this process's
    rank in it, its size, and torch's name for it; None where there is no group."""
    size = getattr(group, "world_size", None) or getattr(group, "size", None)
    numbers = (getattr(group, "rank", None), size)
    rank, size = (value() if callable(value) else value for value in numbers)
    return {"group_rank": rank, "group_size": size, "group": getattr(group, "group_name", None)}


def rendezvous() -> str | None:
    """Where this world met: the same on all ranks of a server, over several nodes too."""
    if global_rank()[0] is None:
        return None
    store = sys.modules["torch.distributed"].distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    return f"tcp://{host}:{port}" if host and port else None


def package_version(name: str) -> str | None:
    """The version that a loaded package says it has."""
    module = sys.modules.get(f"{name}.version") or sys.modules.get(name)
    found = getattr(module, "__version__", None)
    return found if type(found) is str else None


def call_stack(frame: Any, most: int = 40) -> tuple[CodeLocation, ...]:
    """The stack from the outermost caller to `frame`, without the guard's and wrapt's own
    frames."""
    stack: list[CodeLocation] = []
    while frame is not None and len(stack) < most:
        code = frame.f_code
        if not code.co_filename.startswith(_RUNTIME) and "/wrapt/" not in code.co_filename:
            stack.append(CodeLocation(code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return tuple(reversed(stack))
