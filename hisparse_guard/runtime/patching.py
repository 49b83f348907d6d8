"""Putting wrappers on vLLM's functions and taking them off: the one mechanism."""

import sys
from collections.abc import Callable, Iterator
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

try:
    # A bundle's private copy: a top-level one could shadow the image's.
    from hisparse_guard._vendored import wrapt
except ModuleNotFoundError as error:
    if error.name != "hisparse_guard._vendored":
        raise
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

    def __copy__(self) -> "GuardedFunction":
        return self

    def __deepcopy__(self, memo: Any) -> "GuardedFunction":
        return self


class UntracedFunction(GuardedFunction):
    """A guarded function that torch.compile calls, also from code that it traces.

    Dynamo would trace the function inside the wrapper, past the guard. The getters stay traceable:
    compiled code may hold them once there is a workspace.
    """

    _torchdynamo_disable = True


def objection(function: Any) -> str | None:
    """Why `function` cannot be patched, in words; None where it can."""
    if function is None:
        return "is not there"
    plain = callable(function) and not isinstance(function, type)
    return None if plain else f"is a {type(function).__name__} and no function"


def is_guarded(function: Any) -> bool:
    """Whether `function`, or what other tools wrapped around, is guarded already."""
    for _ in range(32):
        if function is None or getattr(function, "__hisparse_guard__", False) is True:
            return function is not None
        function = getattr(function, "__wrapped__", None)
    return False


def namespace(module: ModuleType) -> dict[str, Any]:
    """The module's names; not by `getattr`, which would run a lazy module."""
    found: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return found


def patch(
    module: ModuleType, name: str, wrapper: Callable[..., Any], kind: type[GuardedFunction]
) -> None:
    """Wraps ``module.name``, a function that `objection` has nothing against."""
    function = namespace(module)[name]
    if not is_guarded(function):
        guarded = _guarded[module.__name__, name] = kind(function, wrapper)
        namespace(module)[name] = guarded


def switch(on: bool, function: Any = None) -> None:
    """Switches wrappers on, or off, wherever they are held; and has vLLM's modules hold them, or
    vLLM's own functions again, also by names that a module took earlier.

    Args:
        function: the one whose wrapper is switched; all where it is None.
    """
    held = {}
    for guarded in list(_guarded.values()):
        original = guarded.__wrapped__
        if function is None or function is original:
            guarded._self_on = on
            held[id(original if on else guarded)] = guarded if on else original
    for module_name, module in list(sys.modules.items()):
        if module_name == "vllm" or str(module_name).startswith("vllm."):
            # A module may stand there as None, or as an object of someone's own.
            names = namespace(module) if isinstance(module, ModuleType) else {}
            for name, value in list(names.items()):
                if id(value) in held:
                    names[name] = held[id(value)]


def lost_patches() -> Iterator[str]:
    """The functions whose wrapper somebody else has taken off, by qualified name."""
    for (module, name), guarded in list(_guarded.items()):
        held = namespace(sys.modules[module]).get(name) if module in sys.modules else guarded
        if guarded._self_on and not is_guarded(held):
            yield f"{module}.{name}"
