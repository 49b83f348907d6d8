"""What is known to be harmless: names of places, and shapes of values. All else is masked."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise

from hisparse_guard.cli.masking.text import is_secret_name

# A number, a quantity, a duration, a version, a list of small numbers, true or false.
SHAPE = (
    r"[+-]?\d{1,12}(?:\.\d{1,9})?(?:e[+-]?\d{1,3})?(?:[KMGTP]i?B?|m|s|ms|h|d|%)?"
    r"|v?\d{1,4}(?:\.(?:\d{1,5}|post\d+|dev\d+|rc\d+)){1,5}(?:rc\d+)?(?:\+(?:cu\d{2,3}|cpu|g[0-9a-f]{7,9}))?"
    r"|\d{1,4}(?:,\d{1,4}){1,63}|\d{1,5}-\d{1,5}|\d{1,5}:\d{1,5}|0x[0-9a-f]{1,16}"
    r"|\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)?"
    r"|true|false|yes|no|on|off|none|null|auto"
)
_SHAPES = re.compile(rf"{SHAPE}|", re.I)

# Words that vLLM, HiSparse, NCCL, Kubernetes and Compose use for themselves.
WORDS = frozenset(
    """
    trtllm mnnvl keep enforce observe strict info debug warn warning error trace spawn fork
    forkserver mp ray uni external_launcher float16 bfloat16 float32 half fp8 fp8_e4m3 fp8_e5m2
    nvfp4 mxfp4 int8 awq gptq modelopt dummy safetensors pt flashinfer flash_attn flashmla
    flashmla_sparse xformers triton cutlass deepep pplx naive allgather_reducescatter piecewise full
    full_and_piecewise full_decode_only kv_both kv_producer kv_consumer multiconnector nixlconnector
    hisparseconnector offloadingconnector lmcacheconnectorv1 hermes mistral openai deepseek_v3
    deepseek_r1 deepseek_v32 glm45 glm47 cpu cuda gpu host local disabled enabled default lru fcfs
    priority xgrammar guidance outlines eagle eagle3 mtp deepseek_mtp ngram medusa
    tcp udp sctp http https exec always never ifnotpresent onfailure on-failure unless-stopped
    clusterip nodeport loadbalancer headless clusterfirst clusterfirstwithhostnet rollingupdate
    recreate ordereddready parallel memory hugepages noschedule noexecute preferchedule exists equal
    in notin doesnotexist readwriteonce readwritemany readonlymany filesystem block retain delete
    runtimedefault unconfined opaque simple notify forking oneshot idle service bridge v1 v1beta1
    apps/v1 batch/v1 v1alpha1 networking.k8s.io/v1 rbac.authorization.k8s.io/v1 ray.io/v1
    leaderworkerset.x-k8s.io/v1 serving.kserve.io/v1beta1 autoscaling/v2 policy/v1
    deployment statefulset daemonset job cronjob pod replicaset leaderworkerset raycluster
    rayservice inferenceservice configmap secret service list namespace ingress
    sys_ptrace ipc_lock sys_admin nvidia all
    """.split()  # noqa: SIM905
)

# Commands and their own words, as they stand in a serve script.
COMMANDS = frozenset(
    """
    vllm serve bench python python3 bash sh exec env export set unset source cd if then else elif fi
    for do done while in case esac function return exit true false sleep echo printf test nohup
    numactl taskset docker run compose up kubectl apply curl wget sshpass ssh scp login git
    huggingface-cli hf
    pip install uv hisparse-guard ramp triage report doctor tee trap kill wait mkdir chmod
    local declare readonly eval sudo su nvidia-smi ray start head torchrun ! [ ] [[ ]] && ||
    ; | & ( ) { } > >> < 2> 2>&1 ;; then: vllm.entrypoints.openai.api_server
    """.split()  # noqa: SIM905
)

# Flags whose value is an ordinary name and says much about a fault.
NAME_FLAGS = frozenset(
    """
    --model --served-model-name --dtype --kv-cache-dtype --quantization --attention-backend
    --distributed-executor-backend --load-format --tokenizer-mode --reasoning-parser
    --tool-call-parser --all2all-backend --moe-backend --mamba-cache-dtype --optimization-level
    """.split()  # noqa: SIM905
)

# Keys of manifests whose value is a name that the manifest needs to be read.
NAME_KEYS = frozenset(("name", "image", "kv_connector", "kv_role"))

_ENVIRONMENT = re.compile(
    r"(?:VLLM|HISPARSE_GUARD|FLASHINFER|CUDA|NCCL|NVIDIA|TORCH|PYTORCH|TORCHINDUCTOR|UCX|NIXL|RAY|OMP|"
    r"TRITON|GLOO)_[A-Z0-9_]{2,60}|PYTHON(?:HASHSEED|UNBUFFERED|DONTWRITEBYTECODE|FAULTHANDLER)"
)
# A word, or words in one (`EngineCore`, `Worker2`); `_` and the like stand between others.
_RUN = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"([A-Z]?[a-z]{2,}|[A-Z]{2,}(?![a-z]))+\d{0,2}")
_CAMEL_WORD = re.compile(r"[A-Z]?[a-z]{2,}|[A-Z]{2,}(?![a-z])")
_MOST_NAME = 200
_PIECE = re.compile(r"[A-Za-z0-9]+")
_LONG = 10


def looks_random(text: str) -> bool:
    """Whether a part of it changes so often between letters, capitals and digits that no person
    would call something so."""
    for piece in _PIECE.findall(text):
        if len(piece) < _LONG:
            continue
        kinds = ["d" if c.isdigit() else "u" if c.isupper() else "l" for c in piece]
        digits = kinds.count("d")
        changes = sum(one != two for one, two in pairwise(kinds))
        if 2 <= digits < len(piece) and changes >= 4:
            return True
        if changes >= 5 and changes * 2 > len(piece):
            return True
        if len(piece) >= 40:
            return True
    return False


def harmless(value: str) -> bool:
    """Whether a value of an unknown place is known to be harmless by its shape."""
    return bool(_SHAPES.fullmatch(value)) or value.lower() in WORDS


@lru_cache(maxsize=1)
def _vocabulary() -> frozenset[str]:
    """Words that vLLM, its libraries, Kubernetes and this package use (`words.txt`)."""
    text = files(__package__).joinpath("words.txt").read_text(encoding="utf-8")
    return frozenset(text.split()) | WORDS


@lru_cache(maxsize=65536)
def _known_run(run: str) -> bool:
    known = _vocabulary()
    if run.lower() in known or (run.isascii() and run.isdigit() and len(run) <= 12):
        return True
    return bool(_CAMEL.fullmatch(run)) and all(
        word.lower() in known for word in _CAMEL_WORD.findall(run)
    )


def is_ordinary_word(text: str) -> bool:
    """Whether it is one word that servers use for themselves, without a digit."""
    return text.isalpha() and text.lower() in _vocabulary()


def known_words(text: str, also: frozenset[str] = frozenset()) -> bool:
    """Whether each word and number of it is one that servers use for themselves.

    Args:
        also: other words, in small letters.
    """
    return all(_known_run(run) or run.lower() in also for run in _RUN.findall(text))


def harmless_name(name: str) -> bool:
    """Whether a key, or what stands where names stand, is made of known words."""
    return len(name) <= _MOST_NAME and name.isprintable() and known_words(name)


def unknown_assignment(name: str, value: str) -> bool:
    """Whether text assigns to a variable that is of no server, and not one of their own words."""
    return not _ENVIRONMENT.fullmatch(name) and not all(map(harmless, value.split(",")))


def harmless_variable(name: str, value: str) -> bool:
    """Whether an environment variable may be kept: by its name and by its value's shape."""
    return (
        bool(_ENVIRONMENT.fullmatch(name))
        and harmless_name(name)
        and not is_secret_name(name)
        and (harmless(value) or all(harmless(word) for word in value.split(",")))
    )
