"""vLLM's own variables that matter here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from hisparse_guard.cli import installation
from hisparse_guard.cli.doctor.checks.way_in import is_ours
from hisparse_guard.cli.doctor.model import Facts, Finding
from hisparse_guard.cli.ray_variables import RAY_VARIABLES
from hisparse_guard.runtime.state import ENV_BACKEND

BACKENDS = ("auto", "trtllm", "mnnvl")
# vLLM's own but Ray's; any other value names a class.
EXECUTORS = ("mp", "uni", "external_launcher")


def changed_at_start(facts: Facts) -> Iterator[Finding]:
    """What a `sitecustomize` or a .pth file of the image has made of the variables."""
    names = sorted(
        name
        for name in {*facts.given, *facts.environment}
        if facts.given.get(name) != facts.environment.get(name)
    )
    if names:
        text = f"the start of this Python changes {', '.join(names)}: taken as it leaves them"
        yield Finding("note", "environment", text)
    before, after = (
        [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
        for env in (facts.given, facts.environment)
    )
    lost = [e for e in before if e not in after and is_ours(str(Path(e, installation.START)))]
    if lost:
        text = f"the start of this Python takes {lost[0]} from PYTHONPATH, so whether the "
        text += "processes that the server starts get the guard cannot be told"
        yield Finding("unknown", "environment", text)


def variables(facts: Facts) -> Iterator[Finding]:
    backend = facts.environment.get(ENV_BACKEND)
    if backend is not None and backend not in BACKENDS:
        text = f"{backend!r} is not valid: use one of {', '.join(BACKENDS)}"
        yield Finding("fix", ENV_BACKEND, text)
    elif backend == "mnnvl":
        text = "mnnvl overrides the guard, and races under HiSparse: unset it"
        yield Finding("fix" if facts.concerned else "note", ENV_BACKEND, text)
    elif backend is not None:
        yield Finding("ok", ENV_BACKEND, backend)
    for name in ("VLLM_ALLREDUCE_USE_FLASHINFER", "VLLM_USE_V2_MODEL_RUNNER"):
        value = facts.environment.get(name)
        if value is not None:
            yield from _switch(facts, name, value)


def _switch(facts: Facts, name: str, value: str) -> Iterator[Finding]:
    try:
        on = bool(int(value))
    except ValueError:
        text = f"{value[:40]!r} is not valid: vLLM reads a whole number, 0 or 1"
        yield Finding("fix", name, text)
        return
    if on:
        return
    if name == "VLLM_ALLREDUCE_USE_FLASHINFER":
        text = "0: no backend is resolved at start, and the fused all-reduce still makes a "
        text += "workspace on first use: only the guard's rule covers that"
        yield Finding("note", name, text)
    elif facts.concerned:
        yield Finding("note", name, "0: HiSparse needs the V2 model runner")


def ray(facts: Facts) -> Iterator[Finding]:
    """Ray's workers are started by its raylets, with their environment.

    vLLM's data-parallel path has actors started with variables that it copies by prefix, and these
    are not among them; its executor sets all it copies in workers that run already.
    """
    if not _uses_ray(facts):
        return
    text = "workers get PYTHONPATH from the raylet that starts them, and where and with what that "
    text += "was started (`ray start`, RAY_ADDRESS) cannot be told: start Ray with the guard on "
    text += "every node, and look at the server's log (`armed by`) or `hisparse-guard report`"
    yield Finding("unknown" if facts.concerned else "note", "ray", text)
    lost = [
        f"{name}={word}"
        for name, word in RAY_VARIABLES.items()
        if word not in facts.environment.get(name, "").split(",")
    ]
    if lost:
        text = f"so that Ray's actors get the guard, set {' and '.join(lost)}"
        yield Finding("note", "ray", text)


def _uses_ray(facts: Facts) -> bool:
    """Whether the server's command names Ray, or an executor or a file that may."""
    words = facts.started.words
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        option, equals, value = word.partition("=")
        value = value if equals else following
        if option.replace("_", "-") == "--distributed-executor-backend" and value not in EXECUTORS:
            return True
        if option == "--config":
            try:
                text = Path(facts.started.cwd or "", value).read_text(errors="replace")
            except OSError:
                return True
            if re.search(r"\bray\b", text, re.IGNORECASE):
                return True
    return "ray" in {word.rpartition("=")[2] for word in words}
