"""What the first bytes of a file say, whatever its name: how it is packed, and its encoding."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from typing import IO, Any, cast

import zstandard


def _zstd(stream: Any) -> Any:
    reader = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
    return io.BufferedReader(cast(Any, reader))


_UNPACKERS: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": _zstd,
}
# zip, 7z and lz4.
_NOT_UNPACKED = (b"PK\x03\x04", b"7z\xbc\xaf", b"\x04\x22\x4d\x18")
# How a packed file begins.
MAGIC = (*_UNPACKERS, *_NOT_UNPACKED)
# What reading a damaged one raises.
DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError)


def unpacked(stream: IO[bytes]) -> tuple[IO[bytes], bool]:
    """The content of gzip, bzip2, xz or zstd; else the stream, and True if that is packed too."""
    buffered: Any = stream if hasattr(stream, "peek") else io.BufferedReader(cast(Any, stream))
    start = buffered.peek(6)[:6]
    for magic, unpacker in _UNPACKERS.items():
        if start.startswith(magic):
            return cast(IO[bytes], unpacker(buffered)), False
    return cast(IO[bytes], buffered), start.startswith(_NOT_UNPACKED)


def wide_encoding(start: bytes) -> str | None:
    """UTF-32 or UTF-16 by its mark, UTF-16 also by its zeros; None for anything else.

    Args:
        start: the first bytes of a text; of 4 KiB at most the zeros are counted.
    """
    if start.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    sample = start[:4096]
    if len(sample) < 8:
        return None
    zeros = {"utf-16-be": sample[::2].count(0), "utf-16-le": sample[1::2].count(0)}
    least, most = sorted(zeros, key=lambda name: zeros[name])
    # A log that was truncated while it was written begins with zeros in every place.
    return most if zeros[most] > len(sample) // 8 and zeros[least] < zeros[most] / 4 else None
