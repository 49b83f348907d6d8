"""The known faults: data in `signals.toml` and `faults/*.toml`, checked when loaded.

To add one, write an entry and a test with realistic lines; no code is needed unless it
rests on something that no single line says (`DERIVED`, filled in by `life.Life`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Set
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.resources import files
from typing import Any

CERTAINTIES = ("proven", "likely", "unconfirmed")
BUILD_CLASSES = ("no-fi-allreduce", "no-hisparse", "unguarded", "leaky", "fixed")

# What no single line says, by name.
DERIVED = {
    "served": "the server was up: start-up complete, requests done or statistics logged",
    "in_startup": "the first trouble came before the server was up",
    "hang": "ranks or the engine waited until a time-out, or for a minute and more",
    "crash": "something ended a rank that is not a time-out",
    "waited_then_served": "workers did not answer for a minute before the server came up",
    "guard_part": "the guard was armed on some ranks of a group and not on others",
    "trtllm_in_use": "a trtllm workspace, by vLLM's word or the guard's",
    "slow_decode": "three statistics lines and more below 6 tokens/s a request without prefill",
    "corrupted": "vLLM counted requests with NaN logits",
    "trtllm_asked": "VLLM_FLASHINFER_ALLREDUCE_BACKEND=trtllm is in the log",
    "launch_blocking": "CUDA_LAUNCH_BLOCKING was on",
    "symptom_garbled": "the operator says that the output is garbled",
    "symptom_slow": "the operator says that it is slow",
    "symptom_hang": "the operator says that it hangs",
}


@dataclass(frozen=True)
class Signal:
    """Something that one line can say."""

    name: str
    words: tuple[str, ...]
    pattern: re.Pattern[str]
    fatal: bool
    ranks: bool
    engine: bool


@dataclass(frozen=True)
class When:
    """A combination of signals under which a fault is named, and how certain it then is."""

    certainty: str
    all: tuple[str, ...]
    any: tuple[str, ...]
    none: tuple[str, ...]
    proven: tuple[str, ...]
    likely: tuple[str, ...]
    effect: str

    def holds(self, present: Set[str]) -> bool:
        """True where everything asked for is present and nothing excluded is."""
        return (
            all(name in present for name in self.all)
            and (not self.any or any(name in present for name in self.any))
            and not any(name in present for name in self.none)
        )


@dataclass(frozen=True)
class Fault:
    """A known fault."""

    id: str
    order: int
    title: str
    family: str
    build_classes: tuple[str, ...]
    ranks: str
    meaning: str
    unproven: tuple[str, ...]
    next_steps: tuple[str, ...]
    evidence: tuple[str, ...]
    explains: tuple[str, ...]
    sources: tuple[str, ...]
    when: tuple[When, ...]


@dataclass(frozen=True)
class Catalogue:
    """All signals and faults, and the words of which every signal's line holds one."""

    signals: dict[str, Signal]
    faults: tuple[Fault, ...]
    words: tuple[bytes, ...]
    by_word: tuple[tuple[str, tuple[Signal, ...]], ...]

    def may_signal(self, raw: bytes) -> bool:
        """False where a line surely says nothing that is in the catalogue."""
        # A plain loop: this runs for every line near trouble, and storms have millions.
        for word in self.words:  # noqa: SIM110
            if word in raw:
                return True
        return False

    def said(self, text: str) -> list[Signal]:
        """The signals of a line, each once."""
        found: dict[str, Signal] = {}
        for word, signals in self.by_word:
            if word in text:
                for signal in signals:
                    if signal.name not in found and signal.pattern.search(text):
                        found[signal.name] = signal
        return list(found.values())


class CatalogueError(Exception):
    """An entry that is not well formed; the text says which and what is wrong."""


def _toml(file: Any) -> dict[str, Any]:
    try:
        reader = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ModuleNotFoundError:
        raise CatalogueError("triage on Python 3.10 needs tomli: pip install tomli") from None
    entry: dict[str, Any] = reader.loads(file.read_text(encoding="utf-8"))
    return entry


def _words(entry: dict[str, Any], key: str, where: str, needed: bool = False) -> tuple[str, ...]:
    value = entry.get(key, [])
    if not isinstance(value, list) or not all(isinstance(word, str) and word for word in value):
        raise CatalogueError(f"{where}: {key} must be a list of strings")
    if needed and not value:
        raise CatalogueError(f"{where}: {key} is missing")
    return tuple(value)


