"""Putting wrappers on vLLM's functions and taking them off: the one mechanism."""

import sys
from collections.abc import Callable, Iterator
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

try:
    # A bundle's private copy: a top-level one could shadow the image's.
    from hisparse_guard._vendored import wrapt
except ModuleNotFoundError:
    import wrapt

# Every wrapper made, by module and function name; after a second execution the newest.
_guarded: "dict[tuple[str, str], GuardedFunction]" = {}


class GuardedFunction(wrapt.FunctionWrapper):  # type: ignore[misc]
    """A function wrapper that survives pickle, cloudpickle, copy and deepcopy.

    wrapt's own does not, and `collective_rpc` and Ray pickle functions that name what is patched.
    It travels as its qualified name, so a process without the guard can load it too.
    """

    # Seen through whatever other tools wrap around it: the function tells, not a global, since two
    # copies of the guard may be in one process.
    __hisparse_guard__ = True

    def __init__(self, function: Any, wrapper: Callable[..., Any]) -> None:
        # wrapt asks at each call whether it is on, and takes the question only here.
        super().__init__(function, wrapper, enabled=lambda: self._self_on)
        self._self_on: bool = True

    def __reduce_ex__(self, protocol: Any) -> Any:
        return resolve_name, (f"{self.__wrapped__.__module__}:{self.__wrapped__.__qualname__}",)

    def __deepcopy__(self, memo: Any = None) -> "GuardedFunction":
        return self

    __copy__ = __deepcopy__


class UntracedFunction(GuardedFunction):
    """A guarded function that torch.compile calls, also from code that it traces.

    Dynamo would trace the function inside the wrapper, past the guard. The getters stay traceable:
    compiled code may hold them once there is a workspace.
    """

    _torchdynamo_disable = True


def is_guarded(function: Any) -> bool:
    """Whether `function`, or what other tools wrapped around, is guarded already."""
    for _ in range(32):
        if function is None or getattr(function, "__hisparse_guard__", False) is True:
            return function is not None
        function = getattr(function, "__wrapped__", None)
    return False


def namespace(module: ModuleType) -> dict[str, Any]:
    """The module's names; not by `getattr`, which would run a lazy module."""
    return object.__getattribute__(module, "__dict__")  # type: ignore[no-any-return]


def patch(
    module: ModuleType, name: str, wrapper: Callable[..., Any], kind: type[GuardedFunction]
) -> str | None:
    """Wraps ``module.name``; returns why it cannot, in words, or None."""
    function = namespace(module).get(name)
    if function is None:
        return "is not there"
    if isinstance(function, type) or not callable(function):
        return f"is a {type(function).__name__} and no function"
    if not is_guarded(function):
        guarded = _guarded[module.__name__, name] = kind(function, wrapper)
        namespace(module)[name] = guarded
    return None


def switch(on: bool, function: Any = None) -> None:
    """Switches wrappers on, or off, wherever they are held; and has vLLM's modules hold them, or
    vLLM's own functions again, also by names that a module took earlier.

    Args:
        function: the one whose wrapper is switched; all where it is None.
    """
    chosen = [g for g in list(_guarded.values()) if function is None or function is g.__wrapped__]
    for guarded in chosen:
        # Off before the names, on after them: `lost_patches` may look meanwhile.
        guarded._self_on = on and guarded._self_on
    held = {id(g.__wrapped__ if on else g): g if on else g.__wrapped__ for g in chosen}
    for module_name, module in list(sys.modules.items()):
        # A module may stand there as None, or as an object of someone's own.
        if f"{module_name}.".startswith("vllm.") and isinstance(module, ModuleType):
            for name, value in list(namespace(module).items()):
                if id(value) in held:
                    namespace(module)[name] = held[id(value)]
    for guarded in chosen:
        guarded._self_on = on


def lost_patches() -> Iterator[str]:
    """The functions whose wrapper somebody else has taken off, by qualified name."""
    for (module, name), guarded in list(_guarded.items()):
        held = namespace(sys.modules[module]).get(name) if module in sys.modules else guarded
        if guarded._self_on and not is_guarded(held):
            yield f"{module}.{name}"
