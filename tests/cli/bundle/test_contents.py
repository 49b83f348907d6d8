"""What is in a bundle: all that is needed, nothing else, and the same bytes each time."""

from __future__ import annotations

import ast
import base64
import configparser
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from hisparse_guard import __version__
from hisparse_guard.cli import installation, manifest
from hisparse_guard.cli.bundle import build, write
from hisparse_guard.cli.bundle.build import ENTRY_POINTS
from tests.startup.sandbox import ROOT, environment, hisparse_folder, python
from tests.support.bundles import bundled, hisparse_guard
from tests.support.environments import wrapt_path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def contents(bundle: Path) -> dict[str, bytes]:
    if bundle.is_dir():
        files = (f for f in bundle.rglob("*") if f.is_file())
        return {f.relative_to(bundle).as_posix(): f.read_bytes() for f in files}
    with zipfile.ZipFile(bundle) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_top_level_names(bundle: Path) -> None:
    tops = {name.partition("/")[0] for name in contents(bundle)}
    assert tops - {"__pycache__", "sitecustomize.pyc"} == {
        "sitecustomize.py",
        "hisparse_guard",
        f"hisparse_guard-{__version__}.dist-info",
    }


def test_pure_python_for_3_10(bundle: Path) -> None:
    sources = {n: b for n, b in contents(bundle).items() if n.endswith(".py")}
    assert len(sources) > 20
    for name, source in sources.items():
        ast.parse(source, name, feature_version=(3, 10))
    kinds = {Path(name).suffix for name in contents(bundle)}
    assert not kinds & {".so", ".pyd", ".dll", ".dylib", ".c"}


def test_byte_code_never_without_its_source(bundle: Path) -> None:
    # `site` swallows what goes wrong with a lone sitecustomize.pyc.
    names = contents(bundle)
    byte_code = [n for n in names if n.endswith(".pyc")]
    assert byte_code
    for name in byte_code:
        folder, _, file = name.replace("__pycache__/", "").rpartition("/")
        source = f"{folder}/{file.partition('.')[0]}.py".lstrip("/")
        assert source in names, name
        assert names[name][4:8] == b"\x01\0\0\0", "not hash-based and unchecked"


def test_wrapt_comes_with_its_licence_and_under_our_name(bundle: Path) -> None:
    names = contents(bundle)
    assert b"Graham Dumpleton" in names["hisparse_guard/_vendored/wrapt/LICENSE"]
    assert b"Apache License" in names[f"hisparse_guard-{__version__}.dist-info/LICENSE"]


WRAPPED = """
import sys
from hisparse_guard._vendored import wrapt
wrapped = wrapt.FunctionWrapper(abs, lambda f, instance, args, kwargs: -f(*args))
own = [m.rpartition(".")[2] for m in sys.modules if m.startswith("hisparse_guard._vendored.wrapt.")]
print(wrapt.__version__, wrapped(-3), *sorted(own))
"""