def _text(entry: dict[str, Any], key: str, where: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value.strip():
        raise CatalogueError(f"{where}: {key} is missing")
    return " ".join(value.split())


def _fault(entry: dict[str, Any], where: str, known: Set[str]) -> Fault:
    whens = []
    for number, clause in enumerate(entry.get("when", []), 1):
        place = f"{where}, when {number}"
        when = When(
            certainty=_text(clause, "certainty", place),
            all=_words(clause, "all", place),
            any=_words(clause, "any", place),
            none=_words(clause, "none", place),
            proven=_words(clause, "proven", place, needed=True),
            likely=_words(clause, "likely", place),
            effect=str(clause.get("effect", "fault")),
        )
        unknown = {*when.all, *when.any, *when.none} - known
        if unknown:
            raise CatalogueError(f"{place}: no such signal: {', '.join(sorted(unknown))}")
        if when.certainty not in CERTAINTIES or when.effect not in ("fault", "notice"):
            raise CatalogueError(f"{place}: certainty or effect is none of the allowed words")
        if not (when.all or when.any):
            raise CatalogueError(f"{place}: asks for nothing, so it would always hold")
        whens.append(when)
    if not whens:
        raise CatalogueError(f"{where}: no [[when]]")
    fault = Fault(
        id=_text(entry, "id", where),
        order=int(entry.get("order", 100)),
        title=_text(entry, "title", where),
        family=_text(entry, "family", where),
        build_classes=_words(entry, "build_classes", where, needed=True),
        ranks=_text(entry, "ranks", where),
        meaning=_text(entry, "meaning", where),
        unproven=_words(entry, "unproven", where),
        next_steps=_words(entry, "next_steps", where, needed=True),
        evidence=_words(entry, "evidence", where, needed=True),
        explains=_words(entry, "explains", where),
        sources=_words(entry, "sources", where, needed=True),
        when=tuple(whens),
    )
    unknown = set(fault.evidence) - known
    if unknown:
        raise CatalogueError(f"{where}: no such signal: {', '.join(sorted(unknown))}")
    if set(fault.build_classes) - set(BUILD_CLASSES):
        raise CatalogueError(f"{where}: no such build class")
    if not all(source.startswith("https://") for source in fault.sources):
        raise CatalogueError(f"{where}: a source is not an https address")
    return fault


@lru_cache(maxsize=1)
def load() -> Catalogue:
    """Reads the catalogue that ships with the package.

    Raises:
        CatalogueError: an entry is not well formed, or no TOML reader is installed.
    """
    folder = files(__package__)
    signals: dict[str, Signal] = {}
    for name, entry in _toml(folder / "signals.toml").items():
        if name in DERIVED:
            raise CatalogueError(f"signals.toml: {name} is a derived signal")
        signals[name] = Signal(
            name=name,
            words=_words(entry, "words", f"signals.toml, {name}", needed=True),
            pattern=re.compile(entry["pattern"]),
            fatal=bool(entry.get("fatal", False)),
            ranks=bool(entry.get("ranks", True)),
            engine=bool(entry.get("engine", False)),
        )
    known = {*signals, *DERIVED}
    faults = [
        _fault(_toml(file), file.name, known)
        for file in sorted((folder / "faults").iterdir(), key=lambda file: file.name)
        if file.name.endswith(".toml")
    ]
    ids = {fault.id for fault in faults}
    if len(ids) != len(faults):
        raise CatalogueError("faults: an id is there twice")
    for fault in faults:
        if set(fault.explains) - ids:
            raise CatalogueError(f"{fault.id}: explains a fault that is not there")
    by_word: dict[str, list[Signal]] = {}
    for signal in signals.values():
        for word in signal.words:
            by_word.setdefault(word, []).append(signal)
    words = {word.encode() for word in by_word}
    shortest = [word for word in words if not any(other in word for other in words - {word})]
    return Catalogue(
        signals,
        tuple(sorted(faults, key=lambda fault: fault.order)),
        tuple(sorted(shortest)),
        tuple((word, tuple(of)) for word, of in by_word.items()),
    )
