"""What goes into a bundle, and the three forms it is written in. Same input, same bytes."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hisparse_guard import __version__
from hisparse_guard.cli import installation, manifest

DIST_INFO = f"hisparse_guard-{__version__}.dist-info"
METADATA = f"Metadata-Version: 2.1\nName: hisparse-guard\nVersion: {__version__}\n"
# As in pyproject.toml: what makes vLLM load the guard where `sitecustomize` was shadowed.
ENTRY_POINTS = "[vllm.general_plugins]\nhisparse_guard = hisparse_guard:register\n"
VENDORED_INIT = (
    '"""Third-party code, as installed where this bundle was made; see each LICENSE."""\n'
)

# Kubernetes refuses a ConfigMap whose values are larger than this in all.
CONFIGMAP_LIMIT = 1024 * 1024
MOUNT = "/opt/hisparse-guard"

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
    try:
        wrapt, wrapt_files = installation.wrapt_files()
        files = {
            installation.START: installation.start_source(),
            f"{DIST_INFO}/METADATA": METADATA.encode(),
            f"{DIST_INFO}/entry_points.txt": ENTRY_POINTS.encode(),
            f"{DIST_INFO}/LICENSE": installation.license_text(),
            f"{installation.VENDORED}/__init__.py": VENDORED_INIT.encode(),
            **dict(installation.package_files()),
            **{f"{installation.VENDORED}/wrapt/{name}": data for name, data in wrapt_files},
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


def write_folder(contents: Contents, dest: Path) -> tuple[str, Path]:
    """Writes the bundle as a folder.

    Returns:
        The sha256 of its manifest, which holds those of all other files, and the manifest's path.
    """
    byte_code = {}
    for name, data in contents.compiled.items():
        folder, _, module = name.rpartition("/")
        cached = f"__pycache__/{module.removesuffix('.py')}.{contents.cache_tag}.pyc"
        byte_code[f"{folder}/{cached}" if folder else cached] = data
    everything = contents.sealed(byte_code)
    with tempfile.TemporaryDirectory(dir=dest.absolute().parent, prefix=f".{dest.name}.") as made:
        whole = Path(made) / dest.name
        for name, data in everything.items():
            file = whole / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        whole.rename(dest)
    return hashlib.sha256(everything[manifest.NAME]).hexdigest(), dest / manifest.NAME


def _zipped(contents: Contents, *, small: bool) -> bytes:
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


def write_zip(contents: Contents, dest: Path) -> tuple[str, Path]:
    """Writes the bundle as one zip; returns its sha256 and its path."""
    data = _zipped(contents, small=False)
    _write_whole(dest, data)
    return hashlib.sha256(data).hexdigest(), dest


def _write_whole(dest: Path, data: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=dest.absolute().parent, prefix=f".{dest.name}.") as made:
        whole = Path(made) / dest.name
        whole.write_bytes(data)
        whole.chmod(0o644)
        whole.rename(dest)


@dataclass(frozen=True)
class Patch:
    """What the patch that mounts the ConfigMap is for.

    Attributes:
        workload: ``KIND/NAME``.
        container: name of the container.
        command: its command, or its image's ENTRYPOINT.
        image_pythonpath: PYTHONPATH in the image, to set the variable by `env`; None to set it
            by a shell around the command.
    """

    workload: str
    container: str
    command: tuple[str, ...]
    image_pythonpath: str | None = None


API_VERSIONS = {
    "deployment": ("apps/v1", "Deployment"),
    "statefulset": ("apps/v1", "StatefulSet"),
    "daemonset": ("apps/v1", "DaemonSet"),
    "job": ("batch/v1", "Job"),
    "pod": ("v1", "Pod"),
}


def write_configmap(contents: Contents, dest: Path, patch: Patch) -> tuple[str, Path]:
    """Writes a folder with `configmap.yaml` and `patch.yaml`.

    The ConfigMap's name holds the digest of what is in it and it is immutable: Kubernetes would
    otherwise replace the zip under running processes, whose later imports then fail.

    Returns:
        The sha256 of the zip in the ConfigMap, and the zip's path in the container.

    Raises:
        Unbundled: larger than Kubernetes takes, or `patch` names an unknown kind of workload.
    """
    data = _zipped(contents, small=True)
    if len(data) > CONFIGMAP_LIMIT:
        raise Unbundled(
            f"{len(data)} bytes do not fit into a ConfigMap, which takes {CONFIGMAP_LIMIT}; "
            "use --format zip and a volume"
        )
    digest = hashlib.sha256(data).hexdigest()
    name, key = f"hisparse-guard-{digest[:12]}", f"hisparse-guard-{__version__}.zip"
    text = _patch(patch, name, f"{MOUNT}/{key}")
    config = f"""\
