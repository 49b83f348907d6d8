"""What an environment is, and what the guard would do in it."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from hisparse_guard.cli import installation, interpreter, manifest
from hisparse_guard.cli.doctor.mirror import skips_under_full_graphs
from hisparse_guard.runtime import evidence
from hisparse_guard.runtime.settings import Settings, read_settings

Level = Literal["ok", "note", "fix"]
Advice = Literal["needed", "not needed", "not able"]

BACKEND = "VLLM_FLASHINFER_ALLREDUCE_BACKEND"
BACKENDS = ("auto", "trtllm", "mnnvl")
PLUGIN = "hisparse_guard"
# The kernel behind the trtllm workspace, as FlashInfer names its library.
KERNEL = "trtllm_comm"
OWN_MARK = b"HisparseGuardTripwire"
HISPARSE_BUILDS = ("unguarded", "leaky", "fixed")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        level: ``ok``; ``note``, worth knowing; ``fix``, which makes the exit code 1.
    """

    level: Level
    topic: str
    text: str

    def to_json(self) -> dict[str, str]:
        return {"level": self.level, "topic": self.topic, "text": self.text}


@dataclass
class Examination:
    """All that `doctor` says.

    Attributes:
        advice: whether the guard is needed here, and whether it can work.
        reason: the advice in one line.
        seen: what the interpreter itself said; None where it did not answer.
    """

    advice: Advice = "not able"
    reason: str = ""
    findings: list[Finding] = field(default_factory=list)
    seen: dict[str, Any] | None = None

    @property
    def exit_code(self) -> int:
        return int(any(finding.level == "fix" for finding in self.findings))

    def say(self, level: Level, topic: str, text: str) -> None:
        self.findings.append(Finding(level, topic, text))

    def to_json(self) -> dict[str, Any]:
        seen = dict(self.seen) if self.seen is not None else None
        if seen is not None and isinstance(seen.get("classified"), dict):
            seen["classified"] = {
                k: v for k, v in seen["classified"].items() if k != "mirror_source"
            }
        return {
            "schema": 1,
            "advice": self.advice,
            "reason": self.reason,
            "exit_code": self.exit_code,
            "findings": [finding.to_json() for finding in self.findings],
            "seen": seen,
        }


def examine(words: Sequence[str], environ: Mapping[str, str]) -> Examination:
    """Examines the Python that the command `words` starts, or this one without a command.

    Args:
        words: the command line of the server; empty for this interpreter.
        environ: the environment that it would be started in.
    """
    result = Examination()
    started = _started(result, words, environ)
    if started is None:
        return result
    environment = started.environment
    settings = _settings(result, environment)
    seen = _ask(started)
    if isinstance(seen, str):
        result.say("fix", "python", seen)
        _path_entries(result, environment)
        result.reason = seen
        return result
    result.seen = seen
    _python(result, started, seen)
    label = _vllm(result, seen, environment)
    way_in, blocked = _way_in(result, started, seen, environment)
    _path_entries(result, environment)
    _wrapt(result, seen)
    concerned = label in HISPARSE_BUILDS
    _flashinfer(result, seen, environment, wanted=concerned and settings.backend == "trtllm")
    _variables(result, environment, concerned)
    _ray(result, words, environment)
    if concerned:
        _mirror(result, seen)
    _advise(result, label, way_in, blocked, started, settings)
    return result


# The interpreter


