"""What programs and tools see of a patched module is what they see without the guard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import harness
from tests.startup.sandbox import environment, hisparse_folder, python, zipped
from tests.support.bundles import bare, bundle, bundles
from tests.support.environments import vllm_release

__all__ = ["bare", "bundle", "bundles"]

RELEASES = ("0.30.0", "0.33.0")
NAMES = (
    "vllm.config.vllm",
    "vllm.config",
    "vllm.envs",
    "vllm.distributed.device_communicators.flashinfer_all_reduce",
)
SEE = (
    f"""
NAMES = {NAMES!r}
"""
    + """
import copy, hashlib, importlib, importlib.resources, inspect, json, os, pickle, pkgutil, sys
def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()
def seen(name):
    module = importlib.import_module(name)
    loader = module.__loader__
    functions = sorted(
        n for n, f in vars(module).items()
        if getattr(f, "__module__", None) == name and inspect.isroutine(f))
    file = os.path.basename(module.__file__)
    return {
        "loader": [type(loader).__module__, type(loader).__qualname__,
                   module.__spec__.loader is loader, loader.is_package(name)],
        "spec": [module.__spec__.name, module.__spec__.origin, module.__spec__.parent,
                 module.__spec__.has_location],
        "source": digest(inspect.getsource(module)),
        "functions": {n: digest(inspect.getsource(vars(module)[n])) for n in functions},
        "signatures": {n: str(inspect.signature(vars(module)[n])) for n in functions},
        "files": sorted(
            p.name for p in importlib.resources.files(name.rpartition(".")[0]).iterdir()),
        "data": digest(pkgutil.get_data(name, file).decode()),
        "pickled": {n: pickle.dumps(vars(module)[n]).hex()
                    if type(vars(module)[n]).__name__ == "function"
                    else pickle.dumps(vars(module)[n]) and "guarded" for n in functions},
        "same": all(
            pickle.loads(pickle.dumps(vars(module)[n])) is vars(module)[n]
            and copy.deepcopy(vars(module)[n]) is vars(module)[n] for n in functions),
        "again": importlib.reload(module) is module and module.__loader__ is not None
                 and type(module.__loader__) is type(loader),
    }
print("SEEN " + json.dumps({name: seen(name) for name in NAMES}))
"""
)


Seen = dict[str, dict[str, Any]]


def seen(stdout: str, stderr: str) -> Seen:
    (line,) = [x for x in stdout.splitlines() if x.startswith("SEEN ")]
    assert "hisparse-guard: " not in stderr, stderr
    found: Seen = json.loads(line[5:])
    return found


def is_as_without(alone: Seen, guarded: Seen) -> None:
    pickled = {
        f for module in guarded.values() for f, by in module["pickled"].items() if by == "guarded"
    }
    assert {"set_current_vllm_config", "_resolve_fi_ar_backend"} <= pickled, pickled
    for module in (*alone.values(), *guarded.values()):
        # A guarded function travels by its name, whatever the bytes; "same" tells of it.
        module["pickled"] = {f: b for f, b in module["pickled"].items() if f not in pickled}
        assert module["same"] and module["again"], module
    assert guarded == alone


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_stand_in(form: str, bundle: Path, bare: Path, tmp_path: Path) -> None:
    image = hisparse_folder(tmp_path / "image")
    image = zipped(image) if form == "zip" else image
    arms = [
        python(SEE, env=environment(path), interpreter=bare) for path in ([image], [bundle, image])
    ]
    is_as_without(*(seen(done.stdout, done.stderr) for done in arms))


@pytest.mark.slow
@pytest.mark.xdist_group("attributes on real releases")
@pytest.mark.parametrize("release", RELEASES)
def test_real_release(release: str, real: dict[str, dict[str, Any]]) -> None:
    arms = [real[f"{release} {arm}"] for arm in ("alone", "guarded")]
    is_as_without(*(seen(result["stdout"], result["stderr"]) for result in arms))


@pytest.fixture(scope="module")
def real(bundles: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """What is seen on each release, alone and guarded: forks of one process with torch."""
    jobs = []
    for release in RELEASES:
        tree = str(vllm_release(release))
        code = f"import sys\nsys.path.insert(0, {tree!r})\n{SEE}"
        for arm, path in (("alone", []), ("guarded", [str(bundles["zip"])])):
            jobs.append({"name": f"{release} {arm}", "path": path, "code": code})
    return harness.forks("vllm").run_all(jobs)
