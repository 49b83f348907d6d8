"""Conditions around the ways to a workspace: other tools, failing telemetry, late settings.

Imported by `scenario`.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import FunctionType, ModuleType
from unittest import mock

from worker import backend, import_with_ops, kind, lazy


def rank_fault(w):
    """One rank's logging and evidence raise: it answers what the other answers all the same."""
    if w.rank == 0:
        import logging

        class Broken(logging.Handler):
            def emit(self, record):
                if "hisparse-guard" in record.getMessage():
                    raise OSError("no space left on device")

        logging.getLogger("vllm").addHandler(Broken())
        os.environ["HISPARSE_GUARD_EVIDENCE_DIR"] = "/proc/nowhere"
    return lazy(w)


def settings_late(w):
    """The environment arrives after the interpreter has started, as with Ray."""
    os.environ.update(w.options.get("late", {}))
    return lazy(w)


def late_hisparse(w):
    """A first engine without HiSparse made its workspace; then HiSparse is seen."""
    with w.set_config(w.draft):
        w.standalone()
        first = backend(w.get())
    aside = kind(w.fi.get_fi_ar_workspace)
    with w.set_config(w.config):
        pass
    back = kind(w.fi.get_fi_ar_workspace)
    second = backend(w.get())
    w.fi.destroy_fi_ar_workspace()
    return {
        "first": first,
        "aside": aside,
        "back": back,
        "second": second,
        "again": backend(w.get()),
    }


def pickled(w):
    """Functions that name what is wrapped travel, as `collective_rpc` and Ray make them."""
    import copy
    import pickle

    import cloudpickle
    import vllm.config

    function = vllm.config.set_current_vllm_config
    home = importlib.import_module("vllm.config.vllm")

    def names_it(worker):
        with home.set_current_vllm_config(worker):
            return 1

    def holds_it(worker, wrapped=function):
        return wrapped

    return {
        "wrapped": kind(function),
        "pickle": pickle.loads(pickle.dumps(function)) is function,
        "cloudpickle": cloudpickle.loads(cloudpickle.dumps(function)) is function,
        "copy": copy.copy(function) is function and copy.deepcopy(function) is function,
        "names": callable(pickle.loads(cloudpickle.dumps(names_it))),
        "holds": pickle.loads(cloudpickle.dumps(holds_it))(0) is function,
    }


def trace(w):
    """Code of vLLM that asks for the config where there is none, beyond the resolver: as in
    graph-capture profiling and serving, the config context was left."""
    import torch
    from vllm.distributed.parallel_state import get_world_group
    from vllm.forward_context import set_forward_context
    from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry
    from vllm.v1.worker.workspace import init_workspace_manager

    result = lazy(w)
    os.environ["VLLM_SPARSE_INDEXER_MAX_LOGITS_MB"] = "1"
    indexer = import_with_ops("vllm.model_executor.layers.sparse_attn_indexer")
    torch.accelerator.empty_cache = lambda: None
    init_workspace_manager(torch.device("cpu"))
    rows = torch.zeros(4, 64)
    with set_forward_context(None, w.config):
        # A dummy run, of the kind that HiSparse's models make when graphs are captured.
        for _ in range(3):
            indexer.sparse_attn_indexer(
                hidden_states=rows,
                k_cache_prefix="layer",
                kv_cache=rows,
                q_quant=rows,
                q_scale=None,
                k=None,
                weights=rows,
                quant_block_size=128,
                scale_fmt=None,
                topk_tokens=8,
                head_dim=128,
                max_model_len=64,
                total_seq_lens=64,
                topk_indices_buffer=torch.zeros(4, 8, dtype=torch.int32),
                skip_k_cache_insert=True,
                use_pcp=False,
                pcp_shard_decode_requests=False,
                dense_mha_metadata_layer_name="layer",
            )
    # What a connector's scheduler, and a worker that is not told its config, begin with.
    KVCacheSpecRegistry.check_kv_cache_spec_registry({})
    get_world_group().make_sibling_device_group()
    return result


def held(w):
    """The getter is held by an out-of-tree model that took it by name; another tool's wrapper is
    on top of the one in vLLM's module."""
    model = ModuleType("out_of_tree_model")
    sys.modules[model.__name__] = model
    model.get = w.fi.get_fi_ar_workspace
    with w.set_config(w.config):
        w.standalone()
    found, frames = [], []
    with mock.patch.object(w.fi, "get_fi_ar_workspace", wraps=w.fi.get_fi_ar_workspace) as on_top:
        for get in (model.get, on_top, model.get, on_top):
            found.append(backend(get(**w.arguments())))
            # The next one verifies what this one made.
            get(**w.arguments())
            frames += guard_calls(lambda get=get: get(**w.arguments()))
            w.fi.destroy_fi_ar_workspace()
    return {"backend": found[0], "found": found, "frames": frames}


def guard_calls(call):
    """The guard's own functions that a call runs."""
    ran = []

    def profile(frame, event, _):
        if event == "call" and "hisparse_guard" in frame.f_code.co_filename:
            ran.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(profile)
    call()
    sys.setprofile(before)
    return ran


def failed_again(w):
    """A failed creation, which vLLM 0.31 and later keep: what later calls run of the guard."""
    held = w.fi.get_fi_ar_workspace
    w.refuse = {"trtllm", "mnnvl"}
    with w.set_config(w.config):
        w.standalone()
    first = held(**w.arguments())
    frames = guard_calls(lambda: held(**w.arguments()))
    frames += guard_calls(w.get)
    return {"backend": backend(first), "frames": frames}


def telemetry_raises(w):
    """Whatever the guard calls to record or to log raises."""

    def broken(*_, **__):
        raise RuntimeError("telemetry is broken")

    for name in ("telemetry", "telemetry.evidence", "telemetry.log", "telemetry.messages"):
        try:
            module = importlib.import_module(f"hisparse_guard.runtime.{name}")
        except ImportError:
            continue
        for attribute, value in list(vars(module).items()):
            own = getattr(value, "__module__", "").startswith("hisparse_guard.runtime.telemetry")
            if isinstance(value, FunctionType) and own:
                setattr(module, attribute, broken)
    return {**lazy(w), "getter": kind(w.fi.get_fi_ar_workspace)}


def patched_over(w):
    """`mock.patch` over what is guarded, and stopped again: what was there is back."""
    with mock.patch.object(w.fi, "_resolve_fi_ar_backend", wraps=w.fi._resolve_fi_ar_backend):
        pass
    return lazy(w)


def put_back(w):
    """A tool that saw vLLM's functions before the guard did puts them back after it."""
    for name in ("_resolve_fi_ar_backend", "_create_workspace"):
        setattr(w.fi, name, w.fi.__dict__[name].__wrapped__)
    return lazy(w)


def other_platform(w):
    """HiSparse where vLLM's platform is not CUDA: no FlashInfer all-reduce is built."""
    with w.set_config(w.config):
        communicator = w.standalone()
    return {"backend": backend(w.fi._fi_ar_workspace), "disabled": communicator.disabled}
