"""The wrappers, and the post-import hooks that put them in place.

Each wrapper says why it is there, how it works, which upstream change makes it unnecessary
and when it can go. "The upstream fix" is vLLM PR #65201 together with the change that passes the
backend resolved at init into the getters.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from pkgutil import resolve_name
from types import CodeType, FunctionType
from typing import Any

from hisparse_guard.runtime import log
from hisparse_guard.runtime._wrapt import wrapt
from hisparse_guard.runtime.classify import ALL_REDUCE, RESOLVER
from hisparse_guard.runtime.guard import ENV_BACKEND, attempt, backend_of, guard, is_none
from hisparse_guard.runtime.settings import read_settings

GETTERS = {"get_fi_ar_workspace": "primary", "get_fi_ar_quant_workspace": "quant"}
CONFIG_MODULES = ("vllm.config.vllm", "vllm.config")
UNTRACED = (RESOLVER, "_create_workspace", "set_current_vllm_config")


class _Inside(threading.local):
    getter = 0


_inside = _Inside()

# Flags of code objects, as in `inspect`, which would cost its import.
CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR = 0x20, 0x80, 0x200
_NOT_CALLED = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


class GuardedFunction(wrapt.FunctionWrapper):  # type: ignore[misc]
    """A function wrapper that survives pickle, cloudpickle, copy and deepcopy.

    A plain one does not, and `collective_rpc` and Ray pickle functions that name what is
    wrapped. It travels as its qualified name, resolved by the standard library, so that a
    process without the guard can load it too.
    """

    # Seen through whatever other tools wrap around it: the function tells, not a global.
    __hisparse_guard__ = True

    def __reduce_ex__(self, protocol: Any) -> Any:
        return resolve_name, (f"{self.__wrapped__.__module__}:{self.__wrapped__.__qualname__}",)

    def __reduce__(self) -> Any:
        return self.__reduce_ex__(2)

    def __copy__(self) -> GuardedFunction:
        return self

    def __deepcopy__(self, memo: Any) -> GuardedFunction:
        return self


class UntracedFunction(GuardedFunction):
    """A function wrapper that torch.compile calls, even from code that it traces.

    Dynamo takes a wrapper for the function in it, and would trace that one, past the guard. The
    getters stay traceable: once there is a workspace, code that is compiled whole may hold them.
    """

    _torchdynamo_disable = True


class _NoFlashInferAllReduce(BaseException):
    """Leaves vLLM's getter once its resolver was called and no workspace is to be made.

    A BaseException, so that no `except Exception` on the way takes it for a failure. It is
    raised only below our own wrapper of a getter, which catches it.
    """


def set_current_vllm_config(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Why: a lazily made workspace is resolved outside the config context, where nothing tells
    that HiSparse is on; and an operator wants to know where the context was left.
    How: notes what the config says, and wraps the context manager to note where it is left.
    Upstream: unnecessary for the decision once the getters take the backend resolved at init.
    Can go: with the resolver's wrapper below.
    """
    manager = wrapped(*args, **kwargs)
    attempt("vLLM's modules are not looked at again", look_again)
    config = args[0] if args else kwargs.get("vllm_config")
    if config is not None:
        attempt("a config was not noted", guard.note_config, config)
        guard.tell_configs()
    if hasattr(type(manager), "__enter__") and hasattr(type(manager), "__exit__"):
        return attempt("a config context is not noted", _NotedContext, manager, otherwise=manager)
    return manager


class _NotedContext(wrapt.ObjectProxy):  # type: ignore[misc]
    """vLLM's context manager, and a note of where it is left."""

    # As `with` calls them: by the type.
    def __enter__(self) -> Any:
        manager = self.__wrapped__
        value = type(manager).__enter__(manager)
        guard.depth += 1
        return value

    def __exit__(self, *exc_info: Any) -> Any:
        guard.depth -= 1
        manager = self.__wrapped__
        try:
            return type(manager).__exit__(manager, *exc_info)
        finally:
            guard.note_left(sys._getframe(1))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # As a decorator: vLLM's own object makes a new manager for each call.
        return self.__wrapped__(*args, **kwargs)


