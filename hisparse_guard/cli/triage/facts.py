"""What the configuration in a log says: versions, sizes, connectors, settings.

Read only from lines that hold nothing but the operator's own configuration: vLLM's list of
arguments, its engine configuration, and a serve script given along with the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import re2

from hisparse_guard.cli.triage.model import Place

_Q = r"[\\'\"]*"
_SET = rf"{_Q}\s*[=:]\s*{_Q}"


def _assigned(name: str, value: str) -> str:
    """`name=value`, `'name': value`, `--name value`, with whatever quotes."""
    dashed = name.replace("_", "[-_]")
    return rf"(?:^|[^A-Za-z0-9_]){dashed}{_Q}(?:\s*[=:]\s*|\s+){_Q}({value})"


_FACTS = {
    name: re2.compile(pattern)
    for name, pattern in {
        "vllm_version": r"vLLM (?:API )?server version ([^\s,]{1,80})"
        r"|[█▀▄] +version +(\d[^\s]{0,80})|Initializing an? (?:V1 )?LLM engine \(v([^)\s]{1,80})\)",
        "commit": r"(?:version |engine \(v)[^\s)]{0,80}\+(?:cpu\.|cu\d+\.)?g([0-9a-f]{7,40})",
        "model": r"vllm serve +([^-\s\\'\"][^\s\\'\"]{0,300})|serving model (\S{1,300})"
        r"|config: model='([^']{1,300})'|'model(?:_tag)?': '([^']{1,300})'",
        "tensor_parallel_size": _assigned("tensor_parallel_size", r"\d{1,5}")
        + r"|(?:^|\s)-tp[ =](\d{1,5})",
        "data_parallel_size": _assigned("data_parallel_size", r"\d{1,5}"),
        "host_pool_gib": _assigned("host_pool_gib", r"[\d.]{1,12}"),
        "block_size": _assigned("block_size", r"\d{1,7}"),
        "cudagraph_mode": rf"cudagraph_mode{_SET}<?(?:CUDAGraphMode\.)?([A-Z][A-Z_]{{1,40}})",
        "enforce_eager": _assigned("enforce_eager", r"True|False|true|false")
        + r"|(--enforce-eager)(?:\s|$)",
        "launch_blocking": rf"(?:^|[\s'\"{{,])CUDA_LAUNCH_BLOCKING{_Q}\s*[=:]\s*{_Q}(\w{{1,20}})",
        "nccl_net_plugin": rf"NCCL_NET_PLUGIN(?:{_SET}| set by environment to )([\w./-]{{1,80}})",
        "allreduce_backend_env": rf"VLLM_FLASHINFER_ALLREDUCE_BACKEND{_SET}([a-z]{{1,20}})",
        "flashinfer_version": r"flashinfer[-_]python=+([\w.]{1,40})|FlashInfer (\d[\w.]{0,40})",
        "hisparse_config": rf"hisparse_config{_Q}\s*[=:]\s*{_Q}(HiSparseConfig\(|\{{)",
        "nnodes": r"nnodes\W{1,4}([2-9]|\d\d+)\b|node_rank=([1-9])",
    }.items()
}
_CONNECTOR = re2.compile(rf"kv_connector{_Q}\s*[=:]\s*{_Q}(\w{{1,80}}Connector\w{{0,40}})")
_CONFIG = re2.compile(
    r"non-default args: |Initializing an? (?:V1 )?LLM engine |vLLM (?:API )?server version "
    r"|[█▀▄ ]* *[█▀▄] +(?:version|model) +|vLLM batch processing API version "
    r"|(?:export |env |set -x )?(?:[A-Z][A-Z0-9_]{2,60}=\S{0,200} )*"
    r"(?:exec |nohup )?(?:\S{1,80}/)?vllm serve "
    r"|export [A-Z]|(?:[A-Z][A-Z0-9_]{4,60}=\S{1,200}\s*)+$"
    r"|\s+--[a-z][a-z-]{2,60}[ =]|NCCL_NET_PLUGIN set by environment|hisparse-guard: armed"
    r"|\S{1,80}:\d+:\d+ \[\d+\] NCCL INFO NCCL_NET_PLUGIN set by environment"
)
# What one of those lines surely holds, for the search of the log.
WORDS = (
    "non-default args: ", "LLM engine ", "server version ", "vllm serve", "export ",
    "API version ", "NCCL_NET_PLUGIN", "CUDA_LAUNCH_BLOCKING", "  --",
    "VLLM_FLASHINFER_ALLREDUCE_BACKEND", "hisparse_config",
)  # fmt: skip
_HOLDS = (*WORDS, "█", " --", "armed", "=")
_START_WORDS = ("version ", "non-default args: ", "LLM engine ", "API version")
_START = (
    (
        "server",
        re2.compile(r"vLLM (?:API )?server version |[█▀▄ ]*[█▀▄] +version +\d|vLLM batch pro"),
    ),
    ("arguments", re2.compile(r"non-default args: ")),
    ("engine", re2.compile(r"Initializing an? (?:V1 )?LLM engine ")),
)


@dataclass(frozen=True)
class Fact:
    """A value read from the log and the line it was read from."""

    value: str
    place: Place


@dataclass
class Facts:
    """The first value of each fact, and every connector, with the line that says it."""

    values: dict[str, Fact] = field(default_factory=dict)
    connectors: dict[str, Place] = field(default_factory=dict)

    def take(self, message: str, place: Place) -> bool:
        """Reads a line of configuration; False where it is none."""
        if not any(word in message for word in _HOLDS) or not _CONFIG.match(message):
            return False
        for found in _CONNECTOR.findall(message):
            if len(self.connectors) < 20:
                self.connectors.setdefault(str(found), place)
        for name, pattern in _FACTS.items():
            if name not in self.values and (match := pattern.search(message)):
                value = next(group for group in match.groups() if group is not None)
                self.values[name] = Fact(str(value), place)
        return True

    def value(self, name: str) -> str | None:
        """What the log says of a fact, or None."""
        fact = self.values.get(name)
        return fact.value if fact else None

    def number(self, name: str) -> int | None:
        """The same as a whole number, or None."""
        value = self.value(name)
        return int(value) if value and value.isdecimal() and len(value) < 8 else None


def start_marker(message: str) -> str | None:
    """Which step of a server's start a message is: "server", "arguments", "engine", or None."""
    if not any(word in message for word in _START_WORDS):
        return None
    for name, pattern in _START:
        if pattern.match(message):
            return name
    return None
