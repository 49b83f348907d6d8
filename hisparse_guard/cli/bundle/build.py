"""What goes into a bundle, and the zip of it. Same input, same bytes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass

from hisparse_guard import __version__
from hisparse_guard.cli import installation, manifest

DIST_INFO = f"hisparse_guard-{__version__}.dist-info"
METADATA = f"Metadata-Version: 2.1\nName: hisparse-guard\nVersion: {__version__}\n"
# As in pyproject.toml: what makes vLLM load the guard where `sitecustomize` was shadowed.
ENTRY_POINTS = "[vllm.general_plugins]\nhisparse_guard = hisparse_guard:register\n"
VENDORED_INIT = (
    '"""Third-party code, as installed where this bundle was made; see each LICENSE."""\n'
)

# Run by the interpreter that is compiled for, in a process of its own: what else a process has
# compiled shows in the bytes that `marshal` writes.
COMPILER = """
import importlib.util, json, sys
if sys.version_info < (3, 10) or sys.implementation.name != "cpython":
    sys.exit("CPython 3.10 or later is needed, this is %s %s" % (
        sys.implementation.name, sys.version.split()[0]))
import marshal
out = {}
for name, source in json.load(sys.stdin):
    source = source.encode()
    code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    # Hash-based and unchecked (PEP 552): no time stamp, and no look at the source at start.
    head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little")
    out[name] = (head + importlib.util.source_hash(source) + marshal.dumps(code)).hex()
json.dump([sys.implementation.cache_tag, out], sys.stdout)
"""


class Unbundled(Exception):
    """A bundle cannot be made, with what to do about it."""


@dataclass(frozen=True)
class Contents:
    """What a bundle holds.

    Attributes:
        files: relative name to bytes, byte code not included.
        compiled: relative name of a source to its byte code.
        cache_tag: the interpreter of the byte code, as ``cpython-312``.
        wrapt: version of the private copy.
    """

    files: Mapping[str, bytes]
    compiled: Mapping[str, bytes]
    cache_tag: str
    wrapt: str

    def sealed(self, byte_code: Mapping[str, bytes]) -> dict[str, bytes]:
        """The files with `byte_code` and the manifest of both."""
        everything = {**self.files, **byte_code}
        listing = manifest.manifest(
            everything, version=__version__, wrapt=self.wrapt, byte_code=self.cache_tag
        )
        return {**everything, manifest.NAME: listing}


def contents(python: str | None = None) -> Contents:
    """Collects what this installation has.

    Args:
        python: interpreter to compile for; default: this one.

    Raises:
        Unbundled: a part is missing, or `python` cannot compile.
    """
    vendored = f"{installation.PACKAGE}/{installation.VENDORED}"
    try:
        wrapt, wrapt_files = installation.wrapt_files()
        files = {
            installation.START: installation.start_source(),
            f"{DIST_INFO}/METADATA": METADATA.encode(),
            f"{DIST_INFO}/entry_points.txt": ENTRY_POINTS.encode(),
            f"{DIST_INFO}/LICENSE": installation.license_text(),
            f"{vendored}/__init__.py": VENDORED_INIT.encode(),
            **dict(installation.package_files()),
            **{f"{vendored}/wrapt/{name}": data for name, data in wrapt_files},
        }
    except FileNotFoundError as error:
        raise Unbundled(str(error)) from error
    cache_tag, compiled = _compiled(python or sys.executable, files)
    return Contents(files, compiled, cache_tag, wrapt)


def _compiled(python: str, files: Mapping[str, bytes]) -> tuple[str, dict[str, bytes]]:
    sources = [[name, files[name].decode()] for name in sorted(files) if name.endswith(".py")]
    # The order of a set's elements in byte code hangs on the hash seed up to Python 3.10.
    environment = {"PATH": os.environ.get("PATH", ""), "PYTHONHASHSEED": "0"}
    try:
        done = subprocess.run(
            [python, "-S", "-s", "-c", COMPILER],
            input=json.dumps(sources),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise Unbundled(f"cannot compile with {python}: {error}") from error
    if done.returncode:
        # The last line of a traceback; what is no Python may repeat the program it was given.
        reason = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:200]
        raise Unbundled(f"cannot compile with {python}: {reason}")
    cache_tag, compiled = json.loads(done.stdout)
    return cache_tag, {name: bytes.fromhex(text) for name, text in compiled.items()}


def zipped(contents: Contents, *, small: bool) -> bytes:
    """The bundle as a zip; `small`: deflated, but for what runs in every process."""
    # Every entry costs each start of an interpreter about 4 µs, since Python reads the whole
    # directory: byte code only for what runs in every process.
    start = installation.START
    byte_code = {start + "c": contents.compiled[start]}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in sorted(contents.sealed(byte_code).items()):
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            # Stored, not deflated, what runs in every process: that spares it zlib.
            if small and not name.startswith("sitecustomize."):
                entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return buffer.getvalue()
