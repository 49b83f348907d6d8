"""What is not changed keeps its bytes, and what was changed can be taken out to the byte."""

from __future__ import annotations

import difflib
import json
import re
import textwrap
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hisparse_guard.cli.inject.document_edits import json_text
from hisparse_guard.cli.inject.nodes import Refused, documents
from tests.cli.inject.samples import CONFIGMAP, NAMES, inject, text, uninject

FULL: dict[str, Any] = {
    "settings": {"HISPARSE_GUARD_MODE": "observe"},
    "evidence": True,
    "image_pythonpath": "/in/image",
}


@pytest.mark.parametrize("options", [{}, FULL], ids=["plain", "full"])
@pytest.mark.parametrize("name", NAMES)
def test_out_again_to_the_byte(name: str, options: dict[str, Any]) -> None:
    before = text(name)
    result = inject(before, **options)
    assert result.changed and CONFIGMAP in result.text
    assert uninject(result.text) == before


@pytest.mark.parametrize("name", NAMES)
def test_nothing_but_additions(name: str) -> None:
    before, after = text(name), inject(text(name)).text
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    kept = [op for op in matcher.get_opcodes() if op[0] in ("delete", "replace")]
    # A value that was null or `[]` is the only thing that is replaced.
    assert all(before[a:b].strip(" []{}") == "" for _, a, b, _, _ in kept), kept


@pytest.mark.parametrize("name", NAMES)
def test_twice_is_once_and_another_version_is_replaced(name: str) -> None:
    once = inject(text(name), **FULL).text
    assert inject(once, **FULL).text == once
    other = inject(text(name), configmap="hisparse-guard-ba9876543210", entry="/opt/old.zip").text
    assert inject(other, **FULL).text == once


@pytest.mark.parametrize("name", NAMES)
def test_out_again_after_kubernetes_has_rewritten_it(name: str) -> None:
    """`kubectl get -o yaml`: other quotes, another order of keys, no comments, no empty lists."""

    def rewritten(source: str) -> str:
        data = [d.data for d in documents(source) if d.root]
        # What stands for itself; the numbers of a manifest do not matter here.
        return yaml.safe_dump_all(json.loads(json.dumps(data)))

    before = rewritten(text(name))
    after = rewritten(inject(before, **FULL).text)
    assert rewritten(uninject(after)) == before


def test_json_stays_json() -> None:
    result = inject(text("pod.json")).text
    decoder = json.JSONDecoder()
    first, end = decoder.raw_decode(result)
    second = json.loads(result[end:])
    assert (first["kind"], second["kind"]) == ("Pod", "ConfigMap")
    assert (
        first["metadata"]["annotations"]["note"]
        == json.loads(text("pod.json"))["metadata"]["annotations"]["note"]
    )


def test_a_json_list_stays_one_document() -> None:
    listed = json.dumps(
        {"apiVersion": "v1", "kind": "List", "items": [json.loads(text("pod.json"))]}
    )
    result = inject(listed).text
    assert [item["kind"] for item in json.loads(result)["items"]] == ["Pod", "ConfigMap"]
    assert uninject(result) == listed


def test_what_the_operator_added_since_stays() -> None:
    after = inject(text("cronjob.yaml"), **FULL).text
    mount = "            - name: hisparse-guard\n"
    assert mount in after
    theirs = after.replace(mount, "            - {name: mine, mountPath: /mine}\n" + mount, 1)
    back = uninject(theirs)
    assert "            volumeMounts:\n            - {name: mine, mountPath: /mine}\n" in back
    assert "hisparse-guard" not in back


_POD = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - name: c
    image: vllm/vllm-openai
