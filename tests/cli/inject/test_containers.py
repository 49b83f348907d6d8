"""Which containers are guarded, which groups are refused, and what is said about each."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from hisparse_guard.cli.inject.nodes import Refused
from hisparse_guard.cli.inject.objects import Selector
from hisparse_guard.cli.inject.stream import Choice
from tests.cli.inject.samples import ENTRY, inject, text


def pod(*containers: dict[str, Any], **more: Any) -> str:
    named = [{"name": f"c{n}", **container} for n, container in enumerate(containers)]
    whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {**more}}
    whole["spec"]["containers"] = named
    return yaml.safe_dump(whole, sort_keys=False)


def only(source: str) -> dict[str, Any]:
    found: dict[str, Any] = next(yaml.safe_load_all(source))["spec"]["containers"][0]
    return found


RUNS = [
    {"image": "vllm/vllm-openai:v0.33.0"},
    {"image": "vllm/vllm-openai", "args": ["--model", "m"]},
    {"image": "registry:5000/a/my-vllm@sha256:00"},
    {"image": "x", "command": ["vllm", "serve", "m"]},
    {"image": "x", "command": ["/opt/venv/bin/vllm"], "args": ["serve", "m"]},
    {"image": "x", "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"]},
    {"image": "x", "command": ["bash", "-c", "set -e; exec vllm serve m"]},
    {"image": "x", "command": ["sh"], "args": ["-c", "A=b /bin/vllm  serve m"]},
]
DOES_NOT = [
    {"image": "busybox"},
    {"image": "lmcache/lmstack-router", "args": ["--engine", "vllm"]},
    {"image": "vllm/vllm-router"},
    {"image": "ghcr.io/llm-d/llm-d-routing-sidecar", "args": ["--vllm-port=8200"]},
    {"image": "vllm/vllm-openai", "command": ["python3", "download.py"]},
    {"image": "x", "command": ["my-vllm", "serve"]},
    {},
]


@pytest.mark.parametrize("container", RUNS, ids=json.dumps)
def test_runs_vllm(container: dict[str, Any]) -> None:
    assert inject(pod(container)).changed == 1


@pytest.mark.parametrize("container", DOES_NOT, ids=json.dumps)
def test_not_shown_to_run_vllm(container: dict[str, Any]) -> None:
    source = pod(container)
    result = inject(source)
    assert (result.changed, result.text) == (0, source)
    assert len(result.lines) == 1 and "left alone" in result.lines[0]


def test_init_containers_and_sidecars_are_left_alone() -> None:
    source = pod(RUNS[0], DOES_NOT[0], initContainers=[{"name": "i", "image": "vllm/vllm-openai"}])
    result = inject(source)
    assert result.changed == 1
    before, after = yaml.safe_load(source), next(yaml.safe_load_all(result.text))
    assert after["spec"]["initContainers"] == before["spec"]["initContainers"]
    assert after["spec"]["containers"][1] == before["spec"]["containers"][1]


def test_container_takes_the_place_of_what_is_seen() -> None:
    result = inject(pod(RUNS[0], DOES_NOT[0]), Choice(frozenset({"c1"})))
    assert (
        result.changed == 1
        and "container c1 of Pod/p: guard added, since --container names it" in result.lines[0]
    )


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("a=b", True),
        ("a==b,c", True),
        ("a!=b", False),
        ("!a", False),
        ("!x,x!=y", True),
        ("x", False),
    ],
)
def test_selector(selector: str, matches: bool) -> None:
    assert Selector(selector).matches({"a": "b", "c": ""}) is matches


@pytest.mark.parametrize("selector", ["", "a in (b)", "!a=b", "a=b c", "a='b'"])
def test_selectors_of_another_form(selector: str) -> None:
    with pytest.raises(Refused, match="--selector"):
        Selector(selector)


# Groups: all or none.


def test_a_group_is_guarded_as_a_whole() -> None:
    for name in (
        "lws.yaml",
        "lws-shared.yaml",
        "raycluster.yaml",
        "rayservice.yaml",
        "kserve.yaml",
    ):
        source = inject(text(name)).text
        assert source.count("name: hisparse-guard\n") >= 2, name


@pytest.mark.parametrize("name", ["lws.yaml", "raycluster.yaml", "kserve.yaml"])
def test_a_group_in_part_is_refused(name: str) -> None:
    one = {"lws.yaml": "vllm-leader", "raycluster.yaml": "head", "kserve.yaml": "worker-container"}
    choice = Choice(frozenset({one[name]}))
    with pytest.raises(Refused, match="guarded in part, and such a group hangs"):
        inject(text(name), choice)
    allowed = Choice(choice.containers, allow_partial_group=True)
    assert inject(text(name), allowed).changed == 1


def test_a_worker_that_does_not_show_vllm_is_refused() -> None:
    source = (
        text("lws.yaml")
        .replace(
            "image: vllm/vllm-openai:v0.33.0\n          command: [sh",
            "image: a/b\n          command: [sh",
        )
        .replace("multi-node-serving.sh worker", "start.sh worker")
    )
    with pytest.raises(Refused, match="workerTemplate"):
        inject(source)


def test_ray_hands_the_variables_on() -> None:
    found = yaml.safe_load_all(inject(text("raycluster.yaml")).text)
    cluster = next(found)["spec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        env = {e["name"]: e["value"] for e in group["template"]["spec"]["containers"][0]["env"]}
        assert env["VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"] == "PYTHONPATH"
        assert "HISPARSE_GUARD_" in env["VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"].split(",")
    assert env["PYTHONPATH"] == ENTRY
    worker = next(yaml.safe_load_all(inject(text("lws.yaml")).text))["spec"]["leaderWorkerTemplate"]
    (container,) = worker["workerTemplate"]["spec"]["containers"]
    assert {"name": "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY", "value": "PYTHONPATH,MINE"} in container[
        "env"
    ]


# PYTHONPATH.


def test_value_from_is_kept_behind() -> None:
    env = next(yaml.safe_load_all(inject(text("daemonset-value-from.yaml")).text))["spec"][
        "template"
    ]["spec"]["containers"][0]["env"]
    assert [e["name"] for e in env] == ["BEHIND_HISPARSE_GUARD_PYTHONPATH", "PYTHONPATH", "LAST"]
    assert "valueFrom" in env[0]
    assert env[1]["value"] == f"{ENTRY}:$(BEHIND_HISPARSE_GUARD_PYTHONPATH)"


def test_no_colon_at_the_end() -> None:
    source = pod({"image": "vllm/vllm-openai", "env": [{"name": "PYTHONPATH", "value": ""}]})
    assert {"name": "PYTHONPATH", "value": ENTRY} in only(inject(source).text)["env"]


def test_the_images_own_is_said_and_can_be_given() -> None:
    source = pod({"image": "vllm/vllm-openai"})
    assert any("--image-pythonpath" in line for line in inject(source).lines)
    result = inject(source, image_pythonpath="/a:$(b)")
    assert not any("--image-pythonpath" in line for line in result.lines)
    assert only(result.text)["env"] == [{"name": "PYTHONPATH", "value": f"{ENTRY}:/a:$$(b)"}]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["sh", "-c", "PYTHONPATH=/x vllm serve m"], f"write PYTHONPATH={ENTRY}:"),
        (["sh", "-c", "export PYTHONPATH=/x\nvllm serve m"], f"write PYTHONPATH={ENTRY}:"),
        (["env", "-i", "vllm", "serve", "m"], f"add PYTHONPATH={ENTRY}"),
        (["env", "-u", "PYTHONPATH", "vllm", "serve", "m"], f"add PYTHONPATH={ENTRY}"),
        (["env", "A=b", "-i", "vllm", "serve", "m"], f"add PYTHONPATH={ENTRY}"),
        (["env", "-u", "X", "-u", "PYTHONPATH", "vllm", "serve"], f"add PYTHONPATH={ENTRY}"),
        (["sh", "-c", "unset A PYTHONPATH; vllm serve m"], f"add PYTHONPATH={ENTRY}"),
        (["sudo", "-u", "x", "vllm", "serve", "m"], f"add PYTHONPATH={ENTRY}"),
        (["su", "-", "x", "-c", "vllm serve m"], f"add PYTHONPATH={ENTRY}"),
        (["sh", "-c", "sudo mkdir /x; unset A; env A=b vllm serve -i m"], None),
        (["python3", "-I", "-m", "vllm.entrypoints.openai.api_server"], "-I or -E"),
        (["python3.12", "-u", "-sE", "-m", "vllm.entrypoints.cli.main"], "-I or -E"),
        (["sh", "-c", "PYTHONPATH=/x:$PYTHONPATH vllm serve m"], None),
        (["sh", "-c", "PYTHONPATH=${PYTHONPATH}:/x vllm serve m"], None),
        (["python3", "-u", "-m", "vllm.entrypoints.openai.api_server", "-E"], None),
        (["env", "A=b", "vllm", "serve", "m"], None),
    ],
)
def test_what_keeps_the_guard_out_is_said(words: list[str], says: str | None) -> None:
    result = inject(pod({"image": "x", "command": words}))
    said = [line for line in result.lines if "NOT SHOWN TO BE GUARDED" in line]
    assert result.changed == 1
    assert (says is None and not said) or (says is not None and says in said[0]), result.lines


def test_switched_off_by_the_manifest_is_said() -> None:
    variable = {"name": "HISPARSE_GUARD_MODE", "value": " OFF "}
    result = inject(pod({"image": "vllm/vllm-openai", "env": [variable]}))
    assert any("NOT SHOWN" in line and "switch the guard off" in line for line in result.lines)


def test_what_another_object_made_is_said() -> None:
    source = yaml.safe_load(pod({"image": "vllm/vllm-openai"}))
    source["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "vllm-1"}]
    result = inject(yaml.safe_dump(source))
    assert any("ReplicaSet/vllm-1 made it" in line for line in result.lines)


def test_the_pod_that_submits_a_ray_job_is_left_alone() -> None:
    cluster = yaml.safe_load(text("raycluster.yaml"))["spec"]
    submitter = {"spec": {"containers": [{"name": "s", "image": "vllm/vllm-openai"}]}}
    job = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": "j"},
        "spec": {"submitterPodTemplate": submitter, "rayClusterSpec": cluster},
    }
    found = next(yaml.safe_load_all(inject(yaml.safe_dump(job)).text))["spec"]
    assert found["submitterPodTemplate"] == submitter
    assert "PYTHONPATH" in json.dumps(found["rayClusterSpec"]["headGroupSpec"])


# What is not edited.


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("a: {b: 1, b: 2}", "key b is there twice"),
        ("a: &a [*a]", "stands for nothing, or itself"),
        (
            "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
            + "".join(
                f"{c}: &{c} [{', '.join(['*' + p] * 10)}]\n"
                for p, c in zip("abcdefgh", "bcdefghi", strict=True)
            ),
            "aliases expanded",
        ),
        ("[" * 200 + "]" * 200, "nested deeper"),
        ('{"a":' * 200 + "1" + "}" * 200, "nested deeper"),
        ("? [a]\n: b", "a key that is a collection"),
        ("a: [", "not readable as YAML or JSON: line"),
        ("{{ .Values.x }}", "collection"),
        ("a: \x07", "not readable"),
        ("a: *b", "stands for nothing"),
        (
            pod(
                {
                    "image": "vllm/vllm-openai",
                    "volumeMounts": [{"name": "x", "mountPath": "/opt/hisparse-guard"}],
                }
            ),
            "there is a mount",
        ),
        (
            pod(
                {"image": "vllm/vllm-openai"}, volumes=[{"name": "hisparse-guard", "emptyDir": {}}]
            ),
            "there is a volume",
        ),
        (pod({"image": "vllm/vllm-openai", "env": "no list"}), "is no list"),
        (
            pod({"image": "vllm/vllm-openai", "env": [{"name": "PYTHONPATH"}]}),
            "whose value is no text",
        ),
        (text("merge-keys.yaml"), "cannot be edited in place"),
        # A line break behind it would be part of the value.
        (
            pod({"image": "vllm/vllm-openai"}) + "---\nkind: X\ntext: |\n  last",
            "ends within a block scalar",
        ),
    ],
)
def test_refused_in_one_line(source: str, says: str) -> None:
    with pytest.raises(Refused, match=says) as caught:
        inject(source)
    assert "\n" not in str(caught.value)


def test_an_anchor_that_others_share_is_not_changed_for_them() -> None:
    shared = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - {name: vllm, image: vllm/vllm-openai, env: &env [{name: A, value: a}]}
  - {name: other, image: busybox, env: *env}
"""
    with pytest.raises(Refused, match="cannot be edited in place"):
        inject(shared)


