"""Which vLLM this is, and whether the guard knows its way there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hisparse_guard.cli.doctor.model import Facts, Finding

# The two files that every release names the function in.
KNOWN_MAKERS = {
    "distributed/device_communicators/flashinfer_all_reduce.py",
    # Asks whether FlashInfer has the function, and does not call it.
    "compilation/passes/fusion/allreduce_rms_fusion.py",
}


def vllm(facts: Facts) -> Iterator[Finding]:
    found = facts.seen["vllm"]
    if not found or not found.get("folders"):
        where = ""
        if Path("vllm/__init__.py").is_file():
            where = "; the current folder has a vLLM source tree: put it on PYTHONPATH"
        why = f" ({found['error']})" if found and found.get("error") else ""
        yield Finding("fix", "vllm", f"no vLLM on this Python's path{why}{where}")
        return
    distribution = found.get("distribution")
    if distribution is None:
        kind = "no metadata (a source tree or a copied folder)"
    elif distribution["editable"]:
        kind = f"{distribution['name']} {distribution['version']}, an editable install"
    elif distribution["name"].lower() == "vllm":
        kind = f"{distribution['name']} {distribution['version']}"
    else:
        kind = f"{distribution['version']} under the name {distribution['name']}"
    if found["loader"] == "SourcelessFileLoader":
        kind += ", bytecode only"
    elif found["loader"] == "zipimporter":
        kind += ", in a zip"
    yield Finding("ok", "vllm", f"{kind}, in {found['folders'][0]}")


def build(facts: Facts) -> Iterator[Finding]:
    if facts.build is not None:
        level = "unknown" if facts.build.label == "unknown" else "ok"
        text = f"{facts.build.label}: {'; '.join(facts.build.reasons)}"
        yield Finding(level, "build class", text)  # type: ignore[arg-type]


def signs(facts: Facts) -> Iterator[Finding]:
    """What in the tree speaks against the build class, or could not be read."""
    if facts.build is None:
        return
    unreadable = facts.signs.unreadable
    if unreadable:
        yield Finding(
            "unknown",
            "signs",
            f"{len(unreadable)} of this vLLM's files cannot be read, so what is in them is not "
            f"known: {_first(unreadable)}; run doctor as the server's user",
        )
    if facts.build.label == "no-hisparse" and facts.signs.hisparse:
        yield Finding(
            "unknown",
            "signs",
            f"its config has no hisparse_config, yet HiSparse is named in "
            f"{_first(facts.signs.hisparse)}",
        )
    plugins = facts.plugin_signs
    if facts.build.label == "no-hisparse" and (plugins.hisparse or plugins.unreadable):
        yield Finding(
            "unknown",
            "signs",
            "a plugin that vLLM loads names HiSparse, or cannot be read: "
            f"{_first(plugins.hisparse or plugins.unreadable)}",
        )
    lost = [f"{p['name']} ({p['value']})" for p in facts.seen["plugins"] if not _has_code(p)]
    if lost:
        text = f"the code of a plugin that vLLM loads is not found: {_first(tuple(lost))}"
        yield Finding("unknown", "signs", text)
    if plugins.workspace:
        yield Finding(
            "unknown",
            "signs",
            f"a plugin that vLLM loads names FlashInfer's workspace: {_first(plugins.workspace)}",
        )
    named = facts.start_signs.hisparse + facts.start_signs.workspace
    if named:
        text = "what this Python's own start loads (a sitecustomize, a .pth file) names HiSparse, "
        text += f"or FlashInfer's workspace, and may change vLLM: {_first(named)}"
        yield Finding("unknown", "signs", text)
    if facts.build.label == "no-fi-allreduce" and facts.signs.workspace:
        yield Finding(
            "unknown",
            "signs",
            "FlashInfer's workspace is made elsewhere than the guard looks: "
            f"it is named in {_first(facts.signs.workspace)}",
        )
    if facts.concerned:
        others = tuple(sorted(set(facts.signs.workspace) - KNOWN_MAKERS))
        if others:
            yield Finding(
                "unknown",
                "signs",
                f"FlashInfer's workspace is also named in {_first(others)}: one made there may "
                "pass the guard by",
            )


def _has_code(plugin: Mapping[str, Any]) -> bool:
    return bool(plugin["own"] or any(plugin["folders"]))


def _first(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def patches(facts: Facts) -> Iterator[Finding]:
    """What the guard patches there: for builds in which it has something to do."""
    if facts.concerned:
        yield from facts.patches
