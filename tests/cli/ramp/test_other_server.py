"""A whole ramp against a real server that is not vLLM: `transformers serve`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.cli.ramp.process import ramp
from tests.support.environments import accelerate_path, server_python
from tests.support.server import free_port, make_model

pytestmark = pytest.mark.slow
READY_S = 120.0
# Real weights (random ones), since this server has no dummy loader.
WEIGHTS = """
import json, sys
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM
folder = Path(sys.argv[1])
fields = json.loads((folder / "config.json").read_text())
for name in ("architectures", "model_type", "torch_dtype"):
    del fields[name]
model = LlamaForCausalLM(LlamaConfig(**fields))
model.generation_config.eos_token_id = None
# Printable ASCII alone (the first tokens after the two special ones): half a character shows no
# text, and this server tells no tokens.
for rows in (slice(0, 2), slice(96, None)):
    model.lm_head.weight.data[rows] = 0
model.save_pretrained(folder)
"""


@contextlib.contextmanager
def transformers_serve(folder: Path) -> Iterator[str]:
    python = server_python()
    subprocess.run([python, "-c", WEIGHTS, make_model(folder / "model")], check=True)
    (folder / "hub").mkdir()
    port = free_port()
    environment = {
        **os.environ,
        "PYTHONPATH": str(accelerate_path()),
        "HF_HUB_CACHE": str(folder / "hub"),
        "HF_HUB_OFFLINE": "1",
    }
    command = [python, python.parent / "transformers", "serve", "--host", "127.0.0.1"]
    with (folder / "serve.log").open("w") as log:
        server = subprocess.Popen(
            [*command, "--port", str(port), "--device", "cpu"],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + READY_S
        while True:
            with contextlib.suppress(URLError, OSError):
                urlopen(f"{url}/health", timeout=5)
                break
            assert time.monotonic() < deadline and server.poll() is None
            time.sleep(0.25)
        yield url
    finally:
        server.kill()
        server.wait()


def test_a_whole_ramp(tmp_path: Path) -> None:
    model = str(tmp_path / "model")
    with transformers_serve(tmp_path) as url:
        words = ("--levels", "1,2", "--requests", "2,4", "--isl", "50", "--osl", "12")
        found = ramp(tmp_path, url, model, *words)
    assert found.code == 0, found.out + found.err
    assert found.counts == [(1, 2, 0), (2, 4, 0)]
    said = found.document["sentence"]
    for words in ("version", "restarted", "number of tokens", "no ignore_eos", "answers as"):
        assert words in said
