"""Downloads and installations: what is going on is shown, and a failure says what to do."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed

from tests.support.causes import DISK, NETWORK, cause

INDEX = "https://pypi.org/simple"

console = Console(stderr=True)


class Unavailable(RuntimeError):
    """An environment could not be downloaded or built; the text says what to do."""


@contextlib.contextmanager
def step(what: str) -> Iterator[Progress]:
    """Shows `what` while it is under way: a spinner and the time it has taken, or one line."""
    if not console.is_terminal:
        console.print(f"{what} …")
    columns = (SpinnerColumn(), TextColumn("{task.description}"), Elapsed())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        progress.add_task(what)
        yield progress


def run(what: str, *command: str | os.PathLike[str], env: dict[str, str] | None = None) -> None:
    """Runs a program that sets something up.

    Raises:
        Unavailable: it failed; one line with what to do, and its output's place.
    """
    # An environment under construction must not see the guard, nor this run's PYTHONPATH.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | (env or {})
    with step(what):
        done = subprocess.run(
            [os.fspath(c) for c in command],
            env=environment,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    if done.returncode:
        raise Unavailable(f"{what}: {cause(done.stdout)}")


@contextlib.contextmanager
def failures(what: str) -> Iterator[None]:
    """Turns a failed connection or a full disk into `Unavailable`."""
    try:
        yield
    except httpx.TransportError as error:
        raise Unavailable(f"{what}: {NETWORK} ({error})") from None
    except httpx.HTTPStatusError as error:
        status, url = error.response.status_code, error.request.url
        raise Unavailable(f"{what}: HTTP status {status} from {url}; run it again") from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise Unavailable(f"{what}: {DISK}") from None


@contextlib.contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """An empty folder to fill, which becomes `folder` when that went well."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    partial.rename(folder)


def sdist(project: str, version: str, target: Path) -> None:
    """Downloads a release's sdist from the index to `target`, going on where it was cut off.

    Raises:
        Unavailable: it is not there, or could not be downloaded whole.
    """
    what = f"{project} {version}"
    # The system's certificates: networks with a proxy of their own add theirs there.
    with failures(what), httpx.Client(verify=ssl.create_default_context(), timeout=60) as client:
        accept = {"Accept": "application/vnd.pypi.simple.v1+json"}
        listing = client.get(f"{INDEX}/{project}/", headers=accept, follow_redirects=True)
        name = f"{project}-{version}.tar.gz"
        found = [f for f in listing.raise_for_status().json()["files"] if f["filename"] == name]
        if not found:
            raise Unavailable(f"{what}: {INDEX} has no {name}")
        _download(client, found[0]["url"], found[0]["hashes"]["sha256"], what, target)


def _download(client: httpx.Client, url: str, sha256: str, what: str, target: Path) -> None:
    part = target.with_name(f".{target.name}.part")
    have = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    with client.stream("GET", url, headers=headers, follow_redirects=True) as answer:
        if answer.status_code == 416:
            # Nothing is left to be sent, so what is there is whole, or not this file.
            chunks: Iterator[bytes] = iter(())
        else:
            answer.raise_for_status()
            chunks = answer.iter_bytes()
        resumed = answer.status_code in (206, 416)
        left = int(answer.headers.get("Content-Length", 0)) if answer.status_code != 416 else 0
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        shown = Progress(*columns, console=console, disable=not console.is_terminal)
        if not console.is_terminal:
            console.print(f"{what}: {left / 1e6:.0f} MB …")
        with shown, part.open("ab" if resumed else "wb") as file:
            task = shown.add_task(what, total=left + have, completed=have if resumed else 0)
            for chunk in chunks:
                file.write(chunk)
                shown.advance(task, len(chunk))
    with part.open("rb") as file:
        whole = hashlib.sha256(file.read()).hexdigest() == sha256
    if not whole:
        part.unlink()
        raise Unavailable(f"{what}: a broken download from {url}; run the same command again")
    part.rename(target)
