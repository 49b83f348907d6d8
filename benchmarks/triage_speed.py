"""``triage`` over logs of 100 MB, against ``grep -E`` with the same patterns in the same run.

Logs, each with an `mnnvl` workspace at its start and a launch failure at its end: of a server
that logs requests (the kinds of lines of the published excerpts and of ``--enable-log-requests``),
of one whose lines are mixed with ten times as many of a gateway that triage knows nothing of, of a
dead engine that answers every request with a traceback, of errors no two of which are alike, and
of requests for models that are not served, which say nothing against the server.
``grep -cE -f`` gets the words that triage searches for. Its speed depends on the locale.

Both run as processes of their own, in turn; the peak is the resident size of triage.

Alone, with other sizes: ``python -m benchmarks.triage_speed [--megabytes N] [--rounds N]
[--kind KIND]``.
"""

from __future__ import annotations

import argparse
import locale
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.row import Row, as_text
from hisparse_guard.cli.triage import scan
from hisparse_guard.cli.triage.catalogue import load
from hisparse_guard.cli.triage.facts import WORDS

ROOT = Path(__file__).resolve().parent.parent
# Times grep's wall time: ordinary logs, and logs of errors no two of which are alike.
BOUND = (3.0, 5.0)
_TEXT = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or "
    "had an they which one you were all her she there would their we him been has when who will no "
    "more if out so up said what its about than into them can only other time new some"
)
_WORDS = _TEXT.split(" ")
_LINES_A_SECOND = 200
_BEGIN = """\
(APIServer pid=588) INFO 11-03 00:00:00 [startup.py:38] vLLM server version 0.33.0, serving model m
(Worker_TP0 pid=703) INFO 11-03 00:00:15 [flashinfer_all_reduce.py:252] Initialized FlashInfer \
Allreduce norm fusion workspace with backend=mnnvl
(APIServer pid=588) INFO 11-03 00:00:52 [metrics.py:108] KV Transfer metrics: HiSparse hot-buffer \
hits=0, HiSparse hot-buffer misses=0
"""
_ERROR = "(Worker_TP2 pid=705) ERROR 11-03 23:59:04 [multiproc_executor.py:1105] "
_END = [
    _ERROR + text
    for text in (
        "Error getting async model runner output",
        "Traceback (most recent call last):",
        '  File "vllm/v1/worker/gpu/async_utils.py", line 175, in get_output',
        "    self.copy_event.synchronize()",
        "torch.AcceleratorError: CUDA error: unspecified launch failure",
    )
]


def _serving(rng: random.Random, at: str, n: int) -> str:
    kind = n % 50
    api = "(APIServer pid=588) INFO"
    if kind == 0:
        return (
            f"{api} {at} [loggers.py:335] Engine 000: Avg prompt throughput: "
            f"{rng.random() * 1e4:.1f} tokens/s, Avg generation throughput: "
            f"{rng.random() * 1e3:.1f} tokens/s, Running: {rng.randrange(64)} reqs, Waiting: 0 "
            f"reqs, GPU KV cache usage: {rng.random() * 100:.1f}%, Prefix cache hit rate: 0.0%"
        )
    if kind == 1:
        return (
            f"{api} {at} [metrics.py:108] KV Transfer metrics: HiSparse hot-buffer "
            f"hits={rng.randrange(10**6)}, HiSparse hot-buffer misses={rng.randrange(10**5)}, "
            f"HiSparse host KV cache usage %={rng.random() * 100:.1f}"
        )
    if kind % 3 == 0:
        return (
            f"{api} {at} [logger.py:43] Received request cmpl-{rng.getrandbits(128):032x}-0: "
            f"prompt: '{' '.join(rng.choices(_WORDS, k=40))}', params: SamplingParams(n=1, "
            "presence_penalty=0.0, temperature=1.0, top_p=1.0, seed=None, stop=[], "
            "max_tokens=220), prompt_token_ids: None, lora_request: None."
        )
    if kind % 3 == 1:
        return f"{api} {at} [async_llm.py:311] Added request cmpl-{rng.getrandbits(128):032x}-0."
    return (
        f"{api}:     127.0.0.1:{rng.randrange(30000, 60000)} - "
        '"POST /v1/chat/completions HTTP/1.1" 200 OK'
    )


