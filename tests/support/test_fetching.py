"""Downloads that break, against a server of this process."""

from __future__ import annotations

import errno
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import fetching

CONTENT = bytes(range(256)) * 4096


class Index(http.server.BaseHTTPRequestHandler):
    """An index with one file; `cut` is after how many bytes the connection is lost."""

    cut: int | None = None
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    ranges: list[str | None]

    def do_GET(self) -> None:
        if self.path.endswith("/"):
            url = f"http://127.0.0.1:{self.server.server_port}/file"
            file = {"filename": "thing-1.0.tar.gz", "url": url, "hashes": {"sha256": self.sha256}}
            self.answer(200, json.dumps({"files": [file]}).encode())
        else:
            asked = self.headers.get("Range")
            self.ranges.append(asked)
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
            self.answer(206 if asked else 200, CONTENT[start:], self.cut)

    def answer(self, status: int, body: bytes, cut: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:cut])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Index]]:
    handler = type("ThisIndex", (Index,), {"ranges": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,)).start()
    monkeypatch.setattr(fetching, "INDEX", f"http://127.0.0.1:{server.server_port}")
    yield handler
    server.shutdown()
    server.server_close()


def test_a_download_that_was_cut_off_goes_on(index: type[Index], tmp_path: Path) -> None:
    index.cut = 100_000
    with pytest.raises(fetching.Unavailable, match=r"thing 1\.0: no connection; check the network"):
        fetching.sdist("thing", "1.0", tmp_path / "file")
    index.cut = None
    fetching.sdist("thing", "1.0", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    first, second = index.ranges
    assert first is None and second is not None and second != "bytes=0-"


def test_a_broken_download_is_never_used(index: type[Index], tmp_path: Path) -> None:
    index.sha256 = "0" * 64
    with pytest.raises(fetching.Unavailable, match="a broken download from http"):
        fetching.sdist("thing", "1.0", tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fetching, "INDEX", "http://127.0.0.1:9")
    with pytest.raises(fetching.Unavailable, match="check the network, or HTTPS_PROXY"):
        fetching.sdist("thing", "1.0", tmp_path / "file")


def test_a_release_that_is_not_there(index: type[Index], tmp_path: Path) -> None:
    with pytest.raises(fetching.Unavailable, match=r"has no thing-2\.0\.tar\.gz"):
        fetching.sdist("thing", "2.0", tmp_path / "file")


def test_a_full_disk() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with (
        pytest.raises(fetching.Unavailable, match="set XDG_CACHE_HOME to a larger disk"),
        fetching.failures("thing"),
    ):
        raise full


@pytest.mark.parametrize(
    ("printed", "advice"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device", "the disk is full"),
        ("error: Failed to fetch: `https://…`\n  Caused by: dns error", "check the network"),
        ("failed to establish a new connection: Network is unreachable", "check the network"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES\nhash mismatch", "a broken download"),
        ("something else\nlast line", "failed: last line"),
    ],
)
def test_a_failed_installation_says_what_to_do(printed: str, advice: str) -> None:
    with pytest.raises(fetching.Unavailable, match=advice) as failed:
        fetching.run("thing", "sh", "-c", 'printf "%s\n" "$0"; exit 1', printed)
    assert "\n" not in str(failed.value)
