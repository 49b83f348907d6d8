"""Real FlashInfer releases: of each wheel only what the tests look at."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

from tests.support import environments, fetching

KERNEL = "flashinfer/data/include/flashinfer/comm/trtllm_mnnvl_allreduce.cuh"
RELEASES = (
    "0.6.10",
    "0.6.12",
    "0.6.13",
    "0.6.18.post1",
    "0.7.0.post1",
    "0.7.2.post1",
    "0.7.4",
)
# All that the tests look at: the release, and whether with its modules.
ALL = (*((version, False) for version in RELEASES), ("0.7.4", True))


def home(version: str, importable: bool) -> Path:
    name = f"{version}-python" if importable else version
    return environments.cache_root() / "flashinfer" / name


def release(version: str, *, importable: bool = False) -> Path:
    """A folder with the release's mnnvl all-reduce kernel, as source, and its metadata.

    Args:
        importable: with its Python modules too, so that it can be put on ``sys.path``.
    """
    target = home(version, importable)
    with environments._locked(f"flashinfer-{target.name}"):
        if target.exists():
            return target
        target.parent.mkdir(exist_ok=True)
        # A checkout's own environment may have no pip (uv makes them so).
        python = environments.venv("download", "")
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            environments._run(
                f"FlashInfer {version}",
                *(python, "-m", "pip", "download", "-q", "--no-deps"),
                *("--only-binary", ":all:", "-d", scratch, f"flashinfer-python=={version}"),
            )
            (wheel,) = Path(scratch).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive, fetching.whole(target) as partial:
                for member in archive.namelist():
                    module = importable and member.endswith(".py")
                    if member == KERNEL or ".dist-info/" in member or module:
                        archive.extract(member, partial)
    return target
