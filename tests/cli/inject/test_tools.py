"""The real kubectl and helm take what inject writes, and run it in their ways; no cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.cli.inject.samples import FOLDER, NAMES
from tests.startup.sandbox import ROOT
from tests.support import kubernetes
from tests.support.bundles import hisparse_guard

CHARTS = Path(__file__).parents[2] / "data" / "charts"
VERSIONS = kubernetes_validate.utils.all_versions()
# Kinds that Kubernetes itself defines, whose schema is known.
BUILT_IN = {"Deployment", "StatefulSet", "DaemonSet", "CronJob", "Pod", "ConfigMap", "Service"}


@pytest.fixture(scope="session")
def tools() -> kubernetes.Tools:
    return kubernetes.tools()


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """`hisparse-guard inject` as one program, as a post-renderer and a function have to be."""
    program = tmp_path / "hisparse-guard-inject"
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m hisparse_guard inject "$@"\n'
    )
    program.chmod(0o755)
    return program


def injected(source: str, *options: str) -> str:
    done = hisparse_guard("inject", *options, stdin=source)
    assert done.returncode == 0, done.stderr
    return done.stdout


def flat(text: str) -> list[dict[str, Any]]:
    found = [d for d in yaml.safe_load_all(text) if d]
    return [item for d in found for item in (d["items"] if d["kind"].endswith("List") else [d])]


@pytest.mark.parametrize(
    "name", [n for n in NAMES if not n.startswith(("lws", "ray", "kserve", "unk"))]
)
def test_kubernetes_schemas_take_it(name: str) -> None:
    source = (FOLDER / name).read_text(encoding="utf-8-sig")
    text = injected(source, "--evidence", "--setting", "MODE=observe")
    for separated in text.replace("}\n{", "}\n---\n{").split("\n---"):
        for item in flat(separated.removesuffix("...\n---")):
            assert item["kind"] in BUILT_IN
            if item["kind"] == "Deployment":
                item["spec"].setdefault("selector", {"matchLabels": {"a": "b"}})
            for version in (VERSIONS[0], VERSIONS[-1]):
                kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_kubectl_reads_it(name: str, tools: kubernetes.Tools, tmp_path: Path) -> None:
    # Which kubectl itself does not read.
    source = (FOLDER / name).read_text(encoding="utf-8-sig").removeprefix("%YAML 1.1\n")
    (tmp_path / "in").write_text(injected(source))
    patch = '{"metadata":{"labels":{"read":"yes"}}}'
    done = kubernetes.run(
        *(tools.kubectl, "patch", "--local", "-f", "in", "--type=merge", "-p", patch, "-o", "yaml"),
        home=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    kinds = [item["kind"] for item in flat(done.stdout)]
    assert "ConfigMap" in kinds
    assert all(item["metadata"]["labels"]["read"] == "yes" for item in flat(done.stdout))


def by_name(text: str, kind: str) -> dict[str, dict[str, Any]]:
    return {item["metadata"]["name"]: item for item in flat(text) if item["kind"] == kind}


def guarded(template: dict[str, Any]) -> list[str]:
    """The containers of a pod template that have the guard."""
    return [
        c["name"]
        for c in [*template["spec"].get("initContainers", ()), *template["spec"]["containers"]]
        if any(m["name"] == "hisparse-guard" for m in c.get("volumeMounts", ()))
    ]


def helm_plugin(home: Path, command: Path) -> dict[str, str]:
    """Helm 4 takes a plugin by its name where helm 3 took a program."""
    plugin = home / "plugins" / "hisparse-guard"
    plugin.mkdir(parents=True)
    (plugin / "plugin.yaml").write_text(
        "apiVersion: v1\ntype: postrenderer/v1\nname: hisparse-guard\nversion: 0.1.0\n"
        f"runtime: subprocess\nruntimeConfig:\n  platformCommand:\n  - command: {command}\n"
    )
    return {"HELM_PLUGINS": str(home / "plugins")}


def helm(
    tools: kubernetes.Tools, home: Path, command: Path, chart: str, *options: str
) -> tuple[str, str]:
    """What a chart renders to, without the post-renderer and with it."""
    words = (tools.helm, "template", "rel", CHARTS / chart, "-n", "models", *options)
    plain = kubernetes.run(*words, home=home)
    assert plain.returncode == 0, plain.stderr
    env = helm_plugin(home, command)
    done = kubernetes.run(*words, "--post-renderer", "hisparse-guard", home=home, **env)
    assert done.returncode == 0, done.stderr
    return plain.stdout, done.stdout


def test_helm_post_renderer_on_a_stack(
    tools: kubernetes.Tools, command: Path, tmp_path: Path
) -> None:
    plain, text = helm(tools, tmp_path, command, "stack")
    before, after = flat(plain), flat(text)
    assert len(after) == len(before) + 1
    (configmap,) = by_name(text, "ConfigMap").values()
    assert configmap["metadata"]["namespace"] == "models"
    deployments = by_name(text, "Deployment")
    assert guarded(deployments["rel-small-engine"]["spec"]["template"]) == ["vllm"]
    assert deployments["rel-router"] == by_name(plain, "Deployment")["rel-router"]
    (engine,) = deployments["rel-small-engine"]["spec"]["template"]["spec"]["containers"]
    assert engine["command"] == ["vllm", "serve", "some/model", "--tensor-parallel-size", "2"]
    paths = [e["value"] for e in engine["env"] if e["name"] == "PYTHONPATH"]
    assert [p.endswith(".zip:/plugins") for p in paths] == [True]
    ray = by_name(text, "RayCluster")["rel-large-raycluster"]["spec"]
    assert guarded(ray["headGroupSpec"]["template"]) == ["ray-head"]
    assert guarded(ray["workerGroupSpecs"][0]["template"]) == ["ray-worker"]
    kubernetes_validate.validate(deployments["rel-small-engine"], VERSIONS[-1], strict=True)


@pytest.mark.parametrize("multinode", ["false", "true"])
def test_helm_post_renderer_on_prefill_and_decode(
    multinode: str, tools: kubernetes.Tools, command: Path, tmp_path: Path
) -> None:
    _, text = helm(tools, tmp_path, command, "modelservice", "--set", f"multinode={multinode}")
    assert len(by_name(text, "ConfigMap")) == 1
    kind = "LeaderWorkerSet" if multinode == "true" else "Deployment"
    found = by_name(text, kind)
    assert sorted(found) == ["rel-decode", "rel-prefill"]
    for item in found.values():
        spec = item["spec"]
        template = (
            spec["leaderWorkerTemplate"]["workerTemplate"]
            if multinode == "true"
            else spec["template"]
        )
        assert guarded(template) == ["vllm"]


def test_kustomize_plugin(tools: kubernetes.Tools, command: Path, tmp_path: Path) -> None:
    """kubectl's own kustomize: a plugin that gets its configuration's path and the resources."""
    (tmp_path / "deployment.yaml").write_text((FOLDER / "deployment.yaml").read_text())
    (tmp_path / "kustomization.yaml").write_text(
        "resources: [deployment.yaml]\nnamePrefix: our-\ntransformers: [guard.yaml]\n"
    )
    (tmp_path / "guard.yaml").write_text(
        "apiVersion: hisparse-guard/v1\nkind: Inject\nmetadata: {name: guard}\n"
    )
    plugin = tmp_path / "plugins" / "hisparse-guard" / "v1" / "inject" / "Inject"
    plugin.parent.mkdir(parents=True)
    plugin.write_text(f"#!/bin/sh\nexec {command}\n")
    plugin.chmod(0o755)
    done = kubernetes.run(
        *(tools.kubectl, "kustomize", "--enable-alpha-plugins", "."),
        home=tmp_path,
        KUSTOMIZE_PLUGIN_HOME=str(tmp_path / "plugins"),
    )
    assert done.returncode == 0, done.stderr
    (configmap,) = by_name(done.stdout, "ConfigMap").values()
    assert configmap["metadata"]["namespace"] == "prod"
    deployment = by_name(done.stdout, "Deployment")["our-vllm"]
    assert guarded(deployment["spec"]["template"]) == ["vllm"]
    (ours,) = (
        v
        for v in deployment["spec"]["template"]["spec"]["volumes"]
        if v["name"] == "hisparse-guard"
    )
    assert ours["configMap"]["name"] == configmap["metadata"]["name"]


def test_krm_function_over_a_pipe() -> None:
    listed = {
        "apiVersion": "config.kubernetes.io/v1",
        "kind": "ResourceList",
        "functionConfig": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "options"},
        },
        "items": [yaml.safe_load((FOLDER / "deployment.yaml").read_text())],
    }
    found = yaml.safe_load(injected(yaml.safe_dump(listed)))
    assert found["functionConfig"] == listed["functionConfig"]
    assert [item["kind"] for item in found["items"]] == ["Deployment", "ConfigMap"]
    assert guarded(found["items"][0]["spec"]["template"]) == ["vllm"]


def test_where_nothing_is_to_inject_helm_says_so(
    tools: kubernetes.Tools, command: Path, tmp_path: Path
) -> None:
    env = helm_plugin(tmp_path, command)
    done = kubernetes.run(
        *(tools.helm, "template", "rel", CHARTS / "stack", "--set", "models=null"),
        *("--post-renderer", "hisparse-guard"),
        home=tmp_path,
        **env,
    )
    assert done.returncode != 0
    assert done.stdout == ""