def _gateway(rng: random.Random, at: str, n: int) -> str:
    if n % 11 == 0:
        return _serving(rng, at, n // 11)
    return (
        f"{at} gateway[{n % 7}] route=chat tenant={rng.randrange(1000)} "
        f"id={rng.getrandbits(64):016x} latency_ms={rng.randrange(40000)} "
        f"note={' '.join(rng.choices(_WORDS, k=12))}"
    )


def _storm(rng: random.Random, at: str, n: int) -> str:
    rank = n // len(_END) % 4
    text = _END[n % len(_END)].replace("TP2 pid=705", f"TP{rank} pid={703 + rank}")
    return text.replace("11-03 23:59:04", at)


def _distinct(rng: random.Random, at: str, n: int) -> str:
    return (
        f"(Worker_TP{n % 4} pid={703 + n % 4}) ERROR {at} [x.py:{n % 90}] went wrong "
        f"{rng.getrandbits(64):016x} {' '.join(rng.choices(_WORDS, k=12))}"
    )


def _refused(rng: random.Random, at: str, n: int) -> str:
    return (
        f"(APIServer pid=588) ERROR {at} [serving.py:280] Error with model error=ErrorInfo("
        f"message='The model `{rng.getrandbits(64):016x}` does not exist.', "
        "type='NotFoundError', param='model', code=404)"
    )


KINDS = {
    "serving": _serving,
    "gateway": _gateway,
    "storm": _storm,
    "distinct": _distinct,
    "refused": _refused,
}


def write(path: Path, kind: str, size: int) -> None:
    """Writes a log of at least `size` bytes, the same one every time."""
    rng = random.Random(1)
    make = KINDS[kind]
    written, n = 0, 0
    with path.open("w", encoding="utf-8") as out:
        out.write(_BEGIN)
        while written < size:
            lines = []
            for _ in range(5000):
                n += 1
                second = n // _LINES_A_SECOND
                at = f"11-03 {second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
                lines.append(make(rng, at, n))
            written += out.write("\n".join(lines) + "\n")
        out.write("\n".join(_END) + "\n")


def patterns() -> str:
    """What triage searches a log for, as extended regular expressions, one a line."""
    words = {*load().words(), *WORDS, *scan.START, scan.STATISTICS}
    lines = [re.sub(r"([][(){}.*+?^$|\\])", r"\\\1", word) for word in sorted(words)]
    # Escaped quotes are in JSON only, and none of these logs is; word boundaries slow grep down.
    for word in scan.TROUBLE:
        trouble = (
            word.replace(r"\\*", "").replace(r"\\?", "").replace(r"\"", '"').replace(r"\b", "")
        )
        trouble = trouble.replace("(?:", "(").replace(r"\d", "[0-9]").replace(r"|\\n|$", "|$")
        lines.append(trouble.replace(r"\w", "[[:alnum:]_]"))
    return "\n".join(lines) + "\n"


def _run(command: Sequence[str]) -> tuple[float, float, float, int]:
    """Wall and processor seconds, peak resident size in MiB, exit code."""
    begin = time.perf_counter()
    # Not to /dev/null: there grep stops at its first match.
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, process.returncode


def rows(
    megabytes: int = 100, rounds: int = 3, kinds: Sequence[str] = tuple(KINDS)
) -> Iterator[Row]:
    """Measures triage against grep.

    Args:
        megabytes: size of each log, in 10**6 bytes.
        rounds: how often each command reads each log.
        kinds: of `KINDS`.

    Raises:
        RuntimeError: a command did not end as it must on these logs.
    """
    with tempfile.TemporaryDirectory() as folder:
        log, wanted = Path(folder) / "vllm.log", Path(folder) / "patterns"
        wanted.write_text(patterns(), encoding="utf-8")
        commands = (
            ("grep", 0, ["grep", "-cE", "-f", str(wanted), str(log)]),
            ("triage", 1, [sys.executable, "-m", "hisparse_guard", "triage", "--json", str(log)]),
        )
        for kind in kinds:
            write(log, kind, megabytes * 10**6)
            runs: dict[str, list[tuple[float, float, float]]] = {"grep": [], "triage": []}
            for _ in range(rounds):
                for name, expected, command in commands:
                    wall, used, peak, code = _run(command)
                    if code != expected:
                        raise RuntimeError(f"{name} ended with {code} on the {kind} log")
                    runs[name].append((wall, used, peak))
            what = f"triage, {megabytes} MB, {kind}"
            (wall, used, peak), (grep_wall, grep_used, _) = (
                list(zip(*runs[name], strict=True)) for name in ("triage", "grep")
            )
            limit = f"{BOUND[kind == 'distinct']:g} times grep"
            yield Row(what, "s", wall, "grep -E, same words", grep_wall, limit)
            yield Row(f"{what}, processor time", "s", used, "grep -E, same words", grep_used)
            yield Row(f"{what}, peak memory", "MiB", peak, promised="300 MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description="triage against grep -E")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kind", choices=list(KINDS), action="append")
    asked = parser.parse_args()
    print(f"locale {locale.setlocale(locale.LC_CTYPE, '')}")
    for row in rows(asked.megabytes, asked.rounds, asked.kind or tuple(KINDS)):
        print(as_text(row.cells()), flush=True)


if __name__ == "__main__":
    main()
