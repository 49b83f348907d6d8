"""The ConfigMap and its patch: what Kubernetes takes, and what the container then does."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from hisparse_guard import __version__
from hisparse_guard.cli import manifest
from tests.startup.sandbox import environment, python, vllm_folder
from tests.support.bundles import bundled, hisparse_guard

VERSIONS = kubernetes_validate.utils.all_versions()

CONTAINER: dict[str, Any] = {
    "name": "vllm",
    "image": "vllm/vllm-openai:v0.33.0",
    "args": ["--model", "some/model", "--tensor-parallel-size", "4"],
    "env": [{"name": "HF_HOME", "value": "/models"}],
    "volumeMounts": [{"name": "models", "mountPath": "/models"}],
}
SIDECAR = {"name": "sidecar", "image": "busybox"}


def pod_spec() -> dict[str, Any]:
    return {
        "containers": [json.loads(json.dumps(CONTAINER)), dict(SIDECAR)],
        "volumes": [{"name": "models", "emptyDir": {}}],
    }


def workload(kind: str) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "vllm"}}, "spec": pod_spec()}
    selector = {"matchLabels": {"app": "vllm"}}
    whole: dict[str, Any] = {"kind": kind, "metadata": {"name": "vllm"}}
    if kind == "Pod":
        return {"apiVersion": "v1", **whole, "spec": pod_spec()}
    if kind == "Job":
        template["spec"]["restartPolicy"] = "Never"
        return {"apiVersion": "batch/v1", **whole, "spec": {"template": template}}
    spec: dict[str, Any] = {"selector": selector, "template": template}
    if kind == "StatefulSet":
        spec["serviceName"] = "vllm"
    return {"apiVersion": "apps/v1", **whole, "spec": spec}


# The keys by which Kubernetes merges these lists (`patchMergeKey` in its API); others it replaces.
MERGE_KEYS = {
    "containers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
}


def merged(base: Any, patch: Any, name: str = "") -> Any:
    """What a strategic merge patch makes of `base`."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {**base, **{k: merged(base.get(k), v, k) for k, v in patch.items()}}
    if isinstance(base, list) and isinstance(patch, list) and name in MERGE_KEYS:
        key = MERGE_KEYS[name]
        found = {entry[key]: entry for entry in base}
        for entry in patch:
            found[entry[key]] = merged(found.get(entry[key]), entry)
        return list(found.values())
    return patch


def made(tmp_path: Path, *options: str) -> tuple[dict[str, Any], dict[str, Any]]:
    folder = bundled(tmp_path / "made", "--format", "configmap", *options)
    config, patch = (
        yaml.safe_load((folder / name).read_text()) for name in ("configmap.yaml", "patch.yaml")
    )
    return config, patch


def guarded_container(whole: dict[str, Any]) -> dict[str, Any]:
    spec = whole["spec"] if whole["kind"] == "Pod" else whole["spec"]["template"]["spec"]
    (found,) = [c for c in spec["containers"] if c["name"] == "vllm"]
    return dict(found)


KINDS = ["Deployment", "StatefulSet", "DaemonSet", "Job", "Pod"]


@pytest.mark.parametrize("kind", KINDS)
def test_kubernetes_takes_both(kind: str, tmp_path: Path) -> None:
    config, patch = made(tmp_path, "--workload", f"{kind}/vllm")
    whole = merged(workload(kind), patch)
    assert len(VERSIONS) > 10
    for version in (VERSIONS[0], VERSIONS[-1]):
        kubernetes_validate.validate(config, version, strict=True)
        kubernetes_validate.validate(workload(kind), version, strict=True)
        kubernetes_validate.validate(whole, version, strict=True)
        whole["spec"]["unknown"] = 1
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(whole, version, strict=True)
        del whole["spec"]["unknown"]
    # What was there stays there.
    container = guarded_container(whole)
    assert container["args"] == CONTAINER["args"]
    assert container["env"] == CONTAINER["env"]
    assert CONTAINER["volumeMounts"][0] in container["volumeMounts"]
    spec = whole["spec"] if kind == "Pod" else whole["spec"]["template"]["spec"]
    assert SIDECAR in spec["containers"]
    assert len(spec["volumes"]) == 2
    mounted = spec["volumes"][1]["configMap"]
    assert (mounted["name"], mounted["defaultMode"]) == (config["metadata"]["name"], 0o444)


