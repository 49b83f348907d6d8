"""An injected Deployment, run as a kubelet would: real vLLM serves from it, guarded."""

from __future__ import annotations

import base64
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.server.test_server import EXTENSION, rpc
from tests.support.bundles import hisparse_guard
from tests.support.environments import server_python
from tests.support.server import serve

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("server")]

MANIFEST = f"""\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: vllm}}
spec:
  selector: {{matchLabels: {{app: vllm}}}}
  template:
    metadata: {{labels: {{app: vllm}}}}
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.33.0
        command: [vllm, serve, /model]
        args: [--worker-extension-cls, probe_extension.Probe]
        env:
        - name: EXTENSIONS  # of the workers
          value: {json.dumps(str(EXTENSION))}
        - name: PYTHONPATH
          value: $(EXTENSIONS)
        - name: VLLM_SERVER_DEV_MODE
          value: "1"
"""


class Kubelet:
    """What a kubelet makes of a container's volumes and variables, in a folder.

    There is no mount here, so a path below a mount is looked for in the folder that stands for it.
    """

    def __init__(self, text: str, root: Path) -> None:
        objects = {item["kind"]: item for item in yaml.safe_load_all(text)}
        self.configmap = objects["ConfigMap"]
        self.spec: dict[str, Any] = objects["Deployment"]["spec"]["template"]["spec"]
        (self.container,) = self.spec["containers"]
        self.root = root
        self.mounts = {m["mountPath"]: self._mounted(m) for m in self.container["volumeMounts"]}

    def _mounted(self, mount: dict[str, Any]) -> Path:
        (volume,) = (v for v in self.spec["volumes"] if v["name"] == mount["name"])
        folder = self.root / mount["name"]
        folder.mkdir()
        if "emptyDir" in volume:
            folder.chmod(0o777)
            return folder
        assert volume["configMap"]["name"] == self.configmap["metadata"]["name"]
        # Files are links through `..data`, which is itself one, so that all change at once.
        data = folder / "..2026_01_01"
        data.mkdir()
        (folder / "..data").symlink_to(data.name)
        for key, value in self.configmap["binaryData"].items():
            (data / key).write_bytes(base64.b64decode(value, validate=True))
            (data / key).chmod(volume["configMap"]["defaultMode"])
            (folder / key).symlink_to(f"..data/{key}")
        assert mount["readOnly"] is True
        data.chmod(0o555)
        folder.chmod(0o555)
        return folder

    def environment(self) -> dict[str, str]:
        """The variables in their order, each with references to those before it replaced."""
        found: dict[str, str] = {}
        for entry in self.container["env"]:
            value = re.sub(
                r"\$\$|\$\(([\w.-]+)\)",
                lambda match: "$" if match[0] == "$$" else found.get(match[1], match[0]),
                entry["value"],
            )
            found[entry["name"]] = value
        for path, folder in self.mounts.items():
            found = {name: value.replace(path, str(folder)) for name, value in found.items()}
        return found


def test_a_real_server_from_an_injected_deployment(tmp_path: Path) -> None:
    done = hisparse_guard("inject", "--evidence", stdin=MANIFEST)
    assert done.returncode == 0, done.stderr
    kubelet = Kubelet(done.stdout, tmp_path)
    assert kubelet.container["command"] == ["vllm", "serve", "/model"]
    environment = kubelet.environment()
    entry, extension = environment["PYTHONPATH"].split(os.pathsep)
    assert extension == str(EXTENSION)

    with serve(
        server_python(),
        log=tmp_path / "server.log",
        env=environment,
        extra_args=kubelet.container["args"],
    ) as server:
        workers = rpc(server, "lazy_workspace")
    assert [worker["guard"] for worker in workers] == [f"{entry}/hisparse_guard/__init__.py"] * 2
    assert [worker["backend"] for worker in workers] == ["trtllm", "trtllm"]

    evidence = Path(environment["HISPARSE_GUARD_EVIDENCE_DIR"])
    assert evidence.parent == kubelet.mounts["/var/run/hisparse-guard"]
    lines = [json.loads(line) for f in evidence.iterdir() for line in f.read_text().splitlines()]
    verified = {
        line["rank"]
        for line in lines
        if line["event"] == "workspace"
        and line["state"] == "verified"
        and line["backend"] == "trtllm"
    }
    assert verified == {0, 1}, lines
