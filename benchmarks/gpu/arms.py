"""The ranks of one arm, started and spoken to by the parent."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import subprocess
import time

from benchmarks.gpu.machine import ROOT
from benchmarks.gpu.names import REPLY


class Failed(RuntimeError):
    """A rank failed, or did not answer in time."""


class Arm:
    """The ranks of one arm, and what they found."""

    def __init__(self, name, run, *, guarded=False, env=None):
        self.name, self.run = name, run
        if time.monotonic() > run.deadline:
            raise Failed(f"{name}: not begun, the limit has passed")
        self.processes = []
        environment = run.machine.environment([run.bundle] if guarded else [])
        if guarded:
            environment["HISPARSE_GUARD_EVIDENCE_DIR"] = str(run.evidence(name))
        environment.update(env or {})
        store = f"tcp://127.0.0.1:{free_port()}"
        for rank in range(run.size):
            options = {
                "rank": rank,
                "size": run.size,
                "mode": run.mode,
                "gpu": rank if run.mode == "two" else 0,
                "collectives": "nccl" if run.mode == "two" else "gloo",
                "store": store,
                "instance": f"gpu-{name}",
                "log": str(run.out / f"{name}-rank{rank}.log"),
            }
            process = subprocess.Popen(
                [run.machine.python, "-m", "benchmarks.gpu.rank", json.dumps(options)],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            self.processes.append(process)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.do("stop", 60)
        finally:
            self._end(20 if kind is None else 5)

    def ready(self):
        """Started, and the backend resolved in the config's context."""
        self._gather(240)
        self.do("resolve")
        return self

    def do(self, what, seconds=120, **arguments):
        """Every rank does `what`; their answers, by rank.

        Raises:
            Failed: A rank raised, is gone, or did not answer in `seconds` (less where the whole
                run's limit comes first).
        """
        for process in self.processes:
            try:
                process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                raise Failed(f"{self.name}: a rank is gone before {what}") from None
        return self._gather(seconds, what)

    def _gather(self, seconds, what="start"):
        deadline = min(time.monotonic() + seconds, self.run.deadline)
        answers = {}
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self.processes):
                selector.register(process.stdout, selectors.EVENT_READ, rank)
            while len(answers) < len(self.processes):
                ready = selector.select(max(0, deadline - time.monotonic()))
                if not ready:
                    missing = sorted(set(range(len(self.processes))) - set(answers))
                    raise Failed(f"{self.name}: no answer to {what} in time from ranks {missing}")
                for key, _ in ready:
                    line = key.fileobj.readline()
                    if not line:
                        raise Failed(
                            f"{self.name}: rank {key.data} ended during {what}; see its log"
                        )
                    if not line.startswith(REPLY):
                        continue
                    found = json.loads(line.removeprefix(REPLY))
                    if "traceback" in found:
                        # At once: the other ranks may be waiting for this one.
                        raise Failed(f"{self.name}: rank {key.data}, {what}: {found['traceback']}")
                    answers[key.data] = found
                    selector.unregister(key.fileobj)
        return [answers[rank] for rank in range(len(self.processes))]

    def _end(self, seconds):
        deadline = time.monotonic() + seconds
        for process in self.processes:
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process in self.processes:
            try:
                process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(30)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
