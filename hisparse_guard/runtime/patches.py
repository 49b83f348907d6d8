"""The patched functions of vLLM: one function each, and the table of them.

Each says why it is there, how it works, which upstream change makes it unnecessary, and when it can
go. "The upstream fix" is vLLM PR #65201 with the change that passes the backend resolved at init
into `get_fi_ar_workspace` (0.34.0).

What vLLM's function raises passes untouched, and it is called once at most. What fails in the
guard's own code ends in `internal_errors`: the server goes on, with vLLM's own answer where the
failure was before the guard had one, and one ERROR line says what is lost.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from hisparse_guard.runtime import patching, telemetry
from hisparse_guard.runtime.decision import MNNVL, Decision
from hisparse_guard.runtime.patching import GuardedFunction, UntracedFunction
from hisparse_guard.runtime.settings import read_settings
from hisparse_guard.runtime.state import state, workspace_backend

ALL_REDUCE = "vllm.distributed.device_communicators.flashinfer_all_reduce"
CONFIG_MODULES = ("vllm.config.vllm", "vllm.config")
CURRENT_CONFIG = "get_current_vllm_config_or_none"

_REMEDY = telemetry.messages.REMEDY


@contextmanager
def internal_errors(lost: str) -> Iterator[None]:
    """The boundary of the guard's own code: an error in it becomes one ERROR line, and the server
    goes on. `KeyboardInterrupt` and `SystemExit` pass.

    Args:
        lost: what is lost by the error and what to do, for the log line.
    """
    try:
        yield
    except Exception as error:
        # A log handler of someone's own may raise.
        with suppress(Exception):
            telemetry.internal_error(lost, error)


def resolve_fi_ar_backend(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Why: under HiSparse, `mnnvl` races with the fused all-reduce + RMSNorm, and the CUDA context
    dies minutes into load. 0.30 to 0.33 do not know that; later builds forget it outside the config
    context.
    How: calls vLLM's resolver once, always (from 0.32 on it is a collective), then answers by the
    table in `decision` from what this process has seen.
    Upstream: PR #65201 has the rule; the pin is unnecessary once every caller of a getter passes
    the backend resolved at init, the fused ops included.
    Can go: when every server runs such a build, or a FlashInfer whose mnnvl kernel waits.
    """
    answer = wrapped(*args, **kwargs)
    decision: Decision | None = None
    with internal_errors(f"the all-reduce backend is not guarded, vLLM's own is used; {_REMEDY}"):
        group = _group_argument(args, kwargs)
        decision = state.decide(answer, group)
    if decision is None:
        return answer
    with internal_errors("a decision is not in the log or the evidence"):
        if not _is_off():
            telemetry.resolved(decision, group, sys._getframe(1))
    return decision.answer