"""
_ROLE = "{name: a, spec: {containers: [{name: c, image: vllm/vllm-openai}]}}"


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(textwrap.indent(_POD, "  "), id="all of it indented"),
        pytest.param(_POD + "    env: &e []\n", id="an empty list with an anchor"),
        pytest.param(_POD + "    env: !!seq []\n", id="an empty list with a tag"),
        pytest.param(
            f"apiVersion: x/v1\nkind: Zoo\nmetadata: {{name: z}}\nroles: [{_ROLE}, {_ROLE}]\n",
            id="two list items of one name",
        ),
    ],
)
def test_unusual_layouts(before: str) -> None:
    once = inject(before, **FULL).text
    assert inject(once, **FULL).text == once
    assert uninject(once) == before


# Any manifest: what it holds, in any style, with comments.

_SCALARS = st.one_of(
    st.text(max_size=8),
    st.integers(-5, 5),
    st.booleans(),
    st.none(),
    st.sampled_from(["a: b", "#"]),
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
_ENV = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from(["A", "B", "C"]), "value": st.text(max_size=6)}),
    max_size=3,
    unique_by=lambda e: e["name"],
)
_PATH = st.sampled_from(
    [None, {"value": "/x:/y"}, {"value": ""}, {"valueFrom": {"fieldRef": {"fieldPath": "a"}}}]
)


@st.composite
def manifests(draw: st.DrawFn) -> str:
    container: dict[str, Any] = {"name": "vllm", "image": "vllm/vllm-openai"}
    container |= draw(st.dictionaries(st.sampled_from(["x", "y", "args2"]), _VALUES, max_size=2))
    env = draw(st.none() | _ENV)
    path = draw(_PATH)
    if path is not None:
        env = [*(env or []), {"name": "PYTHONPATH", **path}]
    if env is not None or draw(st.booleans()):
        container["env"] = env
    for key in ("volumeMounts",):
        if draw(st.booleans()):
            container[key] = draw(st.sampled_from([None, [], [{"name": "m", "mountPath": "/m"}]]))
    spec: dict[str, Any] = {"containers": [container, {"name": "other", "z": draw(_VALUES)}]}
    if draw(st.booleans()):
        spec["volumes"] = draw(st.sampled_from([None, [], [{"name": "m", "emptyDir": {}}]]))
    metadata: dict[str, Any] = {"name": "n"}
    if draw(st.booleans()):
        metadata["annotations"] = draw(st.sampled_from([None, {}, {"k": "v"}]))
    whole = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    if draw(st.booleans()):
        whole = {"apiVersion": "v1", "kind": "List", "items": [whole]}
    if draw(st.integers(0, 3)) == 0:
        source = json.dumps(whole, indent=draw(st.none() | st.integers(0, 4)))
    else:
        source = yaml.safe_dump(
            whole,
            sort_keys=draw(st.booleans()),
            default_flow_style=draw(st.sampled_from([True, False, None])),
            default_style=draw(st.sampled_from([None, "'", '"', "|", ">"])),
            indent=draw(st.integers(2, 6)),
            width=draw(st.sampled_from([20, 80, 1000])),
            allow_unicode=draw(st.booleans()),
            explicit_start=draw(st.booleans()),
            explicit_end=draw(st.booleans()),
        )
        if draw(st.booleans()):
            source = source.replace("\n", "\r\n")
    return source if draw(st.booleans()) else source.rstrip("\r\n")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(manifests(), st.sampled_from([{}, FULL]))
def test_any_manifest(source: str, options: dict[str, Any]) -> None:
    try:
        after = inject(source, **options).text
    except Refused:
        # Such as `!!null |-`, which PyYAML writes if it is told to quote everything, and what ends
        # a line for some readers only.
        assert re.search("!!|[\x85\u2028\u2029]", source)
        return
    assert inject(after, **options).text == after
    assert uninject(after) == source


@pytest.mark.parametrize("line_break", ["\x85", "\u2028", "\u2029"])
def test_what_ends_a_line_for_some_readers_only_is_refused(line_break: str) -> None:
    source = text("deployment.yaml").replace("namespace: prod", f"namespace: prod{line_break}")
    with pytest.raises(Refused, match=f"U\\+{ord(line_break):04X} ends a line for some readers"):
        inject(source)
    # In JSON it is a character as any other.
    inject(json.dumps(yaml.safe_load(text("deployment.yaml"))).replace("prod", f"x{line_break}y"))


@given(st.text())
def test_our_json_is_yaml(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        return
    written = json_text(value)
    assert json.loads(written) == value
    assert yaml.safe_load(written) == value


def test_a_thousand_documents() -> None:
    many = "---\n".join(
        text("deployment.yaml").replace("namespace: prod", f"namespace: n{n % 7}")
        for n in range(1000)
    )
    result = inject(many)
    assert result.changed == 1000
    assert result.text.count("kind: ConfigMap") == 7
    assert uninject(result.text) == many
