"""The guard of this process: facts in, answers out, and only then words about them."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from hisparse_guard import __version__
from hisparse_guard.runtime import classify, log
from hisparse_guard.runtime.decision import MNNVL, NONE, TRTLLM, Decision, decide, understand
from hisparse_guard.runtime.evidence import Evidence, ranks
from hisparse_guard.runtime.facts import (
    ConfigFacts,
    PerGroup,
    Place,
    place,
    read_config,
    rendezvous,
    size_and_rank,
)
from hisparse_guard.runtime.log import shown
from hisparse_guard.runtime.settings import Settings, read_settings

ENV_BACKEND = "VLLM_FLASHINFER_ALLREDUCE_BACKEND"
_REPORTED_VARIABLES = (
    ENV_BACKEND,
    "VLLM_ALLREDUCE_USE_FLASHINFER",
    "VLLM_USE_V2_MODEL_RUNNER",
    "VLLM_PLUGINS",
    "CUDA_LAUNCH_BLOCKING",
)
_WRAPT = f"{os.sep}wrapt{os.sep}"
_OWN_FOLDER = os.path.dirname(__file__)


def told(function: Callable[..., None]) -> Callable[..., None]:
    """For what comes after an answer: it may fail, and then one line says so."""

    def protected(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except Exception as error:
            try:
                guard.problem(f"{function.__name__.strip('_')} failed", error)
            except Exception:
                # At the recursion limit not even that can be called.
                pass

    return protected


def attempt(what: str, function: Callable[..., Any], *args: Any, otherwise: Any = None) -> Any:
    """What `function` gives, or `otherwise` where it fails twice, with a line that says `what`.

    Twice: a passing failure (out of memory, say) must not make this rank answer otherwise than
    the others.
    """
    try:
        return function(*args)
    except Exception:
        try:
            return function(*args)
        except Exception as error:
            try:
                guard.problem(what, error)
            except Exception:
                pass
            return otherwise


class Guard:
    """All that this process knows and has decided."""

    def __init__(self) -> None:
        self.how = "sitecustomize"
        self.hisparse = False
        self.decided = PerGroup()
        self.left: tuple[Place, float] | None = None
        self.evidence = Evidence(self._opening)
        # Set by the hooks: vLLM's own way to the current config, and what is done
        # when the first HiSparse config is seen.
        self.current_config: Callable[[], Any] | None = None
        self.depth = 0
        self.made = 0
        self.on_hisparse: list[Callable[[], None]] = []
        self.on_settings: list[Callable[[], None]] = []
        self._settings: Settings | None = None
        self._seen: dict[ConfigFacts, None] = {}
        self._untold: list[ConfigFacts] = []
        # Key: text.
        self._held: dict[str, str] = {}
        self._armed_said = False
        self._build: classify.Build | None = None

    def begin(self, how: str) -> None:
        """A life begins: the guard was armed in this process, or it was forked."""
        self.how = how
        self.made = 0
        self._armed_said = False
        attempt("the evidence is not begun", self.evidence.begin)

    @told
    def end(self) -> None:
        """At exit: what was counted or held back until now."""
        self.evidence.close()
        log.flush(last=True)

    # What is known ---------------------------------------------------------------------

    def settings(self) -> Settings:
        """Read at the first decision, since Ray sets the environment late; then for good,
        since a workspace lives as long as the process."""
        if self._settings is None:
            settings, problems = read_settings(os.environ)
            self._settings = settings
            self.evidence.directory = settings.evidence_dir
            # Said later: this may be on the way to an answer.
            self._held.update(zip(problems, problems, strict=True))
            for react in self.on_settings:
                attempt("the hooks do not follow the settings", react)
        return self._settings

    def is_off(self) -> bool:
        """Whether the settings were read and say so."""
        return self._settings is not None and self._settings.mode == "off"

    def env_backend(self) -> str:
        envs = sys.modules.get("vllm.envs")
        try:
            return str(getattr(envs, ENV_BACKEND))
        except Exception:
            return os.environ.get(ENV_BACKEND, "auto")

    def config_is_current(self) -> bool:
        """Whether a config is current; its facts are noted on the way."""
        if self.current_config is None:
            return self.depth > 0
        unknown = object()
        config = attempt(
            "vLLM does not tell its current config", self.current_config, otherwise=unknown
        )
        if config is unknown:
            return self.depth > 0
        if config is not None:
            attempt("the current config was not noted", self.note_config, config)
        return config is not None

    def note_config(self, config: Any) -> None:
        facts = read_config(config)
        if facts.hisparse and self.settings().mode == "off":
            return
        # Sticky: a draft model's config without HiSparse may be current when a resolver
        # runs, and the workspace is shared.
        first = facts.hisparse and not self.hisparse
        self.hisparse = self.hisparse or facts.hisparse
        if first:
            for react in self.on_hisparse:
                attempt("the getters are not looked at", react)
        if facts not in self._seen:
            self._seen[facts] = None
            self._untold.append(facts)

    @told
    def note_left(self, frame: Any) -> None:
        self.left = (place(frame), time.monotonic())
        if self.hisparse and ranks()[0] is not None:
            self.say_armed()

    # The decision ----------------------------------------------------------------------

    def resolve(self, answer: Any, group: Any) -> Decision:
        """What the resolver is to answer; from memory alone, and without a word."""
        current = self.config_is_current()
        settings = self.settings()
        before = self.decided.get(group)
        decision = decide(
            answer,
            hisparse=self.hisparse,
            env_backend=self.env_backend() if self.hisparse else "auto",
            current=current,
            mode=settings.mode,
            target=settings.backend,
            multinode=settings.multinode,
            pin=before.pin if before is not None else None,
        )
        self.decided.set(group, decision)
        return decision

    def serves_none(self, group: Any) -> bool:
        """Whether it was decided that this group gets no FlashInfer all-reduce from us."""
        decision = self.decided.get(group)
        return decision is not None and is_none(decision)

    def may_serve_none(self) -> bool:
        """Whether compiled code must not rely on a workspace (for vLLM's compile cache)."""
        settings = self.settings()
        if not self.hisparse or settings.mode in ("observe", "off"):
            return False
        return settings.backend == NONE or any(is_none(d) for d in self.decided.values())

    def refuses(self, backend: Any) -> bool:
        known = type(backend) is str and backend == MNNVL
        return known and self.hisparse and self.settings().mode == "strict"

    # What is said about it -------------------------------------------------------------

    def problem(self, text: str, error: Exception | None = None) -> None:
        """Something wrong in the guard's own affairs: one line, held back until HiSparse is
        seen, since a server without it has nothing to fear and nothing to read. An error that
        comes up in several places is said in the first only."""
        try:
            key = text if error is None else shown(error)
            self._tell_problem(key, text if error is None else f"{text}: {key}")
        except Exception:
            pass

    def _tell_problem(self, key: str, text: str) -> None:
        if self.hisparse:
            log.say(logging.ERROR, text, once=key)
            self.evidence.write_once("error", key, message=text, detail=None)
        elif key not in self._held and len(self._held) < 100:
            self._held[key] = text
            log.say(logging.DEBUG, text)

    def build(self) -> classify.Build | None:
        if self._build is None:
            try:
                self._build = classify.classify(list(sys.modules["vllm"].__path__))
            except Exception as error:
                log.say(logging.DEBUG, f"build class unknown: {error!r}", once="build")
        return self._build

    def _opening(self) -> list[tuple[str, dict[str, Any]]]:
        """How each life's evidence begins; a forked child knows what its parent knew."""
        seen = [("config_seen", facts._asdict()) for facts in self._seen]
        return [("armed", self._armed_fields()), *seen]

    def _armed_fields(self) -> dict[str, Any]:
        build = self.build()
        return {
            "how": self.how,
            "guard_version": __version__,
            "vllm_version": _version("vllm"),
            "flashinfer_version": _version("flashinfer"),
            "python": sys.version.split()[0],
            "build_class": build.label if build is not None else None,
            "ppid": os.getppid(),
            "argv0": sys.argv[0] if getattr(sys, "argv", None) else None,
            "settings": self.settings()._asdict(),
            "environment": {name: os.environ.get(name) for name in _REPORTED_VARIABLES},
        }

    def say_armed(self) -> None:
        if self._armed_said:
            return
        self._armed_said = True
        settings, build, (rank, size) = self.settings(), self.build(), ranks()
        log.say(
            logging.INFO,
            f"armed by {self.how}: guard {__version__}, vLLM {_version('vllm')}, "
            f"FlashInfer {_version('flashinfer')}, build class "
            f"{build.label if build is not None else 'unknown'}, mode {settings.mode}, "
            f"backend {settings.backend}, rank {_of(rank, size)}",
        )

    @told
    def tell_configs(self) -> None:
        """About the configs noted since, and what was held back until HiSparse is seen."""
        if self._settings is None:
            # No decision yet and no HiSparse: the settings may still arrive.
            return
        untold, self._untold = self._untold, []
        if not self.evidence.open():
            for facts in untold:
                self.evidence.write("config_seen", **facts._asdict())
        if not self.hisparse:
            return
        held, self._held = self._held, {}
        for key, text in held.items():
            self._tell_problem(key, text)
        if ranks()[0] is not None:
            self.say_armed()

    @told
    def tell_resolved(self, answer: Any, decision: Decision, group: Any, frame: Any) -> None:
        self.tell_configs()
        settings = self.settings()
        current = decision.rule != "context-miss" and self.config_is_current()
        size, rank = size_and_rank(group)
        self.evidence.write_once(
            "resolved",
            shown((decision, current, id(group) if group is not None else None)),
            hisparse=self.hisparse,
            config_current=current,
            env_backend=self.env_backend(),
            mode=settings.mode,
            rule=decision.rule,
            vllm_answer=answer,
            answer=decision.answer,
            pinned=decision.pin,
            group_rank=rank,
            group_size=size,
            rendezvous=rendezvous(),
        )
        if not self.hisparse:
            return
        self.say_armed()
        word = understand(answer)
        alone = None if word is None else word.backend
        used = decision.backend
        if decision.rule == "unknown-shape":
            self.problem(
                f"vLLM's {classify.RESOLVER} answers in a shape that this guard does not know "
                f"({type(answer).__name__}): it goes through untouched; set {ENV_BACKEND}=trtllm "
                "to be safe"
            )
        elif decision.rule == "env" and self.env_backend() == MNNVL:
            log.say(
                logging.WARNING,
                f"{ENV_BACKEND}=mnnvl is set under HiSparse, and is obeyed: mnnvl races with "
                "HiSparse's fused all-reduce; unset it or set it to trtllm",
                once="env-mnnvl",
            )
        elif decision.rule == "multinode":
            log.say(
                logging.WARNING,
                f"vLLM says that trtllm cannot serve this group (it spans nodes, or on 0.30 and "
                f"0.31 the world does): {_what(decision.wanted)} by "
                f"HISPARSE_GUARD_MULTINODE={settings.multinode}"
                f"{' (observe: nothing is changed)' if settings.mode == 'observe' else ''}; "
                "none is safe and slower, keep leaves vLLM's mnnvl, which races under HiSparse",
                once="multinode",
            )
        elif decision.wanted == NONE and settings.backend == NONE:
            log.say(
                logging.INFO,
                f"no FlashInfer all-reduce under HiSparse, by HISPARSE_GUARD_BACKEND=none"
                f"{' (observe: nothing is changed)' if settings.mode == 'observe' else ''}: vLLM "
                "goes on with its other all-reduce",
                once="none",
            )
        if decision.conflict:
            self.problem(
                f"vLLM's fresh answer {answer!r} does not allow what was pinned before; "
                f"{_what(used)} from now on"
            )
        if not current:
            self._tell_miss(frame, alone, decision)

    def _tell_miss(self, frame: Any, alone: str | None, decision: Decision) -> None:
        stack = callers(frame)
        where = outside(stack, classify.ALL_REDUCE)
        left, ago = None, None
        if self.left is not None:
            left, ago = self.left[0], round(time.monotonic() - self.left[1], 3)
        self.evidence.write_once(
            "context_miss",
            repr(where),
            origin="resolver",
            where=where._asdict(),
            stack=[p._asdict() for p in stack],
            left_at=left._asdict() if left is not None else None,
            left_s=ago,
            vllm_alone=alone,
            used=decision.backend,
        )
        since = f"left {ago} s ago at {left}" if left is not None else "never entered here"
        observed = decision.wanted != decision.backend
        log.say(
            logging.WARNING if observed else logging.INFO,
            f"context miss at {where}: no vLLM config is current (the context was {since}); "
            f"vLLM alone: {alone or 'no backend'}; used: {_what(decision.backend)}"
            f"{f' (observe; the guard would use {_what(decision.wanted)})' if observed else ''}",
            once=f"miss {where}",
        )

    @told
    def tell_made(self, backend: Any, workspace: Any, group: Any, error: Any = None) -> None:
        size, rank = size_and_rank(group)
        state = "made" if workspace is not None else "failed"
        expected = self._expected(group)
        if backend is not None and type(backend) is not str:
            backend = shown(backend)
        backend = backend_of(workspace) or backend
        if error is not None and type(error) is not str:
            error = shown(error)
        self.evidence.write_once(
            "workspace",
            repr((state, backend, expected, error, size)),
            state=state,
            backend=backend,
            expected=expected,
            kind=None,
            group_rank=rank,
            group_size=size,
            error=error,
            hisparse=self.hisparse,
            serves=None if workspace is not None else "vLLM's other all-reduce (custom or NCCL)",
        )
        if workspace is None:
            return
        self.made += 1
        if self.hisparse and self.made > 1:
            # The getters may have stepped aside by now.
            log.say(
                logging.INFO
                if backend == expected
                else logging.WARNING
                if self.settings().mode == "observe"
                else logging.ERROR,
                f"workspace made again: backend={backend}, expected {expected}, "
                f"rank {_of(rank, size)}",
                once=f"again {backend} {expected} {id(group)}",
            )

    @told
    def tell_handed_out(self, kind: str, workspace: Any, group: Any) -> None:
        """About the workspace that a getter gave, seen under HiSparse."""
        self.say_armed()
        backend, expected = backend_of(workspace), self._expected(group)
        size, rank = size_and_rank(group)
        whose = f"{kind}, rank {_of(rank, size)}"
        safe = backend is not None and backend == expected and backend != MNNVL
        self.evidence.write_once(
            "workspace",
            repr((kind, backend, expected, id(group))),
            state="verified" if safe else "made" if workspace is not None else "failed",
            backend=backend,
            expected=expected,
            kind=kind,
            group_rank=rank,
            group_size=size,
            error=None,
            hisparse=True,
            serves=None if workspace is not None else "vLLM's other all-reduce (custom or NCCL)",
        )
        if safe:
            log.say(
                logging.INFO,
                f"workspace verified: backend={backend} ({whose})",
                once=f"verified {whose}",
            )
        elif workspace is None:
            log.say(
                logging.WARNING,
                f"no workspace: vLLM could not make one with backend={expected} ({whose}), and "
                "goes on with its other all-reduce; its own line above this one says why",
                once=f"failed {whose}",
            )
        elif self.settings().mode == "observe" or backend == expected:
            log.say(
                logging.WARNING,
                f"workspace at risk: backend={backend} under HiSparse ({whose}), as "
                f"{'observed' if backend != expected else 'told'}; set HISPARSE_GUARD_MODE=enforce "
                f"and leave {ENV_BACKEND} and HISPARSE_GUARD_MULTINODE unset to be safe",
                once=f"risk {whose}",
            )
        else:
            log.say(
                logging.ERROR,
                f"workspace NOT as pinned: backend={backend}, expected {expected} ({whose}); it "
                "was made before HiSparse was seen or by a path the guard does not know: "
                f"restart with {ENV_BACKEND}=trtllm and report this line",
                once=f"wrong {whose}",
            )

    @told
    def tell_trace(self, frame: Any) -> None:
        """A call site that asked for the current config and got none."""
        self.settings()
        stack = callers(frame)
        if not stack:
            return
        where = stack[-1]
        left, ago = None, None
        if self.left is not None:
            left, ago = self.left[0], round(time.monotonic() - self.left[1], 3)
        self.evidence.write_once(
            "context_miss",
            f"trace {where}",
            origin="trace",
            where=where._asdict(),
            stack=[p._asdict() for p in stack],
            left_at=left._asdict() if left is not None else None,
            left_s=ago,
            vllm_alone=None,
            used=None,
        )
        log.say(
            logging.INFO if self.hisparse else logging.DEBUG,
            f"trace: {where} asked for the vLLM config and there was none",
            once=f"trace {where}",
        )

    def as_expected(self, workspace: Any, group: Any) -> bool:
        backend = backend_of(workspace)
        return backend == self._expected(group) and backend is not None

    def _expected(self, group: Any) -> str | None:
        decision = self.decided.get(group)
        if self.hisparse and (decision is None or decision.rule == "no-hisparse"):
            # Decided before HiSparse was seen, or not by the resolver.
            chosen = self.env_backend()
            return TRTLLM if chosen == "auto" else chosen
        wanted: str | None = decision.wanted if decision is not None else None
        return wanted


def is_none(decision: Decision) -> bool:
    """Whether the guard, and not vLLM, decided for no FlashInfer all-reduce."""
    return decision.backend == NONE and decision.rule not in ("no-hisparse", "no-backend", "env")


def backend_of(workspace: Any) -> str | None:
    try:
        backend = getattr(workspace, "backend", None)
    except Exception:
        return None
    return backend if type(backend) is str else None


def callers(frame: Any, most: int = 40) -> list[Place]:
    """The stack from `frame` outward, innermost last, without the guard's own frames."""
    stack: list[Place] = []
    while frame is not None and len(stack) < most:
        found = place(frame)
        if not found.file.startswith(_OWN_FOLDER) and _WRAPT not in found.file:
            stack.append(found)
        frame = frame.f_back
    return stack[::-1]


def outside(stack: list[Place], module: str) -> Place:
    """The innermost place that is not in `module`: who asked."""
    own = module.replace(".", os.sep) + ".py"
    for found in reversed(stack):
        if not found.file.endswith(own):
            return found
    return stack[-1]


def _version(package: str) -> str | None:
    module = sys.modules.get(f"{package}.version") or sys.modules.get(package)
    try:
        found = object.__getattribute__(module, "__dict__").get("__version__")
        return found if isinstance(found, str) else None
    except Exception:
        return None


def _of(rank: int | None, size: int | None) -> str:
    return "unknown" if rank is None else f"{rank} of {size}"


def _what(backend: str | None) -> str:
    return "no FlashInfer all-reduce" if backend == NONE else str(backend)


guard = Guard()
