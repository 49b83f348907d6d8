"""All arms for one FlashInfer release, the checks and the results.

Arms: `unguarded` (HiSparse, nothing set), `guarded` (the same with a guard bundle on PYTHONPATH),
`environment` (VLLM_FLASHINFER_ALLREDUCE_BACKEND=trtllm, no guard). For the times `environment`
runs twice beside `guarded`: how far these two lie apart is what a difference has to exceed.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import statistics
import subprocess
import sys
import time
import traceback

from benchmarks.gpu.arms import Arm, Failed
from benchmarks.gpu.machine import ROOT
from benchmarks.gpu.names import BACKEND, FUSED_LIMITS, LIMITS, TOKENS
from benchmarks.gpu.plan import NOT_SHOWN
from benchmarks.gpu.table import markdown
from hisparse_guard import __version__


class Run:
    """All arms, the checks and the results."""

    def __init__(self, machine, mode, out, options, announced):
        self.machine, self.mode, self.out = machine, mode, out
        self.size = 2
        self.hidden, self.quick = options.hidden, options.quick
        self.started = time.monotonic()
        self.deadline = self.started + options.limit
        self.results = {
            "schema": 2,
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "mode": mode,
            "ranks": self.size,
            "hidden": self.hidden,
            "guard": __version__,
            "packages": machine.versions(),
            "announced": announced,
            "not shown": list(NOT_SHOWN[mode]),
            "checks": [],
        }
        out.mkdir(parents=True)
        self.bundle = self._bundle()

    def _bundle(self):
        path = self.out / "guard.zip"
        command = [sys.executable, "-m", "hisparse_guard", "bundle", str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"no bundle to inject: {done.stderr.strip() or done.stdout.strip()}")
        self.results["bundle"] = done.stdout.split()
        return path

    def evidence(self, arm):
        folder = self.out / "evidence" / arm
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def say(self, text):
        print(f"[{time.monotonic() - self.started:6.1f} s] {text}", flush=True)

    def check(self, name, ok, **detail):
        self.results["checks"].append({"name": name, "ok": bool(ok), **detail})
        self.say(f"{'ok  ' if ok else 'FAIL'} {name} {json.dumps(detail) if detail else ''}")
        self.write()

    def stage(self, name, function):
        """One stage; a failure of it is a failed check, and the next stage runs all the same."""
        self.say(f"--- {name}")
        try:
            function()
        except Exception as error:
            traceback.print_exc()
            self.check(name, False, error=str(error)[-2000:] or repr(error))

    def write(self):
        """After each finding: what ends the run early loses nothing before it."""
        self.results["seconds"] = round(time.monotonic() - self.started, 1)
        (self.out / "results.json").write_text(json.dumps(self.results, indent=1) + "\n")
        (self.out / "results.md").write_text(markdown(self.results))

    # Stages ---------------------------------------------------------------------------------------

    def kernels(self):
        """FlashInfer's `trtllm` kernels, compiled or kept from before, and loaded, in a process
        of their own: what fails here is the compiler, and not a rank."""
        with (self.out / "kernels.log").open("w") as log:
            done = subprocess.run(
                [self.machine.python, "-m", "benchmarks.gpu.kernels"],
                cwd=ROOT,
                env=self.machine.environment(),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                check=False,
                timeout=max(1, self.deadline - time.monotonic()),
            )
        if done.returncode:
            raise Failed(f"exit {done.returncode}; see {log.name}")
        self.results["kernels"] = json.loads(done.stdout.splitlines()[-1])
        self.check(
            "kernels: compiled, or kept from before, and loaded with the functions that are called",
            not self.results["kernels"]["missing functions"],
            **self.results["kernels"],
        )

    def unguarded(self):
        """What vLLM asks FlashInfer for by itself; every rank is stopped there."""
        with Arm("unguarded", self) as arm:
            arm.ready()
            found = arm.do("environment")
            self.check("unguarded: no rank has the guard", all(f["guard"] is None for f in found))
            found = arm.do("first", hidden=self.hidden, dtype="bfloat16")
            self.check(
                "unguarded: every rank asks FlashInfer for mnnvl, and is stopped there",
                all(f["asked"] == ["mnnvl"] and f["stopped"] == "mnnvl" for f in found),
                asked=[f["asked"] for f in found],
            )

    def guarded(self):
        """The real workspace, its kernels against NCCL, and made anew."""
        with Arm("guarded", self, guarded=True) as arm:
            arm.ready()
            found = arm.do("environment")
            self.results["environment"] = {**found[0], "driver": self.machine.driver}
            self.check(
                "guarded: every rank has the guard, from the bundle",
                all((f["guard"] or "").startswith(str(self.bundle)) for f in found),
            )
            self._first(arm, "bfloat16")
            expected = {
                "getter": ["function"],
                "one object": True,
                "resolver": "UntracedFunction",
                "create": "UntracedFunction",
            }
            found = arm.do("hot_path")
            self.check(
                "guarded: the getter is vLLM's own function again, the rest stays wrapped",
                all(f == expected for f in found),
                found=found,
            )
            self._held(arm, [])
            sizes = (1, 16, 17, 256) if self.quick else TOKENS
            for dtype in ("bfloat16", "float16"):
                self._series(arm, "all-reduce", "check", dtype, sizes)
                self._series(arm, "replayed all-reduce", "check_graph", dtype, sizes)
                self._series(arm, "fused norm", "check_fused", dtype, sizes)
                self._series(arm, "replayed fused norm", "check_fused", dtype, sizes, how="graph")
                self._collective(arm, dtype, sizes)
            # A workspace is for 2-byte or for 4-byte elements: made anew for float32, and back.
            for dtype in ("float32", "bfloat16"):
                arm.do("destroy")
                self._first(arm, dtype, ", after destroy_fi_ar_workspace")
                self._series(arm, "all-reduce, made anew", "check", dtype, sizes)
                self._series(arm, "replayed all-reduce, made anew", "check_graph", dtype, sizes)
            self._collective(arm, "float32", sizes)
            arm.do("destroy")
            self._held(arm, ["trtllm"], ", after destroy_fi_ar_workspace")

    def _collective(self, arm, dtype, sizes):
        """NCCL's own error in the tensor's type, to compare with."""
        if self.mode == "two":
            self._series(arm, "NCCL's all-reduce", "check_collective", dtype, sizes)

    def _held(self, arm, asked, when=""):
        found = arm.do("by_held_getter", seconds=900, hidden=self.hidden, dtype="bfloat16")
        self.check(
            f"{arm.name}: a getter held outside vLLM's modules gives vLLM's one trtllm "
            f"workspace{when}",
            all(f == {"asked": asked, "backend": "trtllm", "the one": True} for f in found),
            found=found,
        )

    def _first(self, arm, dtype, when=""):
        # The kernels may have to be compiled first.
        found = arm.do("first", seconds=900, hidden=self.hidden, dtype=dtype)
        self.check(
            f"{arm.name}: every rank asks for trtllm alone, gets and uses it, for {dtype}{when}",
            all(f["backend"] == "trtllm" and f["asked"] == ["trtllm"] and f["used"] for f in found),
            seconds=[f["seconds"] for f in found],
            type=found[0]["type"],
        )

    def _series(self, arm, what, do, dtype, tokens, **arguments):
        """One kind of check for each size; the largest error of all ranks against the limit."""
        limit = (FUSED_LIMITS if do == "check_fused" else LIMITS)[dtype]
        rows = []
        for count in tokens:
            found = arm.do(do, hidden=self.hidden, dtype=dtype, tokens=count, **arguments)
            errors = [v for f in found for k, v in f.items() if k.endswith("error")]
            if not errors or not all(f.get("used", True) for f in found):
                raise Failed(f"{arm.name}: {what}, {count} tokens: not by FlashInfer")
            # NaN counts as the largest.
            worst = max(errors, key=lambda e: (e != e, e))
            rows.append({"what": what, "dtype": dtype, "tokens": count, "error": worst})
        self.results.setdefault("errors", []).extend(rows)
        self.check(
            f"{arm.name}: {what}, {dtype}, {tokens[0]} to {tokens[-1]} tokens",
            all(r["error"] <= limit for r in rows),  # false for NaN
            worst=max((r["error"] for r in rows), key=lambda e: (e != e, e)),
            limit=limit,
        )

    def times(self):
        """The same work, guarded and twice with the environment variable, in turns."""
        with contextlib.ExitStack() as stack:
            arms = {}
            for name in ("guarded", "environment", "environment again"):
                guarded = name == "guarded"
                arm = Arm(
                    f"times-{name.replace(' ', '-')}",
                    self,
                    guarded=guarded,
                    env={} if guarded else {BACKEND: "trtllm"},
                )
                arms[name] = stack.enter_context(arm)
            for arm in arms.values():
                arm.ready()
                self._first(arm, "bfloat16")
            # Two ranks that take turns on one GPU mostly wait.
            if self.mode != "one":
                self._device_times(arms)
            self._python_times(arms)

    def _device_times(self, arms):
        iterations = 20 if self.quick or self.mode == "dry" else 200
        self.results["times"] = []
        for how in ("eager", "graph"):
            for tokens in (1, 256) if self.quick else TOKENS:
                row = self._turns(arms, "measure", tokens=tokens, how=how, iterations=iterations)
                self.results["times"].append({"how": how, "tokens": tokens, **row})
                self.say(f"{how:6} {tokens:5} tokens {json.dumps(row)}")
                self.write()
            self._same(how, [r for r in self.results["times"] if r["how"] == how])

    def _python_times(self, arms):
        row = self._turns(arms, "measure_python", tokens=1, batches=9)
        self.results["python"] = [{"how": "Python, eager", "tokens": 1, **row}]
        self._same("Python", self.results["python"])

    def _turns(self, arms, do, **arguments):
        """Arms take turns, in changing order; each arm's median over rounds."""
        rounds = 3 if self.quick or self.mode == "dry" else 21
        medians = {name: [] for name in arms}
        names = list(arms)
        for turn in range(rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                found = arms[name].do(do, hidden=self.hidden, dtype="bfloat16", **arguments)
                if not all(f["used"] for f in found):
                    raise Failed(f"{name}: {arguments} is not reduced by FlashInfer")
                # Ranks wait for each other in the kernel: the slowest one's time is the group's.
                medians[name].append(max(statistics.median(f["us"]) for f in found))
        row = {name: round(statistics.median(values), 3) for name, values in medians.items()}
        for name, arm in (("ratio", "guarded"), ("control", "environment again")):
            row[name] = round(row[arm] / row["environment"], 4)
            # Of each round's ratio: first and third quartile.
            pairs = zip(medians[arm], medians["environment"], strict=True)
            low, _, high = statistics.quantiles((mine / base for mine, base in pairs), n=4)
            row[f"{name} spread"] = [round(low, 4), round(high, 4)]
        return row

    def _same(self, what, rows):
        """The guard's ratio, the median over the sizes, lies no further from 1 than 2 %, or than
        twice what the control's does at a size in the middle."""
        ratio = statistics.median(r["ratio"] for r in rows)
        noise = max(0.02, 2 * statistics.median(abs(r["control"] - 1) for r in rows))
        if self.mode == "dry":
            self.say(f"times, {what}: not judged, since no kernel ran")
            return
        self.check(
            f"times, {what}: guarded / environment is 1.00 within noise",
            abs(ratio - 1) <= noise,
            ratio=round(ratio, 4),
            noise=round(noise, 4),
        )

    def report(self):
        """The evidence, judged by `hisparse-guard report`; without evidence, that is a failure."""
        for arm in ("guarded", "times-guarded"):
            folder = self.evidence(arm)
            command = [sys.executable, "-m", "hisparse_guard", "report", str(folder), "--json"]
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
            )
            (self.out / f"report-{arm}.json").write_text(done.stdout or done.stderr)
            try:
                verdict = json.loads(done.stdout)["verdict"]
            except (ValueError, KeyError):
                verdict = (done.stderr or done.stdout)[-500:]
            self.check(
                f"{arm}: `report` says safe",
                done.returncode == 0 and verdict == "safe",
                verdict=verdict,
                exit=done.returncode,
            )

    def everything(self):
        if self.mode != "dry":
            self.stage("kernels", self.kernels)
        self.stage("what vLLM asks for by itself", self.unguarded)
        self.stage("guarded: the real workspace and its kernels", self.guarded)
        self.stage("times", self.times)
        self.stage("evidence", self.report)
        failed = [c["name"] for c in self.results["checks"] if not c["ok"]]
        self.say(f"{len(self.results['checks'])} checks, {len(failed)} failed: {failed}")
        return 1 if failed else 0
