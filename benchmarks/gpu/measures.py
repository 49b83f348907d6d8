"""What a rank does when the parent asks: the checks, and the times."""

from __future__ import annotations

import itertools
import os
import sys
import time
from types import SimpleNamespace

from benchmarks.gpu.names import EAGER_FUSED, FUSED, GEMMA, MULTICAST
from benchmarks.gpu.refusal import Asked


class Measures:
    def environment(self):
        torch = self.torch
        import flashinfer
        import vllm

        found = {
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "vllm": vllm.__version__,
            "flashinfer": flashinfer.__version__,
            "gpu": None if self.dry else torch.cuda.get_device_name(self.device),
            "gpus": 0 if self.dry else torch.cuda.device_count(),
            "collectives": self.collectives,
            "multicast": {name: os.environ.get(name) for name in MULTICAST},
            "vllm's compiled operators": self.extension,
            "guard": self._guard(),
        }
        if not self.dry and self.collectives == "nccl":
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        return found

    @staticmethod
    def _guard():
        """Where the guard in this process came from; None without one."""
        active = sys.modules.get("hisparse_guard.runtime.activate")
        return None if active is None else active.__file__

    def resolve(self):
        """As vLLM's worker does: the communicator is built while the config is current."""
        with self.set_config(self.config):
            self.communicator = self.fi.FlashInferAllReduce(self.tp.cpu_group, self.device)
        return {"disabled": self.communicator.disabled}

    def first(self, hidden, dtype):
        """The first all-reduce, outside the context: makes the workspace, or is stopped."""
        self.refusal.check()
        self.refusal.asked.clear()
        started = time.perf_counter()
        stopped = None
        try:
            # For this dtype and width; the backend is the getter's to resolve, with no config.
            self.communicator.max_num_tokens = 0
            if self.dry:
                used = self.communicator._ensure_workspace(hidden, getattr(self.torch, dtype))
            else:
                used = self.communicator.should_use_fi_ar(self._input(1, hidden, dtype))
        except Asked as asked:
            used, stopped = False, str(asked)
        made = self.fi._fi_ar_workspace
        return {
            "asked": list(self.refusal.asked),
            "stopped": stopped,
            "used": bool(used),
            "backend": getattr(made, "backend", None),
            "type": type(made).__name__,
            "multicast_pointer": getattr(made, "mc_ptr", 0) if not self.dry and made else 0,
            "seconds": round(time.perf_counter() - started, 3),
        }

    def by_held_getter(self, hidden, dtype):
        """What the getter gives that was taken by name before the first all-reduce."""
        self.refusal.check()
        self.refusal.asked.clear()
        made = self.held(
            world_size=self.size,
            rank=self.rank,
            max_token_num=self.communicator.max_num_tokens,
            hidden_dim=hidden,
            dtype=getattr(self.torch, dtype),
            group=self.tp.cpu_group,
        )
        return {
            "asked": list(self.refusal.asked),
            "backend": getattr(made, "backend", None),
            "the one": made is self.fi._fi_ar_workspace,
        }

    def destroy(self):
        self.fi.destroy_fi_ar_workspace()
        return {"workspace": self.fi._fi_ar_workspace is not None}

    def hot_path(self):
        """What answers to the getter's name now, here and in the modules that took it by name."""
        modules = [self.fi, sys.modules[FUSED], sys.modules[GEMMA]]
        getters = [vars(module)["get_fi_ar_workspace"] for module in modules]
        return {
            "getter": sorted({type(getter).__name__ for getter in getters}),
            "one object": all(getter is getters[0] for getter in getters),
            "resolver": type(self.fi._resolve_fi_ar_backend).__name__,
            "create": type(self.fi._create_workspace).__name__,
        }

    def check(self, hidden, dtype, tokens, rounds=3):
        """The all-reduce against a sum in float64, on fresh inputs each round."""
        worst = 0.0
        for _ in range(rounds):
            x = self._input(tokens, hidden, dtype)
            if not self._usable(x):
                return {"used": False}
            worst = max(worst, self._error(self.communicator.all_reduce(x), self._sum(x)))
        return {"used": True, "error": worst}

    def check_collective(self, hidden, dtype, tokens):
        """The same sum by the group's own all-reduce (NCCL), for comparison."""
        x = self._input(tokens, hidden, dtype)
        reference, out = self._sum(x), x.clone()
        self.dist.all_reduce(out, group=self.tp.device_group)
        return {"error": self._error(out, reference)}

    def check_graph(self, hidden, dtype, tokens, replays=5):
        """Captured once, replayed on fresh inputs; the output is poisoned before each replay."""
        x = self._input(tokens, hidden, dtype)
        if not self._usable(x):
            return {"used": False}
        graph, out = self._capture(lambda: self.communicator.all_reduce(x))
        worst = 0.0
        for _ in range(replays):
            x.copy_(self._input(tokens, hidden, dtype))
            reference = self._sum(x)
            out.fill_(float("nan"))
            self._together()
            graph.replay()
            self._sync()
            worst = max(worst, self._error(out, reference))
        return {"used": True, "error": worst}

    def check_fused(self, hidden, dtype, tokens, how="eager"):
        """vLLM's fused all-reduce + residual + RMSNorm against the same in float64."""
        torch = self.torch
        fused = sys.modules[EAGER_FUSED].fused_allreduce_rms_norm
        weight = torch.linspace(0.5, 1.5, hidden).to(self.device, getattr(torch, dtype))
        norm = SimpleNamespace(weight=weight, variance_epsilon=1e-6)
        shared = torch.Generator().manual_seed(tokens)
        residual = torch.randn(tokens, hidden, generator=shared).to(self.device, weight.dtype)
        x = self._input(tokens, hidden, dtype)
        reference = self._norm(self._sum(x), residual, weight, 1e-6)
        if how == "graph":
            source = x.clone()

            def call():
                x.copy_(source)
                return fused(x, residual, norm)

            graph, (normed, added) = self._capture(call)
            normed.fill_(float("nan"))
            self._together()
            graph.replay()
            self._sync()
        else:
            normed, added = fused(x, residual, norm)
            self._sync()
        return {
            "error": self._error(normed, reference[1]),
            "residual_error": self._error(added, reference[0]),
        }

    def measure(self, hidden, dtype, tokens, how, iterations):
        """Microseconds an all-reduce on this rank's GPU by device events."""
        torch = self.torch
        inputs = self._inputs(hidden, dtype, tokens)
        if not self._usable(inputs[0]):
            return {"used": False}
        key = (hidden, dtype, tokens)
        if how == "graph" and not self.dry:
            if key not in self.graphs:
                self.graphs[key] = self._capture(
                    lambda: [self.communicator.all_reduce(x) for x in inputs]
                )
            call, calls = self.graphs[key][0].replay, len(inputs)
        else:
            turn = itertools.cycle(inputs)

            def call():
                self.communicator.all_reduce(next(turn))

            calls = 1
        for _ in range(5):
            call()
        self._together()
        if self.dry:
            times = []
            for _ in range(iterations):
                started = time.perf_counter()
                call()
                times.append((time.perf_counter() - started) * 1e6)
            return {"used": True, "us": times}
        events = [torch.cuda.Event(enable_timing=True) for _ in range(iterations + 1)]
        events[0].record()
        for event in events[1:]:
            call()
            event.record()
        self._sync()
        times = [a.elapsed_time(b) * 1000 / calls for a, b in itertools.pairwise(events)]
        return {"used": True, "us": times}

    def measure_python(self, hidden, dtype, tokens, batches, calls=50):
        """Microseconds of Python an eager all-reduce: `should_use_fi_ar` and `all_reduce`, as
        vLLM's communicator calls them; launches are queued and waited for between batches."""
        x = self._input(tokens, hidden, dtype)
        found = []
        for _ in range(batches + 1):
            self._together()
            started = time.perf_counter()
            for _ in range(calls):
                if self._usable(x):
                    self.communicator.all_reduce(x)
            found.append((time.perf_counter() - started) / calls * 1e6)
            self._sync()
        return {"used": True, "us": found[1:]}

    # How ----------------------------------------------------------------------------------------

    def _input(self, tokens, hidden, dtype):
        torch = self.torch
        # Rounded first, so that the reference sums what the kernel is given.
        return torch.randn(tokens, hidden, device=self.device).to(getattr(torch, dtype))

    def _inputs(self, hidden, dtype, tokens):
        key = ("inputs", hidden, dtype, tokens)
        if key not in self.graphs:
            self.graphs[key] = [self._input(tokens, hidden, dtype) for _ in range(8)]
        return self.graphs[key]

    def _usable(self, x):
        return True if self.dry else self.communicator.should_use_fi_ar(x)

    def _sum(self, x):
        total = x.double()
        if self.collectives == "nccl":
            self.dist.all_reduce(total, group=self.tp.device_group)
            return total
        total = total.cpu()
        self.dist.all_reduce(total, group=self.tp.cpu_group)
        return total.to(self.device)

    @staticmethod
    def _norm(total, residual, weight, epsilon):
        added = total + residual.double()
        scale = (added.pow(2).mean(-1, keepdim=True) + epsilon).rsqrt()
        return added, added * scale * weight.double()

    def _error(self, out, reference):
        """||out - reference|| / ||reference||; NaN where anything was not written."""
        return float((out.double() - reference).norm() / reference.norm())

    def _sync(self):
        if not self.dry:
            self.torch.cuda.synchronize()

    def _together(self):
        self._sync()
        self.dist.barrier(group=self.tp.cpu_group)

    def _capture(self, call):
        torch = self.torch
        if self.dry:
            out = call()

            def replay():
                again = call()
                pairs = (
                    zip(out, again, strict=True)
                    if isinstance(out, (tuple, list))
                    else [(out, again)]
                )
                for mine, new in pairs:
                    mine.copy_(new)

            return SimpleNamespace(replay=replay), out
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            call()
        torch.cuda.current_stream().wait_stream(stream)
        self._together()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            out = call()
        self._together()
        return graph, out

    def stop(self):
        self.graphs.clear()
        self._together()
        self.fi.destroy_fi_ar_workspace()
        self.dist.barrier(group=self.tp.cpu_group)
        self.dist.destroy_process_group()
        return {}
