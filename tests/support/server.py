"""A real `vllm serve` on the CPU, with a two-layer model of random weights made here."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

MODEL_NAME = "dummy"
READY_S = 240.0
STOP_S = 20.0


def _byte_alphabet() -> dict[int, str]:
    """Byte-level BPE's printable stand-in for each byte: printable ones are themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in alphabet)
    return alphabet | {byte: chr(0x100 + n) for n, byte in enumerate(others)}


def make_model(folder: Path) -> Path:
    """Writes a Llama config of two layers and a byte-level tokenizer (one token a byte).

    Returns:
        The folder, to be served with ``--load-format dummy``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    special = ["<s>", "</s>"]
    vocabulary = {token: n for n, token in enumerate([*special, *_byte_alphabet().values()])}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "vocab_size": 320,
        "max_position_embeddings": 4096,
        "bos_token_id": vocabulary["<s>"],
        "eos_token_id": vocabulary["</s>"],
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": vocabulary[token],
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token in special
        ],
        "pre_tokenizer": byte_level | {"use_regex": False},
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": 4096,
    }
    for name, content in (
        ("config.json", config),
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", settings),
    ):
        (folder / name).write_text(json.dumps(content))
    return folder


@dataclass
class Server:
    """A running server; everything it started shares its session, whoever outlives whom."""

    base_url: str
    process: subprocess.Popen[bytes]
    log: Path
    model: str = MODEL_NAME
    model_folder: Path = field(default_factory=Path)

    def processes(self) -> dict[int, str]:
        """Process id to command line (as vLLM titles it: ``VLLM::Worker_TP0``), living ones."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                # The command name in parentheses may hold spaces: count from its end.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                state, session = fields[0], int(fields[3])
                if session == self.process.pid and state not in "ZX":
                    title = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(entry.name)] = title.decode(errors="replace").strip()
        return found

    def pids(self) -> list[int]:
        return sorted(self.processes())

    def pid_of(self, title: str) -> int:
        """The one process whose title holds `title`, e.g. ``EngineCore`` or ``Worker_TP1``."""
        (pid,) = [pid for pid, text in self.processes().items() if title in text]
        return pid

    def stop(self) -> None:
        """Ends the server and all its processes, each by its id."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        while self.pids() and time.monotonic() < deadline:
            self.process.poll()
            time.sleep(0.1)
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_ready(server: Server) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            break
        with contextlib.suppress(URLError, OSError):
            if urlopen(f"{server.base_url}/health", timeout=5).status == 200:
                return
        time.sleep(0.25)
    tail = "\n".join(server.log.read_text(errors="replace").splitlines()[-40:])
    code = server.process.poll()
    state = f"not ready after {READY_S:.0f} s" if code is None else f"ended with exit {code}"
    raise RuntimeError(f"vllm serve: {state}\n{tail}")


@contextlib.contextmanager
def serve(
    python: Path,
    *,
    log: Path,
    tp: int = 2,
    env: Mapping[str, str] | None = None,
    extra_args: Sequence[str] = (),
    prefix: Sequence[str | os.PathLike[str]] = (),
) -> Iterator[Server]:
    """Runs `vllm serve` of the environment of `python` on a free loopback port, until left.

    Args:
        log: the server's standard output and error; its model is made beside it.
        env: added to this process's environment, which comes without PYTHONPATH and without
            HISPARSE_GUARD_*.
        prefix: words before the command, e.g. of a program that starts it.

    Raises:
        RuntimeError: it ended or did not become healthy, with the end of its log.
    """
    model = make_model(log.parent / f"{log.stem}-model")
    port = free_port()
    command: list[str | os.PathLike[str]] = [
        *prefix,
        python,
        python.parent / "vllm",
        *("serve", model, "--served-model-name", MODEL_NAME),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--load-format", "dummy", "--dtype", "bfloat16", "--enforce-eager"),
        *("--tensor-parallel-size", str(tp), "--distributed-executor-backend", "mp"),
        *("--max-model-len", "2048", "--max-num-seqs", "32"),
        *extra_args,
    ]
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONPATH" and not name.startswith(("HISPARSE_GUARD_", "VLLM_"))
    }
    cores = os.cpu_count() or 1
    environment = {
        **inherited,
        "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(str(rank % cores) for rank in range(tp)),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        **(env or {}),
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(f"http://127.0.0.1:{port}", process, log, model_folder=model)
    try:
        _await_ready(server)
        yield server
    finally:
        server.stop()
