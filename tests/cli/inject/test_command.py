"""The command: options, exit codes, and text of other people's that stays one value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.inject.samples import FOLDER, text
from tests.support.bundles import hisparse_guard


def test_a_file_and_standard_input_say_the_same() -> None:
    named = hisparse_guard("inject", FOLDER / "deployment.yaml")
    piped = hisparse_guard("inject", "-", stdin=text("deployment.yaml"))
    assert named.returncode == piped.returncode == 0
    assert named.stdout == piped.stdout
    line = "container vllm of Deployment/vllm: guard added, since it starts its image, vllm-openai"
    assert line in named.stderr and "sidecar" not in named.stderr


def test_the_configmap_is_the_bundles(tmp_path: Path) -> None:
    done = hisparse_guard("bundle", tmp_path / "c.yaml", "--format", "configmap")
    assert done.returncode == 0, done.stderr
    bundled = yaml.safe_load((tmp_path / "c.yaml").read_text())
    *_, added = yaml.safe_load_all(hisparse_guard("inject", FOLDER / "deployment.yaml").stdout)
    assert added["metadata"].pop("namespace") == "prod"
    assert added == bundled


def test_nothing_to_inject_is_exit_3_and_the_input() -> None:
    source = "# a service\napiVersion: v1\nkind: Service\nmetadata: {name: s}\n"
    for option in ((), ("--uninject",)):
        done = hisparse_guard("inject", *option, stdin=source)
        assert (done.returncode, done.stdout) == (3, source)
        assert "nothing to" in done.stderr


HOSTILE = [
    "/a'b",
    '/a"b',
    "/a\nkind: Secret",
    "/a\n---\nkind: Secret",
    "$(HOME)",
    "`id`$(id)",
    "{{ .Values.x }}",
    "*a &b !c # d",
    "- x: y",
    "\u2028\x85\t",
    "\U0001f600",
    "null",
]


@pytest.mark.parametrize("value", HOSTILE, ids=ascii)
@pytest.mark.parametrize("name", ["deployment.yaml", "pod.json"])
def test_a_value_stays_one_value(name: str, value: str) -> None:
    path = f"/x{value}"
    done = hisparse_guard(
        *("inject", f"--setting=EVIDENCE_DIR={value}", f"--image-pythonpath={path}"),
        stdin=text(name),
    )
    assert done.returncode == 0, done.stderr
    found = list(yaml.safe_load_all(done.stdout.replace("}\n{", "}\n---\n{")))
    assert [d["kind"] for d in found][1:] == ["ConfigMap"]
    spec: dict[str, Any] = found[0]["spec"]
    spec = spec.get("template", {"spec": spec})["spec"]
    env = {e["name"]: e["value"] for e in spec["containers"][0]["env"]}
    # As Kubernetes reads it: `$$(` is a `$(` that stands for itself.
    assert env["HISPARSE_GUARD_EVIDENCE_DIR"].replace("$$(", "$(") == value
    back = hisparse_guard("inject", "--uninject", stdin=done.stdout)
    assert back.stdout == text(name)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--setting", "MODE"], "not of the form NAME=VALUE"),
        (["--setting", "MODE=loud"], "use one of enforce"),
        (["--setting", "NOSUCH=1"], "is no setting of hisparse-guard"),
        (["--setting", "PYTHONPATH=/x"], "is no setting of hisparse-guard"),
        (["--setting", "MODE=off", "--setting", "HISPARSE_GUARD_MODE=off"], "given twice"),
        (["--evidence", "--setting", "EVIDENCE_DIR=/x"], "--evidence sets"),
        (["--selector", "a in (b)"], "--selector"),
        (["--uninject", "--evidence"], "goes with no other option"),
        (["/no/such/file"], "No such file"),
    ],
)
def test_wrong_usage_is_one_line(words: list[str], says: str) -> None:
    done = hisparse_guard("inject", *words, stdin=text("deployment.yaml"))
    assert (done.returncode, done.stdout) == (2, ""), done
    assert says in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_names_do_not_reach_the_terminal_raw() -> None:
    source = (
        'apiVersion: v1\nkind: "Po\\e[2Jd"\nmetadata: {name: "a\\nb"}\n'
        'spec: {containers: [{name: "x\\e[1m", image: vllm/vllm-openai}]}\n'
    )
    done = hisparse_guard("inject", stdin=source)
    assert done.returncode == 0, done
    assert "\x1b" not in done.stderr and "a\nb" not in done.stderr
