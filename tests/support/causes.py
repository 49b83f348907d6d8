"""What pip and uv print when they fail, in one line that says what to do. Standard library only."""

from __future__ import annotations

import re
import tempfile

AGAIN = "then run the same command again: what is complete is kept"
NETWORK = f"no connection; check the network, or HTTPS_PROXY and SSL_CERT_FILE, {AGAIN}"
DISK = (
    "the disk is full; free some space, or set XDG_CACHE_HOME to a larger disk if it is the "
    f"cache's, {AGAIN}"
)

CAUSES = (
    (r"No space left on device|os error 28|Disk quota exceeded|os error 122", DISK),
    (
        r"error sending request|dns error|Failed to establish a new connection|Name or service|"
        r"Connection (refused|reset|timed out|aborted)|Read timed out|Network is unreachable|"
        r"Cannot connect to proxy|tunnel error|CERTIFICATE_VERIFY_FAILED|invalid peer certificate|"
        r"IncompleteRead",
        NETWORK,
    ),
    (r"(?i)hash(es)? (do not match|mismatch)|corrupt", f"a broken download; {AGAIN}"),
    (r"requires a different Python|Requires-Python|does not satisfy Python", "another Python is "
     "needed: make PYTHON=python3.12 …"),
)  # fmt: skip


def cause(output: str) -> str:
    """What to do about a failure; of an unknown one its last line, and the file with all of it."""
    for pattern, advice in CAUSES:
        if re.search(pattern, output):
            return advice
    with tempfile.NamedTemporaryFile("w", prefix="hisparse-guard-setup-", delete=False) as log:
        log.write(output)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f"failed: {lines[-1] if lines else 'no output'} (all of it: {log.name})"
