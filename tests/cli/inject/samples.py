"""The manifests in tests/data/manifests, and inject and uninject as functions on text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hisparse_guard.cli.inject import stream
from hisparse_guard.cli.inject.pythonpath_and_mounts import Guard
from hisparse_guard.cli.inject.stream import Choice, Result

FOLDER = Path(__file__).parents[2] / "data" / "manifests"
# What cannot be edited in place, by design.
REFUSED = {"merge-keys.yaml"}
NAMES = sorted(path.name for path in FOLDER.iterdir() if path.name not in REFUSED)

MOUNT = "/opt/hisparse-guard"
ENTRY = f"{MOUNT}/hisparse-guard-9.9.9.zip"
CONFIGMAP = "hisparse-guard-0123456789ab"


def text(name: str) -> str:
    return (FOLDER / name).read_bytes().decode().removeprefix("\ufeff")


def configmap(namespace: str | None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": CONFIGMAP}
    if namespace:
        metadata["namespace"] = namespace
    metadata["labels"] = {"app.kubernetes.io/name": "hisparse-guard"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True}


def guard(**changes: Any) -> Guard:
    values: dict[str, Any] = {
        "configmap": CONFIGMAP,
        "mount": MOUNT,
        "entry": ENTRY,
        "settings": {},
        **changes,
    }
    return Guard(**values)


def inject(source: str, choice: Choice = Choice(), **changes: Any) -> Result:  # noqa: B008
    return stream.inject(source, guard(**changes), configmap, choice)


def uninject(source: str) -> str:
    return stream.uninject(source).text