def resolve_fi_ar_backend(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Why: under HiSparse, `mnnvl` races with the fused all-reduce + RMSNorm, and the CUDA
    context dies minutes into load. 0.30 to 0.33 do not know; later builds forget it outside
    the config context.
    How: calls vLLM's resolver once, always (on 0.32+ it is a collective), then answers by the
    table in `decision` from what this process has seen.
    Upstream: vLLM PR #65201 has the rule; the pin is unnecessary once init's backend is passed on
    to every getter call, the fused ops' included.
    Can go: when every server runs such a build, or a FlashInfer with PR #7782.
    """
    answer = wrapped(*args, **kwargs)
    group = _group(wrapped, args, kwargs)
    decision = attempt(
        f"the decision failed and vLLM's own answer is used: set {ENV_BACKEND}=trtllm to be safe",
        guard.resolve,
        answer,
        group,
    )
    if decision is None:
        return answer
    guard.tell_resolved(answer, decision, group, sys._getframe(1))
    if is_none(decision) and _inside.getter:
        raise _NoFlashInferAllReduce
    return decision.answer


def create_workspace(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Why: this is where a workspace is really made, on every path and after every
    `destroy_fi_ar_workspace`; the cold place for evidence, and for `strict` to refuse.
    How: looks at the backend asked for, calls through, looks at what came.
    Upstream: none needed; it changes nothing but in mode `strict`.
    Can go: with the resolver's wrapper.
    """
    backend = args[0] if args else kwargs.get("backend")
    group = _group(wrapped, args, kwargs)
    if attempt("mode strict does not see what is made", guard.refuses, backend):
        _refuse("made")
    if backend is None and _serves_none(group):
        # 0.30 and 0.31 do not know "no backend" and would hand None to FlashInfer.
        return None
    # vLLM keeps what went wrong to its log, and answers None.
    said = attempt("why no workspace is made is not heard", _listen)
    try:
        workspace = wrapped(*args, **kwargs)
    except Exception as error:
        guard.tell_made(backend, None, group, error)
        raise
    finally:
        attempt("vLLM's log keeps a filter", _stop_listening, said)
    heard = said.warning if workspace is None and said is not None else None
    guard.tell_made(backend, workspace, group, heard)
    return workspace


def _listen() -> _Said:
    said = _Said()
    logging.getLogger(ALL_REDUCE).addFilter(said)
    return said


def _stop_listening(said: _Said | None) -> None:
    if said is not None:
        logging.getLogger(ALL_REDUCE).removeFilter(said)


class _Said(logging.Filter):
    """Lets every record through, and keeps the text of the last warning."""

    warning: str | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            if record.levelno >= logging.WARNING:
                self.warning = record.getMessage()
        except Exception:
            pass
        return True


def get_workspace(kind: str) -> Callable[..., Any]:
    """Why: what a getter hands out may be the other getter's workspace, or one made before
    HiSparse was seen; and with "no FlashInfer all-reduce" vLLM would repeat collectives on
    every call.
    How: verifies what comes out, then takes itself out of every module, so that the hot path
    is the original function again; with "no FlashInfer all-reduce" it stays and answers None.
    Upstream: unnecessary with the resolver's wrapper.
    Can go: with the resolver's wrapper.
    """

    def getter(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        group = _group(wrapped, args, kwargs)
        if _serves_none(group):
            return None
        outside = _inside.getter
        try:
            _inside.getter = outside + 1
            workspace = wrapped(*args, **kwargs)
        except _NoFlashInferAllReduce:
            return None
        finally:
            _inside.getter = outside
        if guard.hisparse:
            if attempt(
                "mode strict does not see what is handed out", guard.refuses, backend_of(workspace)
            ):
                _refuse("handed out")
            guard.tell_handed_out(kind, workspace, group)
        attempt("the hot path keeps its wrapper", _step_aside_if_done, wrapped, workspace, group)
        return workspace

    return getter


def _serves_none(group: Any) -> bool:
    found: bool = attempt(
        "what was decided is not known", guard.serves_none, group, otherwise=False
    )
    return found


def _step_aside_if_done(function: Any, workspace: Any, group: Any) -> None:
    if workspace is not None and (
        not guard.hisparse
        or guard.as_expected(workspace, group)
        or guard.settings().mode == "observe"
    ):
        _step_aside(function)


def compile_factors(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Why: `call_trtllm_fused_allreduce_norm` asserts that there is a workspace; a compiled
    artifact from a run that had one must not be reused where there is none.
    How: one more factor in the key of vLLM's compile cache, in that case only.
    Upstream: none; vLLM's key does not hold whether a workspace exists.
    Can go: with `HISPARSE_GUARD_BACKEND=none` and `HISPARSE_GUARD_MULTINODE=none`.
    """
    factors = wrapped(*args, **kwargs)
    if isinstance(factors, dict) and attempt(
        "vLLM's compile cache does not know of the guard", guard.may_serve_none
    ):
        return {**factors, "HISPARSE_GUARD": "no-fi-allreduce"}
    return factors


def get_current_vllm_config_or_none(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Why: the family of faults that this one belongs to: code that asks for the config where
    there is none, and goes on with a default.
    How: with HISPARSE_GUARD_TRACE_CONTEXT=1 only, notes each call site that got None.
    Upstream: none.
    Can go: any time; it changes nothing.
    """
    config = wrapped(*args, **kwargs)
    if config is None:
        guard.tell_trace(sys._getframe(1))
    return config


def _refuse(what: str) -> None:
    raise RuntimeError(
        f"hisparse-guard (strict): an mnnvl all-reduce workspace was about to be {what} under "
        f"HiSparse, where it races and kills the CUDA context under load. Set {ENV_BACKEND}="
        "trtllm, or unset it together with HISPARSE_GUARD_MULTINODE, or use "
        "HISPARSE_GUARD_MODE=enforce"
    )


def _group(function: Any, args: Any, kwargs: Any) -> Any:
    """The process group among a call's arguments, by the parameter's name; None without one."""
    return attempt("the process group is not known", _find_group, function, args, kwargs)


def _find_group(function: Any, args: Any, kwargs: Any) -> Any:
    code = getattr(function, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if type(code) is CodeType else ()
    for name, value in [*kwargs.items(), *zip(names, args, strict=False)]:
        if "group" in name or name == "pg":
            return value
    return None


# Putting in place ----------------------------------------------------------------------------

_wrapped: dict[str, tuple[Any, Any]] = {}


def _is_guarded(function: Any) -> bool:
    for _ in range(32):
        if getattr(function, "__hisparse_guard__", False) is True:
            return True
        function = getattr(function, "__wrapped__", None)
        if function is None:
            return False
    return False


def _is_plain(function: Any) -> bool:
    """Whether a call gives the answer itself: no class, no coroutine."""
    try:
        code = getattr(function, "__code__", None)
        awaited = type(code) is CodeType and code.co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR)
    except Exception:
        # Something that does not even let itself be looked at.
        return False
    return callable(function) and not isinstance(function, type) and not awaited


def _namespace(module: Any) -> dict[str, Any]:
    # Not getattr: it would run a lazy module.
    found: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return found


def rebind(old: Any, new: Any) -> None:
    """Puts `new` wherever a module of vLLM holds `old`, by identity."""
    for name, module in list(sys.modules.items()):
        if name != "vllm" and not str(name).startswith("vllm."):
            continue
        try:
            namespace = _namespace(module)
        except Exception:
            continue
        for key, value in list(namespace.items()):
            if value is old:
                namespace[key] = new


def _put(module: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Wraps ``module.name`` where it is a function, in every module that holds it by now."""
    function = _namespace(module).get(name)
    if function is None or guard.is_off():
        return
    if not _is_plain(function):
        guard.problem(
            f"{name} is no plain function here and is left alone: this build is not guarded "
            f"there; set {ENV_BACKEND}=trtllm and report this line"
        )
        return
    if _is_guarded(function):
        return
    key = f"{module.__name__}.{name}"
    if key not in _wrapped or _wrapped[key][0] is not function:
        kind = UntracedFunction if name in UNTRACED else GuardedFunction
        _wrapped[key] = (function, kind(function, wrapper))
    guarded = _wrapped[key][1]
    rebind(function, guarded)
    # Last: once it is here, this function is done.
    _namespace(module)[name] = guarded


def _step_aside(function: Any) -> None:
    for original, guarded in _wrapped.values():
        if original is function:
            rebind(guarded, original)


def _step_back_in() -> None:
    """HiSparse is seen: getters that stepped aside before it are put back."""
    for name in GETTERS:
        original, guarded = _wrapped.get(f"{ALL_REDUCE}.{name}", (None, None))
        if guarded is not None:
            rebind(original, guarded)


def _follow_settings() -> None:
    settings = guard.settings()
    if settings.mode == "off":
        # Set too late for `arm` to see it: no hook is left behind all the same.
        for original, guarded in _wrapped.values():
            rebind(guarded, original)
    elif settings.trace_context:
        for name in CONFIG_MODULES:
            if name in sys.modules:
                _trace(sys.modules[name])


def _trace(module: Any) -> None:
    _put(module, "get_current_vllm_config_or_none", get_current_vllm_config_or_none)


def _hook_config(module: Any) -> None:
    namespace = _namespace(module)
    if guard.current_config is None:
        ask = namespace.get("get_current_vllm_config_or_none")
        # The guard calls this one itself, and only what is sure to do no more than tell.
        if type(ask) is FunctionType and not ask.__code__.co_flags & _NOT_CALLED:
            guard.current_config = ask
    _put(module, "set_current_vllm_config", set_current_vllm_config)
    # Where the environment says so from the start: a server without HiSparse may never come
    # to a decision, and has such call sites too.
    if read_settings(os.environ)[0].trace_context:
        _trace(module)


def _hook_all_reduce(module: Any) -> None:
    _put(module, RESOLVER, resolve_fi_ar_backend)
    _put(module, "_create_workspace", create_workspace)
    for name, kind in GETTERS.items():
        _put(module, name, get_workspace(kind))
    if _namespace(module).get(RESOLVER) is None and _namespace(module).get("get_fi_ar_workspace"):
        guard.problem(
            f"this vLLM has no {RESOLVER}: its backend cannot be pinned; set {ENV_BACKEND}=trtllm"
        )


def _hook_envs(module: Any) -> None:
    _put(module, "compile_factors", compile_factors)


def _protected(hook: Callable[[Any], None]) -> Callable[[Any], None]:
    # wrapt lets an exception of a hook fail the import.
    def run(module: Any) -> None:
        attempt(f"{hook.__name__.strip('_')} failed: vLLM is not guarded there", hook, module)

    return run


# Module: its hook, and what stays wrapped in it for as long as the hook has done its work.
_HOOKS = {
    **dict.fromkeys(CONFIG_MODULES, (_protected(_hook_config), "set_current_vllm_config")),
    ALL_REDUCE: (_protected(_hook_all_reduce), RESOLVER),
    "vllm.envs": (_protected(_hook_envs), "compile_factors"),
}


def look_again() -> None:
    """Wraps what was executed unheard: wrapt tells of each name once, and of none that a finder
    in front of its own answers for."""
    for name, (hook, sign) in _HOOKS.items():
        module = sys.modules.get(name)
        function = _namespace(module).get(sign) if module is not None else None
        if _is_plain(function) and not _is_guarded(function):
            hook(module)


def install() -> None:
    """Registers the hooks; a target imported already is wrapped at once."""
    guard.on_hisparse[:] = [_step_back_in]
    guard.on_settings[:] = [_follow_settings]
    for name, (hook, _) in _HOOKS.items():
        wrapt.register_post_import_hook(hook, name)
    log.say(logging.DEBUG, "hooks are in place")
