"""Evidence: one JSONL file a process, one write a line. Never raises, never blocks an answer."""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import sys
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from hisparse_guard.runtime import log

SCHEMA = 1

# Kinds of one thing that are told apart; a loop that makes ever new ones must not fill a disk.
_MOST_DISTINCT = 1000


def now() -> str:
    """RFC 3339, UTC, to the microsecond."""
    return datetime.now(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def ranks() -> tuple[int | None, int | None]:
    """This process's global rank and world size in torch.distributed; None before it is set up.

    Neither is a collective; torch is not imported for it.
    """
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
    except Exception:
        pass
    return None, None


class Evidence:
    """Writes the evidence of this process; does nothing without a folder."""

    def __init__(self, opening: Callable[[], list[tuple[str, dict[str, Any]]]]) -> None:
        """Args:
        opening: the events with which each life begins.
        """
        self._opening = opening
        self._counts: dict[tuple[str, str], list[Any]] = {}
        self._warned = False
        self.directory: str | None = None
        self.begin()

    def begin(self) -> None:
        """A life begins: the guard was armed here, or this is a forked child."""
        # One writer at a time, lest a life begins twice or in the middle. Another thread may have
        # held the parent's.
        self._lock = threading.RLock()
        self.pid = os.getpid()
        self._seq = 0
        self._counts.clear()
        self._warned = False
        self.start = now()

    def open(self) -> bool:
        """Writes the opening, unless this life has one; whether it was written just now."""
        with self._lock:
            if self.directory is None or self._seq > 0:
                return False
            for event, fields in self._opening():
                self._attempt(event, fields)
            return True

    def write(self, event: str, **fields: Any) -> None:
        with self._lock:
            if self.directory is not None:
                self.open()
                self._attempt(event, fields)

    def _attempt(self, event: str, fields: dict[str, Any]) -> None:
        try:
            self._line(event, fields)
        except Exception as error:
            self._warn(error)

    def write_once(self, event: str, key: str, **fields: Any) -> None:
        """Writes each distinct `key` once; later ones are counted, and told at every power
        of ten and at exit."""
        with self._lock:
            entry = self._counts.get((event, key))
            if entry is None:
                if len(self._counts) >= _MOST_DISTINCT:
                    return
                # count, count last written, fields
                self._counts[event, key] = [1, 1, fields]
                self.write(event, count=1, at_exit=False, **fields)
                return
            entry[0] += 1
            if entry[0] == entry[1] * 10:
                entry[1] = entry[0]
                self.write(event, count=entry[0], at_exit=False, **entry[2])

    def close(self) -> None:
        """At exit: the counts that were not written yet."""
        for (event, _), (count, written, fields) in list(self._counts.items()):
            if count != written:
                self.write(event, count=count, at_exit=True, **fields)

    def _line(self, event: str, fields: dict[str, Any]) -> None:
        assert self.directory is not None
        self._seq += 1
        rank, world_size = ranks()
        host = socket.gethostname()
        record = {
            "schema": SCHEMA,
            "ts": now(),
            "event": event,
            "host": host,
            "pid": self.pid,
            "rank": rank,
            "world_size": world_size,
            "start": self.start,
            "seq": self._seq,
            **fields,
        }
        text = json.dumps(record, separators=(",", ":"), default=log.shown) + "\n"
        _refuse_unsafe(self.directory)
        path = os.path.join(self.directory, f"hisparse-guard-{host}-{self.pid}.jsonl")
        # Opened for each line, which are few: nothing for a fork to share or to leak, and a
        # folder that comes back is written to again.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags | os.O_NONBLOCK, 0o644)
        try:
            data = text.encode("utf-8", "backslashreplace")
            if os.write(descriptor, data) != len(data):
                raise OSError(f"{path}: the line was cut short, is the disk full?")
        finally:
            os.close(descriptor)

    def _warn(self, error: Exception) -> None:
        if self._warned:
            return
        self._warned = True
        try:
            log.say(
                logging.WARNING,
                f"no evidence is written to HISPARSE_GUARD_EVIDENCE_DIR={self.directory}: {error}; "
                "the server is not affected",
            )
        except Exception:
            pass


def _refuse_unsafe(directory: str) -> None:
    """Raises OSError for a folder in which others could forge or redirect the evidence."""
    try:
        status = os.stat(directory)
    except FileNotFoundError:
        os.makedirs(directory, mode=0o755, exist_ok=True)
        status = os.stat(directory)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(f"{directory} is not a folder")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(
            f"{directory} may be written to by others (mode {stat.S_IMODE(status.st_mode):04o}): "
            "name a folder of the server's own in it, which the guard will create"
        )
    if status.st_uid not in (os.geteuid(), 0):
        raise PermissionError(f"{directory} belongs to another user (uid {status.st_uid})")
