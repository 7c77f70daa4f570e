"""Read plain, gzip and Zstandard files alike."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zstandard

from maskloom.errors import DataError

COMPRESSIONS = (".gz", ".zst")
_BLOCK = 1 << 20
# Four bytes of Zstandard can expand to 128 KiB, so a slice decompresses to at most 32 MiB.
_SLICE = 1024


@contextmanager
def reading_errors(path: Path) -> Iterator[None]:
    """Convert errors from reading or decompressing `path` into a DataError that names the file."""
    try:
        yield
    except EOFError:
        raise DataError(f"{path}: the compressed file is truncated") from None
    except (gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
        raise DataError(f"{path}: not a valid {path.suffix} file: {error}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


@contextmanager
def opened(path: Path) -> Iterator[tuple[io.BufferedReader, io.FileIO]]:
    """Open a file, whose suffix determines the compression: a buffered reader of the content, and the file itself."""
    suffix = path.suffix.lower()
    if suffix in COMPRESSIONS and not path.stat().st_size:
        raise EOFError
    with io.FileIO(path) as raw:
        source: Any = raw
        if suffix == ".gz":
            source = gzip.GzipFile(fileobj=raw, mode="rb")
        elif suffix == ".zst":
            source = _ZstandardReader(raw)
        with io.BufferedReader(source, _BLOCK) as content:
            yield content, raw


class _ZstandardReader(io.RawIOBase):
    """Reads consecutive Zstandard frames; unlike the library's own reader, it detects a truncated frame."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._pieces, self._left = _decompressed(raw), memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not self._left:
            self._left = memoryview(next(filter(None, self._pieces), b""))
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size


def _decompressed(raw: io.RawIOBase) -> Iterator[bytes]:
    frame = None
    while compressed := memoryview(raw.read(_BLOCK // 8) or b""):
        while compressed:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            part = compressed[:_SLICE]
            yield frame.decompress(part)
            compressed = compressed[len(part) - len(frame.unused_data) :]
            frame = None if frame.eof else frame
    if frame:
        raise EOFError
