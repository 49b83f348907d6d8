"""How a file is packed and encoded, by its first bytes."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zipfile

import pytest
import zstandard

from hisparse_guard.cli.packed import MAGIC, unpacked, wide_encoding

TEXT = "INFO 12-04 10:00:00 [x.py:1] ready\n" * 3


@pytest.mark.parametrize(
    "pack",
    [
        gzip.compress,
        bz2.compress,
        lzma.compress,
        zstandard.compress,
        lambda data: gzip.compress(data[:50]) + gzip.compress(data[50:]),
        lambda data: zstandard.compress(data[:50]) + zstandard.compress(data[50:]),
    ],
    ids=["gzip", "bzip2", "xz", "zstd", "gzip in two", "zstd in two"],
)
def test_what_is_unpacked(pack: object) -> None:
    data = pack(TEXT.encode())  # type: ignore[operator]
    stream, still_packed = unpacked(io.BytesIO(data))
    assert (stream.read(), still_packed) == (TEXT.encode(), False)
    assert data.startswith(MAGIC)


def test_what_is_not() -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("vllm.log", TEXT)
    for data, still_packed in ((target.getvalue(), True), (TEXT.encode(), False), (b"", False)):
        stream, told = unpacked(io.BytesIO(data))
        assert (stream.read(), told, data.startswith(MAGIC)) == (data, still_packed, still_packed)


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (TEXT.encode("utf-16"), "utf-16"),
        (codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"), "utf-16"),
        (TEXT.encode("utf-16-le"), "utf-16-le"),
        (TEXT.encode("utf-16-be"), "utf-16-be"),
        (TEXT.encode("utf-32"), "utf-32"),
        ("INFO モデルを読み込み\u3000ました\n".encode("utf-16-le"), "utf-16-le"),
        (TEXT.encode(), None),
        (TEXT.encode("utf-8-sig"), None),
        (b"\0" * 4096 + TEXT.encode(), None),
        (b"", None),
        (b"\0\0", None),
    ],
    ids=str,
)
def test_encodings(data: bytes, encoding: str | None) -> None:
    assert wide_encoding(data) == encoding
    if encoding:
        assert "INFO" in data.decode(encoding)