apiVersion: v1
kind: ConfigMap
metadata:
  name: {name}
  labels:
    app.kubernetes.io/name: hisparse-guard
    app.kubernetes.io/version: {json.dumps(__version__)}
  annotations:
    sha256: {digest}
immutable: true
binaryData:
  {key}: {base64.b64encode(data).decode()}
"""
    with tempfile.TemporaryDirectory(dir=dest.absolute().parent, prefix=f".{dest.name}.") as made:
        whole = Path(made) / dest.name
        whole.mkdir()
        (whole / "configmap.yaml").write_text(config)
        (whole / "patch.yaml").write_text(text)
        whole.rename(dest)
    return digest, Path(MOUNT) / key


def _patch(patch: Patch, configmap: str, entry: str) -> str:
    kind, slash, name = patch.workload.partition("/")
    if kind.lower() not in API_VERSIONS or not slash or not name:
        known = ", ".join(full for _, full in API_VERSIONS.values())
        raise Unbundled(
            f"workload {patch.workload!r} is not KIND/NAME with a KIND of {known}; for another "
            "kind (LeaderWorkerSet …) take the patch for a Pod and put it under the kind's own "
            "pod template"
        )
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", name):
        raise Unbundled(
            f"workload {patch.workload!r}: {name!r} is no name that Kubernetes takes (small "
            "letters, digits, '-' and '.')"
        )
    api_version, kind = API_VERSIONS[kind.lower()]
    if patch.image_pythonpath is None:
        if not patch.command:
            raise Unbundled("the container's command is empty; give the image's ENTRYPOINT")
        # A value in the pod's `env` replaces the image's PYTHONPATH, and Kubernetes' $(PYTHONPATH)
        # knows only what the pod itself sets: a shell in the container sees both.
        script = f'export PYTHONPATH="{entry}${{PYTHONPATH:+:$PYTHONPATH}}"; exec "$@"'
        words = ["/bin/sh", "-c", script, "hisparse-guard", *patch.command]
        how = "command: " + json.dumps(words)
    else:
        value = entry + (f":{patch.image_pythonpath}" if patch.image_pythonpath else "")
        how = f"env:\n- name: PYTHONPATH\n  value: {json.dumps(value)}"
    spec = f"""\
containers:
- name: {json.dumps(patch.container)}
{_indented(how, 2)}
  volumeMounts:
  - name: hisparse-guard
    mountPath: {MOUNT}
    readOnly: true
volumes:
- name: hisparse-guard
  configMap:
    name: {configmap}
    defaultMode: 292  # 0444
"""
    if kind in ("Job", "Pod"):
        apply = f"""\
# Kubernetes does not change a {kind} in place; with your manifest of it in {kind.lower()}.yaml:
# kubectl patch --local -f {kind.lower()}.yaml --patch-file patch.yaml -o yaml > guarded.yaml
# kubectl replace --force -f guarded.yaml
"""
    else:
        apply = f"# kubectl patch {kind.lower()} {name} --patch-file patch.yaml\n"
    # Without --server-side, kubectl keeps the whole object in an annotation too, which may not be
    # larger than 256 KiB.
    head = f"""\
# kubectl apply --server-side -f configmap.yaml
{apply}apiVersion: {api_version}
kind: {kind}
metadata:
  name: {json.dumps(name)}
spec:
"""
    if kind == "Pod":
        return head + _indented(spec, 2)
    return f"{head}  template:\n    spec:\n{_indented(spec, 6)}"


def _indented(text: str, by: int) -> str:
    return "".join(" " * by + line for line in text.splitlines(keepends=True))
