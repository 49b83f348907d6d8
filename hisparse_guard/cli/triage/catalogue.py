"""The known faults: data in `signals.toml`, `harmless.toml` and `faults/*.toml`, checked on load.

How to add one: docs/triage.md. No code is needed unless a fault rests on something that no
single line says (`DERIVED`, filled in by `derive.present`).
"""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import import_module
from importlib.resources import files
from typing import Any, Literal

import msgspec
import re2

from hisparse_guard.cli.logs.model import LEVELS
from hisparse_guard.cli.triage.model import Record
from hisparse_guard.runtime.telemetry.build_class import BuildClass

At = Literal["message", "exception", "frame"]
Kind = Literal["api", "engine", "worker", "main", "native", "system", "bare"]
Certainty = Literal["proven", "likely", "unconfirmed"]

# What no single line says, by name.
DERIVED = {
    "served": "the server answered before the first trouble, or there was no trouble",
    "in_startup": "the first trouble came before the server was up",
    "start_ends": "the log of a start ends in an error, and the server is never up in it",
    "hang": "ranks or the engine waited until a time-out, or stood still",
    "stands_still": "requests and no token, by the statistics, to the end of the log",
    "crash": "something ended a rank that is not a time-out",
    "engine_raised": "an exception ended the engine or a worker",
    "waited_then_served": "workers did not answer for a minute before the server came up",
    "guard_part": "the guard was armed on some ranks of a group and not on others",
    "hisparse_on": "HiSparse is on: by the configuration, its metrics or its code in a traceback",
    "nixl": "NIXL is configured or at work",
    "offloading": "OffloadingConnector is configured or at work",
    "mnnvl_in_force": "the last workspace before the first trouble is mnnvl, and none is trtllm",
    "trtllm_in_force": "the last workspace before the first trouble is trtllm",
    "workspaces_mixed": "mnnvl and trtllm workspaces, and neither is the last on all ranks",
    "served_on": "the same engine made tokens again well after the error",
    "hardware_before": "the driver logged a hardware Xid before the error",
    "slow_decode": "three statistics lines and more below 6 tokens/s a request without prefill",
    "shutdown_stuck": "it was told to stop, and went on for a minute and more or waited",
    "corrupted": "vLLM counted requests with NaN logits",
    "trtllm_asked": "VLLM_FLASHINFER_ALLREDUCE_BACKEND=trtllm is in the configuration",
    "launch_blocking": "CUDA_LAUNCH_BLOCKING was on",
    "kernel_waits": "the guard's evidence: FlashInfer's kernel class is `waits`",
    "symptom_garbled": "the operator says that the output is garbled",
    "symptom_slow": "the operator says that it is slow",
    "symptom_hang": "the operator says that it hangs",
}


