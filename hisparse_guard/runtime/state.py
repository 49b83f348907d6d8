"""What this process has seen, decided and pinned. No words, no files, no collectives."""

import os
import sys
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any

from hisparse_guard.runtime.config_facts import ConfigFacts, hisparse_source, read_config
from hisparse_guard.runtime.decision import NONE, TRTLLM, Decision, decide
from hisparse_guard.runtime.settings import Settings, read_settings

ENV_BACKEND = "VLLM_FLASHINFER_ALLREDUCE_BACKEND"


class ProcessState:
    """Facts about this process. HiSparse is one of them, and sticky: a draft model's config without
    it may be current when a resolver runs, and the workspace is shared."""

    def __init__(self) -> None:
        self.hisparse = False
        # None until they are read.
        self.settings: Settings | None = None
        self.configs: dict[ConfigFacts, None] = {}
        # Settings that are not valid, and what of this vLLM could not be patched.
        self.problems: list[str] = []
        # Where a config context was last left: code, line, and time on the monotonic clock in s.
        self.last_exit: tuple[CodeType, int, float] | None = None
        # Workspaces asked for in this process.
        self.creations = 0
        # vLLM's own question for the current config, from the patched module.
        self.ask_config: Callable[[], Any] = lambda: None
        self._last_config: Callable[[], Any] = lambda: None
        # By id: vLLM's own process groups are dataclasses, and those do not hash.
        self._by_group: dict[int, tuple[weakref.ref[Any], Decision]] = {}
        self._of_process: Decision | None = None

    def is_news(self, config: Any) -> bool:
        """Whether `config` may say something that is not noted yet. Asked at every context."""
        if config is self._last_config():
            # HiSparse may be switched on in a config that was seen before.
            return not self.hisparse and hisparse_source(config) is not None
        return config is not None

    def note_config(self, config: Any) -> bool:
        """Notes what `config` says; whether it is the first with HiSparse: the settings are read
        then."""
        facts = read_config(config)
        self.configs[facts] = None
        first = facts.hisparse and not self.hisparse and self.read_settings().mode != "off"
        self.hisparse = self.hisparse or first
        self._last_config = weakref.ref(config)
        return first

    def read_settings(self) -> Settings:
        """The settings: read when HiSparse is first seen or at the first decision, since Ray sets
        the environment late; then for good, since a workspace lives as long as the process."""
        if self.settings is None:
            self.settings, problems = read_settings(os.environ)
            self.problems += problems
        return self.settings

    def is_off(self) -> bool:
        """Whether the settings were read and say so."""
        return self.settings is not None and self.settings.mode == "off"

    def decide(self, answer: Any, group: Any) -> Decision:
        """What the resolver is to answer: from memory, and vLLM's own current config."""
        # The settings first: if a config cannot be read, the evidence is to say so.
        settings, last, config = self.read_settings(), self.last_decision(group), self.ask_config()
        if self.is_news(config):
            self.note_config(config)
        pin = last.pinned if last is not None else None
        decision = decide(answer, self.hisparse, config is not None, env_backend(), settings, pin)
        try:
            self._by_group[id(group)] = (weakref.ref(group), decision)
        except TypeError:
            # None, or a fork's `group_size`.
            self._of_process = decision
        return decision

    def last_decision(self, group: Any) -> Decision | None:
        """The group's last decision, else the process's."""
        entry = self._by_group.get(id(group))
        return entry[1] if entry is not None and entry[0]() is group else self._of_process

    def expected_backend(self, group: Any) -> str | None:
        """The backend that the group's workspace is to have; None where that is not known."""
        decision = self.last_decision(group)
        if decision is not None and decision.hisparse >= self.hisparse:
            return decision.target
        # Decided before HiSparse was seen, or not by the patched resolver.
        chosen = env_backend() if self.hisparse else None
        return TRTLLM if chosen == "auto" else chosen

    def is_settled(self, workspace: Any, group: Any) -> bool:
        """Whether what a getter gave out needs no further look."""
        if not self.hisparse or self.read_settings().mode == "observe":
            return True
        if workspace is None:
            # vLLM keeps a failure in mind, but would ask its collectives again for "no backend",
            # also where that was vLLM's own answer first.
            return self.expected_backend(group) != NONE
        return workspace_backend(workspace) == self.expected_backend(group)

    def chose_none(self, group: Any) -> bool:
        """Whether the guard decided that this group gets no FlashInfer all-reduce."""
        decision = self.last_decision(group)
        return decision is not None and decision.guard_chose_none()

    def may_choose_none(self) -> bool:
        """Whether compiled code must not rely on a workspace (for vLLM's compile cache)."""
        if not self.hisparse or self.read_settings().mode in ("observe", "off"):
            return False
        made = [self._of_process, *(decision for _, decision in list(self._by_group.values()))]
        chosen = [decision.guard_chose_none() for decision in made if decision is not None]
        # vLLM may compile before it resolves: then the answer is not known yet.
        return not chosen or any(chosen) or self.read_settings().backend == NONE


def workspace_backend(workspace: Any) -> str | None:
    """The backend that a FlashInfer workspace says it has; None for no workspace, or no word."""
    backend = getattr(workspace, "backend", None)
    return backend if type(backend) is str else None


def env_backend() -> str:
    """``VLLM_FLASHINFER_ALLREDUCE_BACKEND`` as vLLM reads it; ``auto`` when unset."""
    envs = sys.modules.get("vllm.envs")
    return str(getattr(envs, ENV_BACKEND, None) or os.environ.get(ENV_BACKEND, "auto"))


state = ProcessState()
