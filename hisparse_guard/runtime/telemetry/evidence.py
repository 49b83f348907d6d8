"""Evidence: one JSONL file a process, one write a line."""

import json
import os
import socket
import stat
from datetime import datetime, timezone

from hisparse_guard.runtime.telemetry.events import NAMES, SCHEMA, Envelope, Event, to_json
from hisparse_guard.runtime.telemetry.process_facts import global_rank


def now() -> str:
    """RFC 3339, UTC, in microseconds."""
    return datetime.now(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


class EvidenceFile:
    """The evidence of this process, in a folder that may be shared by processes and hosts."""

    def __init__(self) -> None:
        self.start = now()
        self.pid = os.getpid()
        self.seq = 0

    def write(self, directory: str, event: Event, count: int = 1, at_exit: bool = False) -> None:
        """Appends one line.

        Raises:
            OSError: it could not be written whole; its sequence number is used up.
        """
        self.seq += 1
        host = socket.gethostname()
        process = (host, self.pid, *global_rank(), self.start)
        envelope = Envelope(SCHEMA, now(), NAMES[type(event)], *process, self.seq, count, at_exit)
        record = {**envelope._asdict(), **to_json(event)}
        line = json.dumps(record, separators=(",", ":"), default=repr) + "\n"
        check_folder(directory)
        path = os.path.join(directory, f"hisparse-guard-{host}-{self.pid}.jsonl")
        # Opened for each line, which are few: nothing for a fork to share or to leak.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags | os.O_NONBLOCK, 0o644)
        try:
            data = line.encode("utf-8", "backslashreplace")
            if os.write(descriptor, data) != len(data):
                raise OSError(f"{path}: the line was cut short, is the disk full?")
        finally:
            os.close(descriptor)


def check_folder(directory: str) -> None:
    """Makes the folder where it is missing; raises OSError where others could forge evidence in
    it."""
    os.makedirs(directory, mode=0o755, exist_ok=True)
    status = os.stat(directory)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or status.st_uid not in (os.geteuid(), 0):
        raise PermissionError(
            f"{directory} may be written to by others (owner {status.st_uid}, mode "
            f"{stat.S_IMODE(status.st_mode):04o}); name a folder in it, which the guard will create"
        )