@pytest.mark.parametrize("version", ["1.14.1", "1.17.3", "2.0.1", "2.5.2"])
def test_of_any_wrapt_only_what_the_wrappers_need(version: str, tmp_path: Path) -> None:
    path = os.pathsep.join([str(wrapt_path(version)), str(ROOT)])
    done = hisparse_guard("bundle", tmp_path / "guard", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    done = python(WRAPPED, [tmp_path / "guard"])
    modules = ("exceptions", "wrappers") if version == "2.5.2" else ("wrappers",)
    assert done.stdout.split() == [version, "-3", *modules], done.stderr


def test_plugin_metadata_is_the_projects() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    parser = configparser.ConfigParser()
    parser.read_string(ENTRY_POINTS)
    found = {section: dict(parser[section]) for section in parser.sections()}
    assert found == project["entry-points"]


@pytest.mark.parametrize("form", ["dir", "zip", "configmap"])
def test_same_bytes_twice(form: str, tmp_path: Path) -> None:
    first, second = tmp_path / "a b", tmp_path / "somewhere" / "else"
    second.parent.mkdir()
    told = [
        hisparse_guard("bundle", first, "--format", form, PYTHONHASHSEED="1"),
        hisparse_guard("bundle", second, "--format", form, PYTHONHASHSEED="2", TZ="Asia/Tokyo"),
    ]
    assert [d.returncode for d in told] == [0, 0], told
    assert told[0].stdout.split()[0] == told[1].stdout.split()[0]
    if form != "dir":
        assert first.read_bytes() == second.read_bytes()
    else:
        assert contents(first) == contents(second)


def test_same_bytes_from_a_wheel_and_from_a_bundle(
    installed: Path, bundles: dict[str, Path], tmp_path: Path
) -> None:
    for number, entry in enumerate([installed, *bundles.values()]):
        dest = tmp_path / f"{number}.zip"
        done = hisparse_guard("bundle", dest, entry=entry)
        assert done.returncode == 0, done
        assert dest.read_bytes() == bundles["zip"].read_bytes(), entry


def test_printed_sum_is_the_files(tmp_path: Path) -> None:
    done = hisparse_guard("bundle", tmp_path / "guard.zip")
    check = subprocess.run(
        ["sha256sum", "--check", "-"],
        input=done.stdout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0, check
    done = hisparse_guard("bundle", tmp_path / "guard")
    digest, name = done.stdout.split(maxsplit=1)
    assert name.strip() == str(tmp_path / "guard" / manifest.NAME)
    assert digest == hashlib.sha256(Path(name.strip()).read_bytes()).hexdigest()


def test_manifest_names_every_file(bundle: Path) -> None:
    listed = json.loads(contents(bundle)[manifest.NAME])
    assert listed["files"].keys() == contents(bundle).keys() - {manifest.NAME}
    assert (listed["version"], listed["schema"]) == (__version__, 1)
    assert manifest.differences(bundle) == []


def rezipped(bundle: Path, dest: Path, change: dict[str, bytes | None]) -> Path:
    with zipfile.ZipFile(dest, "w") as out:
        for name, data in {**contents(bundle), **change}.items():
            if data is not None:
                out.writestr(name, data)
    return dest


CHANGES: list[tuple[dict[str, bytes | None], str]] = [
    ({"sitecustomize.py": b"import evil"}, "altered: sitecustomize.py"),
    ({"sitecustomize.pyc": b"evil"}, "altered: sitecustomize.pyc"),
    ({"hisparse_guard/runtime/settings.py": None}, "missing: hisparse_guard/runtime/settings.py"),
    ({"hisparse_guard/evil.py": b""}, "not from the bundle: hisparse_guard/evil.py"),
    ({"evil.py": b""}, "not from the bundle: evil.py"),
]


@pytest.mark.parametrize(("change", "line"), CHANGES, ids=lambda c: str(c)[:40])
def test_an_altered_zip_is_told(
    change: dict[str, bytes | None], line: str, bundles: dict[str, Path], tmp_path: Path
) -> None:
    altered = rezipped(bundles["zip"], tmp_path / "altered.zip", change)
    assert manifest.differences(altered) == [line]


def test_an_altered_folder_is_told(tmp_path: Path) -> None:
    folder = bundled(tmp_path / "guard")
    cached = f"__pycache__/sitecustomize.{sys.implementation.cache_tag}.pyc"
    (folder / cached).write_bytes(b"evil")
    (folder / "sitecustomize").mkdir()
    (folder / "sitecustomize/__init__.py").write_text("evil")
    (folder / "hisparse_guard/runtime/settings.py").unlink()
    assert manifest.differences(folder) == [
        f"altered: {cached}",
        "missing: hisparse_guard/runtime/settings.py",
        "not from the bundle: sitecustomize/__init__.py",
    ]


def test_byte_code_that_python_wrote_is_compared_with_its_source(tmp_path: Path) -> None:
    folder = bundled(tmp_path / "guard")
    # -O: byte code of its own, which the bundle does not bring.
    code = "import hisparse_guard.runtime.settings"
    done = python(code, options=["-O"], env={"PYTHONPATH": str(folder)})
    assert done.returncode == 0, done
    written = [
        *folder.glob("hisparse_guard/runtime/__pycache__/settings.*.opt-1.pyc"),
        *folder.glob("__pycache__/sitecustomize.*.opt-1.pyc"),
    ]
    assert len(written) == 2
    assert manifest.differences(folder) == []
    evil = compile("print('evil')", "settings.py", "exec")
    import marshal

    written[0].write_bytes(written[0].read_bytes()[:16] + marshal.dumps(evil))
    name = written[0].relative_to(folder).as_posix()
    assert manifest.differences(folder) == [f"not from the bundle: {name}"]


def test_what_is_no_bundle_says_so(tmp_path: Path) -> None:
    (tmp_path / "no.zip").write_bytes(b"no zip")
    for entry in (tmp_path, tmp_path / "no.zip", tmp_path / "missing"):
        with pytest.raises(ValueError, match=str(entry)):
            manifest.differences(entry)
    assert manifest.read(ROOT) is None


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["{tmp}"], "exists"),
        (["{tmp}/no/such/folder"], "is not a folder"),
        (["{tmp}/x", "--format", "tar"], "tar"),
        (["{tmp}/x", "--python", "/no/such/python"], "cannot compile with /no/such/python"),
        (["{tmp}/x", "--python", "{tmp}/old"], "CPython 3.10 or later"),
        (["{tmp}/a:b"], "cannot stand on PYTHONPATH"),
        (["{tmp}/a\nb"], r"a\nb holds what cannot be printed"),
        (["{tmp}/a\x1b[31m", "--format", "configmap"], "holds what cannot be printed"),
        (["{tmp}/a\udcff", "--format", "zip"], "holds what cannot be printed"),
        (["{tmp}/" + "x" * 300], "too long"),
        ([], "DEST"),
    ],
)
def test_wrong_usage_is_one_line_and_leaves_nothing(
    words: list[str], reason: str, tmp_path: Path
) -> None:
    old = tmp_path / "old"
    # Python 3.9 as far as its compiler program can see.
    shim = "import sys; sys.version_info = (3, 9); exec(sys.argv[-1])"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{shim}" "$@"\n')
    old.chmod(0o755)
    done = hisparse_guard("bundle", *(w.format(tmp=tmp_path) for w in words))
    assert (done.returncode, done.stdout) == (2, ""), done
    assert len(done.stderr.splitlines()) == 1
    assert reason in done.stderr
    assert os.listdir(tmp_path) == ["old"]