class Says(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One way to say a signal, and who may say it so. The fields: signals.toml."""

    at: At
    who: tuple[Kind, ...]
    pattern: str
    word: str = ""
    level: str = ""
    source: tuple[str, ...] = ()
    why: str = ""
    own_traceback: bool = False

    def may(self, record: Record, fatal: bool = False) -> bool:
        """True where the record's process, level and source may say it."""
        if record.kind not in self.who:
            return False
        # vLLM's logger calls next to nothing fatal at INFO: a later line of what it quotes.
        lowest = self.level or ("WARNING" if fatal and record.source is not None else "DEBUG")
        if LEVELS.get(record.level or "ERROR", 0) < LEVELS[lowest]:
            return False
        if not self.source or record.source is None:
            return True
        return record.source.rpartition("/")[2].partition(":")[0] in self.source


class Signal(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Something that a line can say."""

    says: tuple[Says, ...]
    fatal: bool = False
    at_shutdown: bool = False


class When(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A combination of signals under which a fault is named, and how certain it then is.

    Attributes:
        order: signals of which each must come before the next for `proven`.
        contrary: signals that speak against it: with one of them it is never `proven`.
    """

    certainty: Certainty
    proven: tuple[str, ...]
    likely: tuple[str, ...] = ()
    all: tuple[str, ...] = ()
    any: tuple[str, ...] = ()
    none: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    contrary: tuple[str, ...] = ()
    effect: Literal["fault", "notice"] = "fault"

    def holds(self, present: set[str]) -> bool:
        """True where everything asked for is present and nothing excluded is."""
        return (
            present.issuperset(self.all)
            and (not self.any or not present.isdisjoint(self.any))
            and present.isdisjoint(self.none)
        )


class Fault(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A known fault. `generic`: named only where no other fault is."""

    id: str
    order: int
    title: str
    family: str
    ranks: str
    meaning: str
    next_steps: tuple[str, ...]
    evidence: tuple[str, ...]
    sources: tuple[str, ...]
    when: tuple[When, ...]
    build_classes: tuple[BuildClass, ...] = (
        "no-fi-allreduce", "no-hisparse", "unguarded", "leaky", "fixed",
    )  # fmt: skip
    unproven: tuple[str, ...] = ()
    explains: tuple[str, ...] = ()
    generic: bool = False


class CatalogueError(Exception):
    """An entry that is not well formed; the text says which and what is wrong."""


class Matcher:
    """All patterns for one place of a record (`at`), tried at once in linear time.

    Args:
        entries: name, how it is said, and whether it is fatal.
    """

    def __init__(self, entries: list[tuple[str, Says, bool]]) -> None:
        self.entries = entries
        self.set: Any = re2.Set.MatchSet()
        for _, says, _ in entries:
            self.set.Add(says.pattern)
        if entries:
            self.set.Compile()

    def match(self, text: str, record: Record) -> list[str]:
        """The names of what `text`, which stands in `record`, says."""
        if not self.entries:
            return []
        found: list[str] = []
        for index in self.set.Match(text) or ():
            name, says, fatal = self.entries[index]
            if name not in found and says.may(record, fatal):
                found.append(name)
        return found


class Catalogue:
    """All signals and faults, and the words that the log is searched for."""

    def __init__(
        self, signals: dict[str, Signal], faults: tuple[Fault, ...], harmless: tuple[Says, ...]
    ) -> None:
        self.signals, self.faults = signals, faults
        self.fatal = frozenset(name for name, signal in signals.items() if signal.fatal)
        self.matchers = {
            at: Matcher(
                [
                    (name, says, signal.fatal)
                    for name, signal in signals.items()
                    for says in signal.says
                    if says.at == at
                ]
            )
            for at in ("message", "exception", "frame")
        }
        self.harmless = Matcher([(says.why, says, False) for says in harmless])
        self.with_own_traceback = {says.why for says in harmless if says.own_traceback}

    def words(self, names: set[str] | None = None) -> set[str]:
        """The fixed strings of these signals (None: of all)."""
        return {
            says.word
            for name, signal in self.signals.items()
            if names is None or name in names
            for says in signal.says
        }


def _toml(file: Any) -> dict[str, Any]:
    try:
        reader = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ModuleNotFoundError:
        raise CatalogueError("triage on Python 3.10 needs tomli: pip install tomli") from None
    try:
        entry: dict[str, Any] = reader.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CatalogueError(f"{file.name}: {error}") from None
    return entry


def _read(file: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(_toml(file), kind)
    except msgspec.ValidationError as error:
        raise CatalogueError(f"{file.name}: {error}") from None


def _check_says(name: str, says: Says, with_word: bool) -> None:
    try:
        re2.compile(says.pattern)
    except re2.error as error:
        raise CatalogueError(f"{name}: pattern: {error}") from None
    if with_word and len(says.word) < 3:
        raise CatalogueError(f"{name}: word: a fixed string of three characters or more")
    if says.level and says.level not in LEVELS:
        raise CatalogueError(f"{name}: level: must be one of {', '.join(LEVELS)}")
    if not says.who:
        raise CatalogueError(f"{name}: who: nobody may say it")


def _check_fault(fault: Fault, known: set[str], ids: set[str]) -> None:
    where = f"faults/{fault.id}.toml"
    for when in fault.when:
        used = {*when.all, *when.any, *when.none, *when.order, *when.contrary}
        if used - known:
            raise CatalogueError(f"{where}: no such signal: {', '.join(sorted(used - known))}")
        if not (when.all or when.any):
            raise CatalogueError(f"{where}: a [[when]] asks for nothing, so it would always hold")
    if not fault.when:
        raise CatalogueError(f"{where}: no [[when]]")
    if set(fault.evidence) - known:
        missing = ", ".join(sorted(set(fault.evidence) - known))
        raise CatalogueError(f"{where}: evidence: no such signal: {missing}")
    if set(fault.explains) - ids:
        raise CatalogueError(f"{where}: explains a fault that is not there")
    if not fault.next_steps or not all(source.startswith("https://") for source in fault.sources):
        raise CatalogueError(f"{where}: next_steps is empty, or a source is not an https address")


@lru_cache(maxsize=1)
def load() -> Catalogue:
    """Reads the catalogue that ships with the package.

    Raises:
        CatalogueError: an entry is not well formed, or no TOML reader is installed.
    """
    return read(files(__package__))


def read(folder: Any) -> Catalogue:
    """Reads the catalogue in a folder.

    Raises:
        CatalogueError: an entry is not well formed, or no TOML reader is installed.
    """
    signals: dict[str, Signal] = _read(folder / "signals.toml", dict[str, Signal])
    harmless = _read(folder / "harmless.toml", dict[str, tuple[Says, ...]]).get("says", ())
    for name, signal in signals.items():
        if name in DERIVED:
            raise CatalogueError(f"signals.toml: {name} is a derived signal")
        for says in signal.says:
            _check_says(f"signals.toml, {name}", says, with_word=True)
    for says in harmless:
        _check_says("harmless.toml", says, with_word=False)
    found = sorted((folder / "faults").iterdir(), key=lambda file: str(file.name))
    by_name = {file.name: _read(file, Fault) for file in found if file.name.endswith(".toml")}
    faults = list(by_name.values())
    ids = {fault.id for fault in faults}
    for name, fault in by_name.items():
        if name != f"{fault.id}.toml":
            raise CatalogueError(f"faults/{name}: its id is {fault.id}")
        _check_fault(fault, {*signals, *DERIVED}, ids)
    return Catalogue(signals, tuple(sorted(faults, key=lambda fault: fault.order)), harmless)
