"""What `doctor` has found out, and what it says about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hisparse_guard.cli.doctor.callers import Call
from hisparse_guard.cli.doctor.jit_cache import JitCache
from hisparse_guard.cli.exit_codes import Exit
from hisparse_guard.cli.interpreter import Probe
from hisparse_guard.cli.launchers import Started
from hisparse_guard.runtime.settings import Settings
from hisparse_guard.runtime.telemetry.build_class import Build, Kernel

Level = Literal["ok", "note", "unknown", "fix"]
Advice = Literal["needed", "not needed", "not able", "cannot tell"]

HISPARSE_BUILDS = ("unguarded", "leaky", "fixed")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        level: ``ok``; ``note``, worth knowing; ``unknown``, cannot be told; ``fix``, to be mended.
            The last two make the exit code 1.
    """

    level: Level
    topic: str
    text: str


@dataclass(frozen=True)
class Signs:
    """What a whole tree was searched for.

    Attributes:
        hisparse: files that name HiSparse in any spelling, relative to the tree.
        workspace: files that name FlashInfer's function that makes the workspace.
        unreadable: what could not be read, with the reason.
    """

    hisparse: tuple[str, ...] = ()
    workspace: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """All that was read, before anything is said.

    Attributes:
        seen: what the interpreter said of itself.
        probe: whether the guard gets into it.
        signs, plugin_signs, start_signs: of vLLM's tree, of the plugins that it loads, and of what
            the image's own start loads.
        build, kernel: the labels; None where there is no vLLM, or no FlashInfer.
        jit_cache: the compiled kernels that FlashInfer loads, if any.
        patches: per patch of the runtime, its name and why it cannot be applied (None: it can).
        calls: calls that do not pass what init resolved; None where that was not looked
            for, or could not be told; why, in `calls_unread`.
        given: the environment that the command is started with. What the interpreter's own start
            makes of it is in `started`.
        obeys_variable: whether vLLM's own variable is set to trtllm and shown to be obeyed.
    """

    started: Started
    settings: Settings
    seen: Mapping[str, Any]
    probe: Probe
    folders: tuple[str, ...] = ()
    build: Build | None = None
    kernel: Kernel | None = None
    jit_cache: JitCache | None = None
    signs: Signs = field(default_factory=Signs)
    plugin_signs: Signs = field(default_factory=Signs)
    start_signs: Signs = field(default_factory=Signs)
    patches: tuple[Finding, ...] = ()
    calls: tuple[Call, ...] | None = None
    calls_unread: str | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    obeys_variable: bool = False

    @property
    def environment(self) -> Mapping[str, str]:
        return self.started.environment

    @property
    def concerned(self) -> bool:
        """Whether this vLLM has HiSparse and an all-reduce workspace that the guard knows."""
        return self.build is not None and self.build.label in HISPARSE_BUILDS

    @property
    def has_flashinfer(self) -> bool:
        return bool((self.seen.get("flashinfer") or {}).get("folders"))


@dataclass(frozen=True)
class Verdict:
    advice: Advice
    reason: str


@dataclass(frozen=True)
class Examination:
    """All that `doctor` says.

    Attributes:
        seen: what the interpreter itself said; None where it did not answer.
    """

    verdict: Verdict
    findings: tuple[Finding, ...]
    seen: Mapping[str, Any] | None = None

    @property
    def exit_code(self) -> int:
        bad = any(finding.level in ("fix", "unknown") for finding in self.findings)
        bad = bad or self.verdict.advice in ("not able", "cannot tell")
        return Exit.PROBLEM if bad else Exit.OK