def _without_run(
    words: Sequence[str], environ: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """`hisparse-guard run -- CMD` looks at CMD, in the environment that `run` would give it."""
    words, environment = interpreter.through_env(words, environ)
    if len(words) > 2 and Path(words[0]).name == "hisparse-guard" and words[1] == "run":
        rest = words[2:]
        while rest and rest[0] in ("--", "--check", "--no-check"):
            rest.pop(0)
        with contextlib.suppress(FileNotFoundError, ValueError):
            environment = installation.in_front(environment)
        return rest, environment
    return words, environment


def _started(
    result: Examination, words: Sequence[str], environ: Mapping[str, str]
) -> interpreter.Started | None:
    words, environment = _without_run(words, environ)
    if not words:
        return interpreter.Started(sys.executable, environment, sys.executable)
    started = interpreter.started_by(words, environment)
    if started is None:
        result.reason = f"{words[0]}: no such program on PATH"
    elif started.interpreter is None:
        result.reason = (
            f"{words[0]} is not a Python program, and which Python it starts cannot be told: "
            "give doctor the vLLM command itself"
        )
    else:
        return started
    result.say("fix", "command", result.reason)
    return None


def _ask(started: interpreter.Started) -> dict[str, Any] | str:
    """What the interpreter says of itself, or why it says nothing."""
    from importlib.resources import files

    source = files(__package__).joinpath("probe.py").read_text(encoding="utf-8")
    try:
        answer = interpreter.answer(interpreter.ask(started, source, _asker()), "classified")
    except (OSError, subprocess.TimeoutExpired):
        answer = None
    if answer is not None:
        return answer
    # The shorter question is asked in a syntax that any Python knows.
    reason = interpreter.probe(started).reason
    return reason or f"{started.interpreter} does not run a program given with -c"


def _asker() -> str:
    """The path entry that holds this very package."""
    import hisparse_guard

    archive = getattr(hisparse_guard.__loader__, "archive", None)
    return str(archive or Path(hisparse_guard.__file__).resolve().parent.parent)


def _python(result: Examination, started: interpreter.Started, seen: Mapping[str, Any]) -> None:
    options = f" with {' '.join(started.options)}" if started.options else ""
    text = f"{seen['implementation']} {seen['python']} at {started.interpreter}{options}"
    result.say("ok", "python", text)


# vLLM


def _vllm(
    result: Examination, seen: Mapping[str, Any], environment: Mapping[str, str]
) -> str | None:
    """Says which vLLM this is.

    Returns:
        Its build class, or None.
    """
    found = seen["vllm"]
    if not found or not found.get("folders"):
        where = ""
        if Path("vllm/__init__.py").is_file():
            where = "; the current folder has a vLLM source tree: put it on PYTHONPATH"
        why = f" ({found['error']})" if found and found.get("error") else ""
        result.say("fix", "vllm", f"no vLLM on this Python's path{why}{where}")
        return None
    distribution = found.get("distribution")
    folder = found["folders"][0]
    if distribution is None:
        kind = "no metadata (a source tree or a copied folder)"
    elif distribution["editable"]:
        kind = f"{distribution['name']} {distribution['version']}, an editable install"
    elif distribution["name"].lower() == "vllm":
        kind = f"{distribution['name']} {distribution['version']}"
    else:
        kind = f"{distribution['version']} under the name {distribution['name']}"
    if found["loader"] == "SourcelessFileLoader":
        kind += ", bytecode only"
    elif found["loader"] == "zipimporter":
        kind += ", in a zip"
    result.say("ok", "vllm", f"{kind}, in {folder}")
    classified = seen["classified"] or {}
    if "build" not in classified:
        result.say("fix", "build class", f"cannot be told: {classified.get('error')}")
        return None
    build = classified["build"]
    result.say("ok", "build class", f"{build['label']}: {'; '.join(build['reasons'])}")
    return str(build["label"])


def _mirror(result: Examination, seen: Mapping[str, Any]) -> None:
    classified = seen["classified"] or {}
    if classified.get("mirror") is None:
        return
    source = classified.get("mirror_source")
    skips = skips_under_full_graphs(source) if source is not None else None
    name = f"{classified['mirror']}.finish_kv_update"
    if skips:
        result.say(
            "note",
            "host mirror",
            f"{name} skips the host mirror under FULL CUDA graphs: a lead for crashes in the "
            "host-mirror path (vLLM #56699), which this guard does not touch",
        )
    elif skips is False:
        result.say("ok", "host mirror", f"{name} submits the host mirror under FULL graphs too")
    else:
        why = "there is no source" if source is None else "it is written in a way not known here"
        result.say(
            "note",
            "host mirror",
            f"whether {name} skips it under FULL graphs cannot be told: {why}",
        )


# How the guard gets in


def _way_in(
    result: Examination,
    started: interpreter.Started,
    seen: Mapping[str, Any],
    environment: Mapping[str, str],
) -> tuple[str | None, str | None]:
    """How the guard gets into this interpreter, and what blocks it where it was meant to."""
    on_path = [file for file in dict.fromkeys(seen["sitecustomizes"]) if file]
    ours = next((file for file in on_path if _is_ours(file)), None)
    entries = [e for e in environment.get("PYTHONPATH", "").split(os.pathsep) if e]
    given = next((e for e in entries if _is_ours(str(Path(e, installation.START)))), None)
    off = interpreter.switched_off(environment)
    plugin = any(p["name"] == PLUGIN for p in seen["plugins"])
    listed = environment.get("VLLM_PLUGINS")
    if plugin and listed is not None and PLUGIN not in listed.split(","):
        plugin = False
        result.say(
            "note",
            "VLLM_PLUGINS",
            f"{listed!r} leaves out {PLUGIN}: only sitecustomize arms the guard; add {PLUGIN}",
        )
    _sitecustomize(result, seen, on_path, ours, plugin or off)
    meant = ours or given or plugin
    if off or not meant:
        return None, None
    probe = interpreter.probe(started)
    if probe.reason is None and seen["planted"]:
        result.say("ok", "way in", "by sitecustomize" + (" and as a vLLM plugin" if plugin else ""))
        return "sitecustomize", None
    if plugin and probe.loads:
        # Needs neither PYTHONPATH nor site, where the package was installed.
        why = probe.reason or "no sitecustomize of the guard is on the path"
        result.say("note", "way in", f"by vLLM's plugin loading only, late but in time: {why}")
        return "vLLM's plugin loading", None
    reason = probe.reason or "nothing arms it: its sitecustomize does not run"
    result.say("fix", "way in", reason)
    return None, reason


def _sitecustomize(
    result: Examination,
    seen: Mapping[str, Any],
    on_path: Sequence[str],
    ours: str | None,
    harmless: bool,
) -> None:
    """Who provides `sitecustomize`, and what it shadows."""
    runs = seen["sitecustomize"]
    if seen["no_site"]:
        result.say("note", "sitecustomize", "none runs: this Python is started with -S")
        return
    if ours is None:
        first = on_path[0] if on_path else None
        text = f"{first} (the guard's would run it after itself)" if first else "none"
        result.say("ok", "sitecustomize", text)
        return
    before = list(on_path[: on_path.index(ours)])
    behind = list(on_path[on_path.index(ours) + 1 :])
    if seen["planted"]:
        text = f"the guard's, {ours}"
        if before:
            text += f"; {before[0]} is in front of it and hands on"
        if behind:
            text += f"; it shadows {', '.join(behind)}, and hands on"
        result.say("ok", "sitecustomize", text)
    elif before:
        result.say(
            "note" if harmless else "fix",
            "sitecustomize",
            f"{runs or before[0]} runs and does not hand on, so the guard's {ours} never does: "
            "put the guard's entry first on PYTHONPATH",
        )
    else:
        result.say(
            "note", "sitecustomize", f"the guard's, {ours}; it does not wait for vLLM's import"
        )


def _is_ours(file: str) -> bool:
    return OWN_MARK in _bytes_at(file)


def _bytes_at(file: str) -> bytes:
    path = Path(file)
    with contextlib.suppress(OSError):
        return path.read_bytes()
    for parent in path.parents:
        if parent.is_file():
            try:
                with zipfile.ZipFile(parent) as archive:
                    return archive.read(path.relative_to(parent).as_posix())
            except (OSError, KeyError, zipfile.BadZipFile):
                return b""
    return b""


def _path_entries(result: Examination, environment: Mapping[str, str]) -> None:
    """PYTHONPATH: entries that lead nowhere, or where others may put what every process runs."""
    value = environment.get("PYTHONPATH")
    if not value:
        result.say("ok", "PYTHONPATH", "not set")
        return
    wrong = len(result.findings)
    for entry in value.split(os.pathsep):
        if not entry:
            result.say(
                "fix",
                "PYTHONPATH",
                f"{value!r} has an empty entry, which is whatever folder a process starts in: "
                "take out the doubled, leading or trailing colon",
            )
            continue
        path = Path(entry)
        if not path.is_absolute():
            result.say(
                "fix",
                "PYTHONPATH",
                f"{entry} is relative: a child that starts in another folder loses it",
            )
        if not path.exists():
            result.say("fix", "PYTHONPATH", f"{entry} does not exist")
            continue
        if path.is_file() and not zipfile.is_zipfile(path):
            result.say(
                "fix",
                "PYTHONPATH",
                f"{entry} is neither a folder nor a whole zip: if it is a bundle, bundle it again",
            )
            continue
        _injected(result, path)
    if len(result.findings) == wrong:
        result.say("ok", "PYTHONPATH", value)


def _injected(result: Examination, entry: Path) -> None:
    """A folder or zip whose code runs in every process of the server."""
    for path in (entry, *(entry / name for name in ("sitecustomize.py", "hisparse_guard"))):
        if path.exists() and (who := may_be_altered(path)):
            result.say(
                "note" if who == "its group" else "fix",
                "PYTHONPATH",
                f"{path} may be written to by {who}: whoever can, runs code in every process of "
                f"the server; chmod go-w {path}",
            )
    if entry.is_dir() and not (entry / manifest.NAME).exists():
        return
    try:
        if manifest.read(entry) is None:
            return
        changed = manifest.differences(entry)
    except ValueError as error:
        result.say("fix", "bundle", str(error))
        return
    if changed:
        shown = "; ".join(changed[:5]) + (f"; {len(changed) - 5} more" if len(changed) > 5 else "")
        result.say("fix", "bundle", f"{entry} is not as it was bundled: {shown}; bundle it again")
    else:
        result.say("ok", "bundle", f"{entry} is as it was bundled")


def may_be_altered(path: Path) -> str | None:
    """Who besides its owner and root may write to `path`; None for nobody.

    Mode bits alone do not tell: a ConfigMap is mounted read-only with mode 0777, so writing is
    tried where the bits allow it.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    if status.st_mode & stat.S_IWOTH:
        who = "anyone"
    elif status.st_mode & stat.S_IWGRP:
        who = "its group"
    elif status.st_uid not in (0, os.geteuid()):
        who = f"its owner (uid {status.st_uid}), who is not the one running this"
    else:
        return None
    try:
        if path.is_dir():
            descriptor, name = tempfile.mkstemp(prefix=".hisparse-guard-", dir=path)
            os.close(descriptor)
            Path(name).unlink()
        else:
            os.close(os.open(path, os.O_WRONLY))
    except PermissionError:
        # Not by us, but the bits name others who may.
        return who
    except OSError:
        return None
    return who


def _wrapt(result: Examination, seen: Mapping[str, Any]) -> None:
    guard = seen["guard"]
    private = False
    if guard and guard.get("folders"):
        folder = guard["folders"][0]
        private = bool(
            Path(folder, "_vendored", "wrapt").is_dir()
            or _bytes_at(str(Path(folder, "_vendored", "wrapt", "__init__.py")))
        )
    found = seen["wrapt"]
    version = ((found or {}).get("distribution") or {}).get("version", "of an unknown version")
    image = f"the image's is {version}" if found and found.get("folders") else "the image has none"
    if private:
        result.say("ok", "wrapt", f"a private copy in the bundle; {image}")
    elif found and found.get("folders"):
        result.say("ok", "wrapt", f"{version}")
    else:
        result.say("note", "wrapt", "not installed here: use a bundle, which brings its own copy")


# FlashInfer and its kernel


def _flashinfer(
    result: Examination, seen: Mapping[str, Any], environment: Mapping[str, str], wanted: bool
) -> None:
    found = seen["flashinfer"]
    if not found or not found.get("folders"):
        result.say(
            "note", "flashinfer", "not on this Python's path: vLLM does without its all-reduce"
        )
        return
    version = (found.get("distribution") or {}).get("version")
    result.say("ok", "flashinfer", f"{version or 'version unknown'}, in {found['folders'][0]}")
    have, why = kernel(seen, environment)
    if have:
        result.say("ok", "kernel", why)
    else:
        result.say(
            "fix" if wanted else "note",
            "kernel",
            f"{KERNEL} cannot be had: {why}; without it the workspace fails and vLLM goes on "
            "without FlashInfer's all-reduce: install flashinfer-jit-cache of FlashInfer's own "
            "version, or carry a filled cache",
        )


def kernel(seen: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[bool, str]:
    """Whether FlashInfer can load or make the kernel of its trtllm workspace, and how.

    FlashInfer 0.6 and 0.7 look in the installed package, in flashinfer-jit-cache if its version
    is FlashInfer's own, in the cache under ``$FLASHINFER_WORKSPACE_BASE`` or the home folder,
    and then compile with nvcc, a C++ compiler and ninja.
    """
    package = Path(seen["flashinfer"]["folders"][0])
    version = (seen["flashinfer"].get("distribution") or {}).get("version")
    library = f"{KERNEL}/{KERNEL}.so"
    if (package / "data" / "aot" / library).is_file():
        return True, f"{KERNEL} is in the FlashInfer package"
    reasons = []
    cache = seen["jit_cache"]
    if cache and cache.get("folders"):
        its = (cache.get("distribution") or {}).get("version")
        folder = Path(cache["folders"][0])
        # Newer wheels are a shim with one package an architecture beside it.
        held = [
            place
            for home in folder.parent.glob(f"{folder.name}*")
            for place in (home / library, home / "jit_cache" / library)
            if place.is_file()
        ]
        if (
            version
            and its
            and its.partition("+")[0] != version
            and not environment.get("FLASHINFER_DISABLE_VERSION_CHECK")
        ):
            reasons.append(f"flashinfer-jit-cache {its} is not for FlashInfer {version}")
        elif held:
            return True, f"{KERNEL} is in flashinfer-jit-cache {its or ''}".rstrip()
        else:
            reasons.append(f"flashinfer-jit-cache {its or ''} holds no {KERNEL}")
    else:
        reasons.append("no flashinfer-jit-cache")
    base = environment.get("FLASHINFER_WORKSPACE_BASE") or environment.get("HOME") or "~"
    home = Path(base).expanduser() / ".cache" / "flashinfer"
    filled = sorted(home.glob(f"{version or '*'}/*/cached_ops/{library}"))
    if filled:
        return True, f"{KERNEL} is in the cache: {filled[0]} (for the architecture in its path)"
    reasons.append(f"none in {home}")
    nvcc = _nvcc(environment)
    path = environment.get("PATH", os.defpath)
    missing = [name for name, there in (
        ("nvcc", nvcc),
        ("a C++ compiler", shutil.which(environment.get("CXX") or "c++", path=path)),
        ("ninja", shutil.which("ninja", path=_with_own_scripts(path, seen))),
    ) if not there]  # fmt: skip
    if missing:
        *most, last = missing
        needs = f"{', '.join(most)} and {last}" if most else last
        reasons.append(f"to compile it, {needs} would be needed")
        return False, "; ".join(reasons)
    if not _can_make(home):
        reasons.append(f"to compile it, {home} would have to be writable")
        return False, "; ".join(reasons)
    return True, f"{KERNEL} will be compiled on first use, which takes minutes, with {nvcc}"


def _with_own_scripts(path: str, seen: Mapping[str, Any]) -> str:
    return path + os.pathsep + str(Path(seen["executable"] or "python").parent)


def _nvcc(environment: Mapping[str, str]) -> str | None:
    path = environment.get("PATH", os.defpath)
    given = environment.get("FLASHINFER_NVCC")
    if given:
        return shutil.which(given, path=path)
    home = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    if home:
        return shutil.which(str(Path(home) / "bin" / "nvcc"))
    return shutil.which("nvcc", path=path) or shutil.which("/usr/local/cuda/bin/nvcc")


def _can_make(folder: Path) -> bool:
    """Whether files can be made below `folder`, which need not exist yet. Tried, not guessed."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


# Variables


def _settings(result: Examination, environment: Mapping[str, str]) -> Settings:
    settings, problems = read_settings(environment)
    for problem in problems:
        result.say("fix", "settings", problem)
    if not problems:
        result.say(
            "ok",
            "settings",
            f"mode {settings.mode}, backend {settings.backend}, multinode {settings.multinode}, "
            f"evidence {'in ' + settings.evidence_dir if settings.evidence_dir else 'not written'}",
        )
    if settings.evidence_dir:
        folder = Path(settings.evidence_dir)
        if not folder.is_absolute():
            result.say(
                "fix",
                "evidence",
                f"{folder} is relative: a process that starts in another folder writes elsewhere",
            )
        if not folder.exists():
            if not _can_make(folder):
                result.say("fix", "evidence", f"{folder} does not exist and cannot be made")
        else:
            try:
                evidence._refuse_unsafe(settings.evidence_dir)
                if not _can_make(folder):
                    result.say("fix", "evidence", f"{folder} cannot be written to")
            except OSError as error:
                result.say("fix", "evidence", f"no evidence would be written: {error}")
    return settings


def _variables(result: Examination, environment: Mapping[str, str], concerned: bool) -> None:
    backend = environment.get(BACKEND)
    if backend is not None and backend not in BACKENDS:
        result.say("fix", BACKEND, f"{backend!r} is not valid: use one of {', '.join(BACKENDS)}")
    elif backend == "mnnvl":
        result.say(
            "fix" if concerned else "note",
            BACKEND,
            "mnnvl is obeyed by the guard, and races under HiSparse: unset it",
        )
    elif backend is not None:
        result.say("ok", BACKEND, backend)
    for name in ("VLLM_ALLREDUCE_USE_FLASHINFER", "VLLM_USE_V2_MODEL_RUNNER"):
        value = environment.get(name)
        if value is None:
            continue
        try:
            on = bool(int(value))
        except ValueError:
            result.say("fix", name, f"{value!r} is not valid: vLLM reads a whole number, 0 or 1")
            continue
        if name == "VLLM_ALLREDUCE_USE_FLASHINFER" and not on:
            result.say(
                "note",
                name,
                "0: no backend is resolved at start, and the fused all-reduce still makes a "
                "workspace on first use: only the guard's rule covers that",
            )
        elif name == "VLLM_USE_V2_MODEL_RUNNER" and not on and concerned:
            result.say("note", name, "0: HiSparse needs the V2 model runner")


def _ray(result: Examination, words: Sequence[str], environment: Mapping[str, str]) -> None:
    """vLLM's Ray data-parallel path copies variables by prefix, and these are not among them."""
    if "ray" not in {word.rpartition("=")[2] for word in words}:
        return
    copied = environment.get("VLLM_RAY_EXTRA_ENV_VARS_TO_COPY", "").split(",")
    prefixes = environment.get("VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY", "").split(",")
    lost = []
    if "PYTHONPATH" not in copied:
        lost.append("VLLM_RAY_EXTRA_ENV_VARS_TO_COPY=PYTHONPATH")
    if "HISPARSE_GUARD_" not in prefixes:
        lost.append("VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY=HISPARSE_GUARD_")
    if lost:
        result.say("note", "ray", f"so that Ray's actors get the guard, set {' and '.join(lost)}")


# The advice


def _advise(
    result: Examination,
    label: str | None,
    way_in: str | None,
    blocked: str | None,
    started: interpreter.Started,
    settings: Settings,
) -> None:
    if label is None:
        result.advice = "not able"
        result.reason = (
            "there is no vLLM here that can be read: give the server's own command, as in "
            "hisparse-guard doctor -- vllm serve …"
        )
        if blocked is not None:
            result.reason = f"there is no vLLM here that can be read, and {blocked}"
        return
    flashinfer = (result.seen or {}).get("flashinfer")
    nothing = {
        "no-hisparse": "this vLLM has no HiSparse",
        "no-fi-allreduce": "this vLLM has no FlashInfer all-reduce workspace",
    }.get(label)
    if nothing is None and not (flashinfer and flashinfer.get("folders")):
        nothing = "FlashInfer is not installed here, and no all-reduce workspace is made without it"
    if nothing is not None:
        result.advice = "not needed"
        # Where nothing is to be guarded, not getting in does no harm.
        result.findings = [
            Finding("note", one.topic, one.text)
            if one.level == "fix" and one.topic in ("way in", "sitecustomize")
            else one
            for one in result.findings
        ]
        result.reason = f"{nothing}; the guard would change nothing"
        return
    if started.environment.get(BACKEND) == "trtllm":
        result.advice = "not needed"
        result.reason = (
            f"{BACKEND}=trtllm is set, which vLLM obeys on one node; a group over nodes "
            "fails to start with it"
        )
        return
    why = {
        "unguarded": "this vLLM has HiSparse and no rule for it",
        "leaky": "this vLLM's rule for HiSparse is lost when the workspace is made late",
        "fixed": "this vLLM passes on what init resolved, but not where "
        "VLLM_ALLREDUCE_USE_FLASHINFER=0 leaves nothing resolved at init",
    }[label]
    if blocked is not None:
        result.advice = "not able"
        result.reason = f"{why}, and the guard does not get in: {blocked}"
        return
    result.advice = "needed"
    if settings.mode == "off":
        result.reason = f"{why}, and HISPARSE_GUARD_MODE=off keeps the guard out"
        result.say("fix", "mode", "off: nothing is guarded; unset HISPARSE_GUARD_MODE")
    elif way_in is None:
        result.reason = f"{why}, and the guard is not in"
        result.say("fix", "way in", f"not injected: {_to_inject(started)}")
    else:
        observe = "; it only observes" if settings.mode == "observe" else ""
        result.reason = f"{why}; the guard gets in by {way_in}{observe}"


def _to_inject(started: interpreter.Started) -> str:
    """How to get the guard into `started`: with this installation, where its Python can load it."""
    try:
        environment = installation.in_front(started.environment)
    except (FileNotFoundError, ValueError) as error:
        return str(error)
    reason = interpreter.probe(replace(started, environment=environment)).reason
    if reason is not None:
        return reason
    return (
        "start the server with `hisparse-guard run -- CMD`, or with "
        f"PYTHONPATH=$(hisparse-guard path){interpreter.BEHIND}, on every rank"
    )
