"""``make demo-server``: a real `vllm serve` on the CPU, without the zip and with it.

No model that runs on a CPU has HiSparse: an extension of its two workers turns it on for one
workspace, and stands in for the call that needs a GPU.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.server.test_server import arm
from tests.support import environments, fetching
from tests.support.bundles import bundled


def backends(found: dict[str, object]) -> str:
    workers = found["workers"]
    assert isinstance(workers, list)
    return ", ".join(f"rank {n}: {worker['backend']}" for n, worker in enumerate(workers))


def main() -> int:
    try:
        environments.set_up(["server", "wrapt"])
    except environments.Unavailable as error:
        print(error, file=sys.stderr)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="hisparse-guard-server-"))
    with fetching.step("bundle, and a server without it"):
        guard = bundled(folder / "guard.zip")
        alone = arm(folder, "alone", [])
    evidence, page = folder / "evidence", folder / "report.html"
    with fetching.step("a server with the zip on PYTHONPATH"):
        setting = {"HISPARSE_GUARD_EVIDENCE_DIR": str(evidence)}
        guarded = arm(folder, "guarded", [guard], **setting)
    print(f"without: {backends(alone)}\nwith   : {backends(guarded)}")
    print(f"the same answers to a client: {'yes' if alone['after'] == guarded['after'] else 'no'}")
    print("The guard in the server's log:", *guarded["lines"], sep="\n  ")
    command = [sys.executable, "-m", "hisparse_guard"]
    done = subprocess.run([*command, "report", evidence, "--html", page], check=False)
    print(f"The report as a page: {page}\nThe log, to triage  : {folder / 'guarded.log'}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