def test_a_setting_that_the_manifest_has_is_not_replaced() -> None:
    source = pod(
        {"image": "vllm/vllm-openai", "env": [{"name": "HISPARSE_GUARD_MODE", "value": "off"}]}
    )
    with pytest.raises(Refused, match="sets HISPARSE_GUARD_MODE already"):
        inject(source, settings={"HISPARSE_GUARD_MODE": "strict"})
    assert inject(source).changed == 1


@pytest.mark.parametrize(
    "record", ["no JSON", "[]", "{}", '{"added": [1]}', '{"added":[],"was":{"a":1}}']
)
def test_a_record_that_is_not_ours(record: str) -> None:
    source = yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "annotations": {"hisparse-guard/injected": record}},
        }
    )
    with pytest.raises(Refused, match="cannot be read"):
        inject(source)


def test_an_object_guarded_before_keeps_its_guard_or_it_is_said() -> None:
    """The choice of a second run may leave out what an earlier one guarded."""
    both = text("deployment.yaml") + "---\n" + pod(RUNS[0])
    once = inject(both).text
    unchosen = inject(once, Choice(frozenset({"no-such"})))
    assert (unchosen.changed, unchosen.text) == (0, once)
    with pytest.raises(Refused, match="would lose its guard"):
        inject(once, Choice(frozenset({"c0"})))


def test_a_configmap_alone_stays() -> None:
    configmap = inject(pod(RUNS[0])).text.partition("---\n")[2]
    assert "kind: ConfigMap" in configmap
    assert inject(configmap).text == configmap
