"""What this process knows: facts taken from configs and answers, never the objects themselves."""

from __future__ import annotations

import sys
import weakref
from typing import Any, NamedTuple

HISPARSE_CONNECTOR = "HiSparseConnector"


class Place(NamedTuple):
    """A line of someone's code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def place(frame: Any) -> Place:
    return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


class ConfigFacts(NamedTuple):
    hisparse: bool
    source: str | None = None
    model: str | None = None
    instance_id: str | None = None
    tensor_parallel_size: int | None = None
    data_parallel_size: int | None = None


def _get(holder: Any, *names: str) -> Any:
    for name in names:
        try:
            holder = getattr(holder, name, None)
        except Exception:
            return None
    return holder


def _hisparse_source(config: Any) -> str | None:
    if _get(config, "attention_config", "hisparse_config") is not None:
        return "attention_config"
    # vLLM 0.30+ infers the above from the connector; a fork may not.
    transfer = _get(config, "kv_transfer_config")
    names = [_get(transfer, "kv_connector")]
    extra = _get(transfer, "kv_connector_extra_config")
    if isinstance(extra, dict) and isinstance(extra.get("connectors"), (list, tuple)):
        names += [c.get("kv_connector") for c in extra["connectors"] if isinstance(c, dict)]
    return "connector" if HISPARSE_CONNECTOR in map(_text, names) else None


def _text(value: Any) -> str | None:
    return value if type(value) is str else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def read_config(config: Any) -> ConfigFacts:
    """What a vLLM config says, whatever of it there is."""
    source = _hisparse_source(config)
    return ConfigFacts(
        hisparse=source is not None,
        source=source,
        model=_text(_get(config, "model_config", "model")),
        instance_id=_text(_get(config, "instance_id")),
        tensor_parallel_size=_whole(_get(config, "parallel_config", "tensor_parallel_size")),
        data_parallel_size=_whole(_get(config, "parallel_config", "data_parallel_size")),
    )


class PerGroup:
    """A value per process group, held by weak reference; one for the process where a resolver
    is given none."""

    def __init__(self) -> None:
        self._of_process: Any = None
        # By id: process groups of vLLM's own are dataclasses, and those do not hash.
        self._of_group: dict[int, tuple[weakref.ref[Any], Any]] = {}

    def get(self, group: Any) -> Any:
        """The group's value, else the process's."""
        entry = self._of_group.get(id(group)) if group is not None else None
        if entry is not None and entry[0]() is group:
            return entry[1]
        return self._of_process

    def values(self) -> list[Any]:
        """Every value that is set, the process's included."""
        found = [value for _, value in list(self._of_group.values())]
        return [v for v in [*found, self._of_process] if v is not None]

    def set(self, group: Any, value: Any) -> None:
        # The dictionary, not self, so that the callback keeps nothing else alive.
        key, groups = id(group), self._of_group

        def forget(_: object) -> None:
            groups.pop(key, None)

        try:
            groups[key] = (weakref.ref(group, forget), value)
        except TypeError:
            # None, or something that cannot be referred to weakly.
            self._of_process = value


def size_and_rank(group: Any) -> tuple[int | None, int | None]:
    """(size, own rank) of a process group, without a collective; None where unknown."""
    if group is None:
        return None, None
    try:
        size, rank = _get(group, "world_size"), _get(group, "rank")
        if type(size) is int and type(rank) is int:
            return size, rank
        distributed = sys.modules["torch.distributed"]
        return distributed.get_world_size(group), distributed.get_rank(group)
    except Exception:
        return None, None


def rendezvous() -> str | None:
    """Where this world met: the same on all ranks of a server, over nodes too."""
    try:
        store = sys.modules["torch.distributed"].distributed_c10d._get_default_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        return f"tcp://{store.host}:{store.port}"
    except Exception:
        return None
