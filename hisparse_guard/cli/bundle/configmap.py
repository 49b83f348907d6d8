"""The ConfigMap that carries the guard's zip into a pod."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from hisparse_guard import __version__
from hisparse_guard.cli.bundle.build import Unbundled

# Kubernetes refuses a ConfigMap whose values are larger than this in all.
LIMIT = 1024 * 1024
MOUNT = "/opt/hisparse-guard"
KEY = f"hisparse-guard-{__version__}.zip"
# What to put on PYTHONPATH where the ConfigMap is mounted at MOUNT.
ENTRY = f"{MOUNT}/{KEY}"


def configmap(zipped: bytes, namespace: str | None = None) -> dict[str, Any]:
    """The ConfigMap with the zip.

    Its name holds the digest of what is in it and it is immutable: Kubernetes would otherwise
    replace the zip under running processes, whose later imports then fail. An update has another
    name, and so rolls out.

    Raises:
        Unbundled: larger than Kubernetes takes.
    """
    if len(base64.b64encode(zipped)) > LIMIT:
        raise Unbundled(
            f"{len(zipped)} bytes do not fit into a ConfigMap, which takes {LIMIT} as base64; "
            "use --format zip and a volume"
        )
    digest = hashlib.sha256(zipped).hexdigest()
    metadata: dict[str, Any] = {"name": f"hisparse-guard-{digest[:12]}"}
    if namespace is not None:
        metadata["namespace"] = namespace
    metadata["labels"] = {
        "app.kubernetes.io/name": "hisparse-guard",
        "app.kubernetes.io/version": __version__,
    }
    metadata["annotations"] = {"hisparse-guard/sha256": digest}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "immutable": True,
        "binaryData": {KEY: base64.b64encode(zipped).decode()},
    }