def test_what_the_configmap_holds(tmp_path: Path) -> None:
    config, _ = made(tmp_path)
    ((key, value),) = config["binaryData"].items()
    data = base64.b64decode(value, validate=True)
    assert len(data) < 1024 * 1024
    # `kubectl apply` would keep the whole object in an annotation, which may not be larger.
    head = (tmp_path / "made" / "patch.yaml").read_text()
    assert "kubectl apply --server-side -f configmap.yaml" in head
    digest = hashlib.sha256(data).hexdigest()
    assert config["metadata"]["annotations"]["sha256"] == digest
    assert config["metadata"]["name"] == f"hisparse-guard-{digest[:12]}"
    assert config["immutable"] is True
    assert key == f"hisparse-guard-{__version__}.zip"

    archive = tmp_path / key
    archive.write_bytes(data)
    assert manifest.differences(archive) == []
    image = vllm_folder(tmp_path / "image")
    code = "import vllm, sys; print(sys.modules['hisparse_guard.runtime.arm']._armed)"
    done = python(code, [archive, image])
    assert (done.stdout, done.stderr) == ("True\n", "")


SHOW = "import json, os, sys; print(json.dumps([os.getppid(), os.environ['PYTHONPATH'], sys.argv]))"


@pytest.mark.parametrize(
    ("in_image", "behind"),
    [(None, ""), ("", ""), ("/image/lib:/more", ":/image/lib:/more"), ("/a b/$x", ":/a b/$x")],
)
def test_the_images_own_pythonpath_is_kept(
    in_image: str | None, behind: str, tmp_path: Path
) -> None:
    command = shlex.join([sys.executable, "-c", SHOW, "two words"])
    _, patch = made(tmp_path, "--command", command)
    container = merged(workload("Deployment"), patch)
    words = guarded_container(container)["command"] + ["--model", "$(echo no)", "*"]
    env = environment() | ({} if in_image is None else {"PYTHONPATH": in_image})
    process = subprocess.Popen(words, env=env, cwd="/", stdout=subprocess.PIPE, text=True)
    out, _ = process.communicate(timeout=30)
    parent, path, arguments = json.loads(out)
    entry = f"/opt/hisparse-guard/hisparse-guard-{__version__}.zip"
    assert path == entry + behind
    assert arguments == ["-c", "two words", "--model", "$(echo no)", "*"]
    # exec: signals from the container's runtime reach the server itself.
    assert parent == os.getpid()


@pytest.mark.parametrize(
    ("in_image", "behind"), [("", ""), ("/image/lib:/more", ":/image/lib:/more")]
)
def test_by_env_where_the_image_has_no_shell(in_image: str, behind: str, tmp_path: Path) -> None:
    _, patch = made(tmp_path, "--image-pythonpath", in_image)
    container = guarded_container(merged(workload("Deployment"), patch))
    assert "command" not in container
    entry = f"/opt/hisparse-guard/hisparse-guard-{__version__}.zip"
    assert container["env"] == [*CONTAINER["env"], {"name": "PYTHONPATH", "value": entry + behind}]


def test_names_that_need_quotes(tmp_path: Path) -> None:
    _, patch = made(tmp_path, "--workload", "deployment/true", "--container", "123")
    assert patch["metadata"]["name"] == "true"
    assert patch["spec"]["template"]["spec"]["containers"][0]["name"] == "123"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--workload", "Pod/vllm"], "--workload goes with --format configmap"),
        (["--container", "vllm"], "--container goes with"),
        (["--command", ""], "--command goes with"),
        (["--image-pythonpath", "", "--format", "zip"], "--image-pythonpath goes with"),
        (
            ["--format", "configmap", "--command", "foo", "--image-pythonpath", ""],
            "give no --command",
        ),
        (
            ["--format", "configmap", "--command", 'vllm "unclosed'],
            '--command vllm "unclosed: No closing quotation',
        ),
        (["--format", "configmap", "--workload", "vllm"], "is not KIND/NAME"),
        (["--format", "configmap", "--command", ""], "command is empty"),
    ],
)
def test_wrong_usage(words: list[str], says: str, tmp_path: Path) -> None:
    done = hisparse_guard("bundle", tmp_path / "made", *words)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert says in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "made").exists()


def test_what_was_written_is_told(tmp_path: Path) -> None:
    dest = tmp_path / "made"
    done = hisparse_guard("bundle", dest, "--format", "configmap")
    zipped = f"/opt/hisparse-guard/hisparse-guard-{__version__}.zip"
    assert done.stdout.split()[1] == zipped
    assert done.stderr == f"{dest}: configmap.yaml and patch.yaml, which puts the zip at {zipped}\n"


@pytest.mark.parametrize("kind", KINDS)
def test_how_the_patch_is_applied(kind: str, tmp_path: Path) -> None:
    """Kubernetes refuses to change what this patches in a Pod or a Job."""
    folder = bundled(tmp_path / "made", "--format", "configmap", "--workload", f"{kind}/vllm")
    head = [line for line in (folder / "patch.yaml").read_text().splitlines() if line[0] == "#"]
    replaced = any("kubectl replace --force" in line for line in head)
    assert replaced == (kind in ("Pod", "Job"))
    in_place = any("--patch-file" in line and "--local" not in line for line in head)
    assert in_place != replaced