def create_workspace(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Why: this is where a workspace is really made, on every path and after every destruction: the
    cold place for evidence, and for mode `strict` to refuse.
    How: looks at the backend that is asked for, calls through, looks at what came. Getters that
    were switched off are switched on, so that their next call verifies the new workspace.
    Upstream: none needed; it changes nothing but in mode `strict` and where the guard chose none.
    Can go: with the resolver's patch.
    """
    backend = args[0] if args else kwargs.get("backend")
    group, refused, none_chosen = None, False, False
    with internal_errors("mode strict does not see a workspace that is made"):
        group = _group_argument(args, kwargs)
        refused = _is_refused(backend)
        # 0.30 and 0.31 do not know "no backend" and would ask FlashInfer for None.
        none_chosen = backend is None and state.chose_none(group)
    if refused:
        raise RuntimeError(telemetry.messages.REFUSAL)
    if none_chosen:
        return None
    workspace = None
    try:
        workspace = wrapped(*args, **kwargs)
    finally:
        with internal_errors("a workspace that was made is not in the log or the evidence"):
            # First, lest telemetry that fails costs it.
            patching.switch(True)
            state.creations += 1
            telemetry.workspace_made(workspace, backend, group, sys.exc_info()[1])
    return workspace


def get_workspace(kind: str) -> Callable[..., Any]:
    """Why: a getter may give out the other getter's workspace, or one made before HiSparse was
    seen; and where the guard chose no FlashInfer all-reduce, vLLM would repeat collectives on every
    call.
    How: verifies what comes out, then takes itself off, so that the hot path is vLLM's own function
    again. Where the guard chose none it stays and answers None.
    Upstream: unnecessary with the resolver's patch.
    Can go: with the resolver's patch.
    """

    def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        group, none_chosen = None, False
        with internal_errors("it is not known whether this group has a FlashInfer all-reduce"):
            group = _group_argument(args, kwargs)
            none_chosen = state.chose_none(group)
        if none_chosen:
            return None
        workspace, refused = wrapped(*args, **kwargs), False
        with internal_errors(f"the workspace is not verified; {_REMEDY}"):
            refused = _is_refused(workspace_backend(workspace))
            if state.is_settled(workspace, group) and not refused:
                patching.switch(False, wrapped)
            if state.hisparse and not refused:
                telemetry.workspace_given_out(kind, workspace, group)
        if refused:
            raise RuntimeError(telemetry.messages.REFUSAL)
        return workspace

    return wrapper


def _is_refused(backend: Any) -> bool:
    return backend == MNNVL and state.hisparse and state.read_settings().mode == "strict"


def destroy_fi_ar_workspace(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Why: a rank whose workspace was destroyed and not made again must not count as safe.
    How: calls through, then records it.
    Upstream: none needed; it changes nothing.
    Can go: with the resolver's patch.
    """
    answer = wrapped(*args, **kwargs)
    with internal_errors("a destroyed workspace is not in the evidence"):
        if state.creations:
            telemetry.workspace_destroyed()
    return answer


def set_current_vllm_config(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Why: a workspace that is made late is resolved outside the config context, where nothing
    tells that HiSparse is on; and an operator wants to know where the context was left.
    How: notes what the config says, and where the context is left.
    Upstream: unnecessary for the decision once every getter call passes the backend resolved at
    init.
    Can go: with the resolver's patch.
    """
    config = args[0] if args else kwargs.get("vllm_config")
    # Outside the boundary, which would cost each context 1 µs: what is no news was read before.
    if state.is_news(config):
        with internal_errors(f"a vLLM config cannot be read, HiSparse may not be seen; {_REMEDY}"):
            _note_config(config)
    return _NotedContext(wrapped(*args, **kwargs))


class _NotedContext:
    """vLLM's context manager, and a note of where it is left."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def __enter__(self) -> Any:
        return self._manager.__enter__()

    def __exit__(self, *exc_info: Any) -> Any:
        answer = self._manager.__exit__(*exc_info)
        frame = sys._getframe(1)
        state.last_exit = (frame.f_code, frame.f_lineno, time.monotonic())
        if state.hisparse:
            with internal_errors("the guard's state is not in the log or the evidence"):
                telemetry.context_left(patching.lost_patches())
        return answer

    def __call__(self, function: Any) -> Any:
        # As a decorator: vLLM's own object makes a new manager for each call.
        return self._manager(function)


def _note_config(config: Any) -> None:
    if state.note_config(config):
        # A getter may have been switched off by a workspace from before HiSparse.
        patching.switch(True)
    if not _is_off():
        telemetry.config_noted()


def _is_off() -> bool:
    # Where it was set too late for the start to see it, as Ray does, no wrapper is left either.
    if state.is_off():
        patching.switch(False)
    return state.is_off()


def compile_factors(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Why: `call_trtllm_fused_allreduce_norm` asserts that there is a workspace; a compiled
    artifact from a run that had one must not be used again where there is none.
    How: one more factor in the key of vLLM's compile cache, in that case only.
    Upstream: none; vLLM's key does not hold whether a workspace exists.
    Can go: with the resolver's patch, or when the guard chooses "no backend" no more.
    """
    factors = wrapped(*args, **kwargs)
    with internal_errors("vLLM's compile cache may use an artifact that is wrong here: clear it"):
        if isinstance(factors, dict) and state.may_choose_none():
            factors = {**factors, "HISPARSE_GUARD": "no-fi-allreduce"}
    return factors


def get_current_vllm_config_or_none(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Why: the fault belongs to a family: code that asks for the config where there is none, and
    goes on with a default.
    How: with HISPARSE_GUARD_TRACE_CONTEXT=1 only, records each call site that got None. The
    settings are read at the first, for the evidence's folder: what Ray sets later does not count.
    Upstream: none.
    Can go: any time; it changes nothing.
    """
    config = wrapped(*args, **kwargs)
    if config is None:
        with internal_errors("a call site is not in the trace"):
            telemetry.asked_without_config(sys._getframe(1))
    return config


def _group_argument(args: Any, kwargs: Any) -> Any:
    """The process group among a call's arguments, torch's or vLLM's own; None without one."""
    return next((value for value in (*args, *kwargs.values()) if hasattr(value, "rank")), None)


class Patch(NamedTuple):
    """A function of vLLM that is patched.

    Attributes:
        modules: where it may stand, by module name.
        needed: whether a server with HiSparse is not guarded without it.
    """

    modules: tuple[str, ...]
    name: str
    wrapper: Callable[..., Any]
    kind: type[GuardedFunction] = UntracedFunction
    needed: bool = False


PATCHES = (
    Patch(CONFIG_MODULES, "set_current_vllm_config", set_current_vllm_config, needed=True),
    Patch((ALL_REDUCE,), "_resolve_fi_ar_backend", resolve_fi_ar_backend, needed=True),
    Patch((ALL_REDUCE,), "_create_workspace", create_workspace),
    Patch((ALL_REDUCE,), "get_fi_ar_workspace", get_workspace("primary"), GuardedFunction),
    Patch((ALL_REDUCE,), "get_fi_ar_quant_workspace", get_workspace("quant"), GuardedFunction),
    Patch((ALL_REDUCE,), "destroy_fi_ar_workspace", destroy_fi_ar_workspace),
    Patch(("vllm.envs",), "compile_factors", compile_factors),
)
TRACE_PATCH = Patch(CONFIG_MODULES, CURRENT_CONFIG, get_current_vllm_config_or_none)


def apply_patches(module: ModuleType) -> None:
    """Applies the patches of `module`, which was executed just now or is patched already."""
    names = patching.namespace(module)
    patches = [patch for patch in PATCHES if module.__name__ in patch.modules]
    # The plain function only, not the patched one: the guard calls it itself.
    if type(names.get(CURRENT_CONFIG)) is FunctionType:
        state.ask_config = names[CURRENT_CONFIG]
    if module.__name__ in CONFIG_MODULES and read_settings(os.environ)[0].trace_context:
        patches.append(TRACE_PATCH)
    for patch in patches:
        reason = patching.patch(module, patch.name, patch.wrapper, patch.kind)
        if reason is not None and (patch.needed or patch.name in names):
            state.problems.append(f"not guarded: {patch.name} {reason} in this vLLM; {_REMEDY}")