def bundled_after(command: str, dest: Path, form: str) -> subprocess.CompletedProcess[str]:
    """`hisparse-guard bundle` in a shell that has run `command`."""
    words = [sys.executable, "-m", "hisparse_guard", "bundle", dest, "--format", form]
    return subprocess.run(
        ["sh", "-c", f'{command}; exec "$@"', "sh", *words],
        env=environment([ROOT]),
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("form", ["dir", "zip", "configmap"])
def test_a_full_disk_is_one_line_and_leaves_nothing(form: str, tmp_path: Path) -> None:
    # In blocks of 512 bytes.
    done = bundled_after("ulimit -f 20", tmp_path / "x", form)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert len(done.stderr.splitlines()) == 1
    assert os.listdir(tmp_path) == []


def test_without_wrapt_says_what_to_do(bare: Path, tmp_path: Path) -> None:
    import typer

    site = Path(typer.__file__).parents[1]
    without = tmp_path / "without"
    without.mkdir()
    for entry in site.iterdir():
        if not entry.name.startswith(("wrapt", "_", "hisparse", "sitecustomize")):
            (without / entry.name).symlink_to(entry)
    done = python(
        f"import sys; sys.argv = ['x', 'bundle', '{tmp_path}/guard']\n"
        "import runpy; runpy.run_module('hisparse_guard', run_name='__main__')",
        [ROOT, without],
        interpreter=bare,
    )
    assert done.returncode == 2, done
    assert "pip install wrapt" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_wheel_has_no_top_level_sitecustomize(wheel: Path, installed: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"hisparse_guard", f"hisparse_guard-{__version__}.dist-info"}
    assert "hisparse_guard/inject/sitecustomize.py" in names
    assert not (installed / "sitecustomize.py").exists()


def test_path(bundle: Path, installed: Path) -> None:
    for entry, want in (
        (bundle, bundle),
        (installed, installed / "hisparse_guard" / "inject"),
        (ROOT, ROOT),
    ):
        done = hisparse_guard("path", entry=entry)
        assert (done.stdout, done.stderr) == (f"{want}\n", ""), done


def test_an_installed_wheel_guards(installed: Path, tmp_path: Path) -> None:
    image = hisparse_folder(tmp_path / "image")
    import wrapt

    entry = hisparse_guard("path", entry=installed).stdout.strip()
    code = "import vllm.config; print(vllm.config.vllm.set_current_vllm_config.__hisparse_guard__)"
    done = python(code, [entry, image, installed, Path(wrapt.__file__).parents[1]])
    assert (done.stdout, done.stderr) == ("True\n", ""), done


@pytest.mark.parametrize("form", ["dir", "zip", "configmap"])
def test_readable_by_all_whatever_the_umask(form: str, tmp_path: Path) -> None:
    done = bundled_after("umask 077", tmp_path / "x", form)
    assert done.returncode == 0, done
    made = tmp_path / "x"
    for path in [made, *made.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path


@pytest.mark.parametrize("form", ["dir", "zip"])
def test_what_appeared_meanwhile_is_not_replaced(form: str, tmp_path: Path) -> None:
    made = build.contents()
    dest = tmp_path / "made"
    write.check_destination(dest, on_path=True)
    if form == "dir":
        dest.mkdir()
        (dest / "theirs").touch()
    else:
        dest.write_text("theirs")
    with pytest.raises(build.Unbundled, match="exists"):
        (write.folder if form == "dir" else write.zip_file)(made, dest)
    assert sorted(os.listdir(tmp_path)) == ["made"]
    assert (dest / "theirs").exists() if form == "dir" else dest.read_text() == "theirs"


@pytest.mark.parametrize("entry", ["installed", "bundle"])
def test_only_the_packages_own_files(
    entry: str, installed: Path, bundles: dict[str, Path], tmp_path: Path
) -> None:
    """Whatever else lies in the folder is not the guard's."""
    copy = tmp_path / "copy"
    shutil.copytree(installed if entry == "installed" else bundles["dir"], copy)
    (copy / "hisparse_guard" / "evil.py").write_text("evil")
    (copy / "hisparse_guard" / "cli" / "secret.txt").write_text("token")
    done = hisparse_guard("bundle", tmp_path / "x.zip", entry=copy)
    assert done.returncode == 0, done
    assert (tmp_path / "x.zip").read_bytes() == bundles["zip"].read_bytes()


def test_a_checkouts_own_files_are_those_in_git(bundles: dict[str, Path]) -> None:
    stray = ROOT / "hisparse_guard" / "cli" / "stray-of-a-test.txt"
    stray.write_text("token")
    try:
        names = dict(installation.package_files())
    finally:
        stray.unlink()
    assert "hisparse_guard/cli/app.py" in names
    assert "hisparse_guard/cli/stray-of-a-test.txt" not in names
    assert names.keys() <= contents(bundles["dir"]).keys()


def test_the_configmap_is_a_zip_below_the_limit(tmp_path: Path) -> None:
    made = bundled(tmp_path / "configmap.yaml", "--format", "configmap")
    found = yaml.safe_load(made.read_text())
    for version in kubernetes_validate.utils.all_versions()[::8]:
        kubernetes_validate.validate(found, version, strict=True)
    ((key, value),) = found["binaryData"].items()
    # Of the whole object as it is stored.
    assert len(made.read_bytes()) < 1024 * 1024
    data = base64.b64decode(value, validate=True)
    digest = hashlib.sha256(data).hexdigest()
    assert found["metadata"]["name"] == f"hisparse-guard-{digest[:12]}"
    assert found["metadata"]["annotations"]["hisparse-guard/sha256"] == digest
    assert found["immutable"] is True
    assert key == f"hisparse-guard-{__version__}.zip"
    (tmp_path / key).write_bytes(data)
    assert manifest.differences(tmp_path / key) == []
