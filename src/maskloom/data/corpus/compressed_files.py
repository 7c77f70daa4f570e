"""Read plain, gzip and Zstandard files through one byte-stream interface."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zstandard

from maskloom.errors import DataError
from maskloom.system.foreign_files import check_regular

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


class _SummedFile(io.RawIOBase):
    """A file that computes its SHA-256 as it is read; raises DataError if it grows in the meantime."""

    def __init__(self, path: Path) -> None:
        self._raw = io.FileIO(path)
        self._size = os.fstat(self._raw.fileno()).st_size
        self.sum = hashlib.sha256()
        self.position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        size = self._raw.readinto(buffer) or 0
        self.sum.update(memoryview(buffer)[:size])
        self.position += size
        if self.position > self._size:
            raise DataError(f"{self._raw.name}: grew while being read; run again once nothing writes to it any more")
        return size

    def close(self) -> None:
        self._raw.close()
        super().close()


class ByteStream:
    """A buffered reader `lines` of a decompressed file; `raw` has the file's byte `position` and SHA-256 `sum`."""

    def __init__(self, path: Path) -> None:
        """Open the file; its suffix determines the compression. Raises DataError if it is not a regular file."""
        check_regular(path)
        suffix = path.suffix.lower()
        if suffix in COMPRESSIONS and not path.stat().st_size:
            raise EOFError
        self.raw = _SummedFile(path)
        source: Any = self.raw
        if suffix == ".gz":
            source = gzip.GzipFile(fileobj=self.raw, mode="rb")
        elif suffix == ".zst":
            source = _ZstandardReader(self.raw)
        self.lines = io.BufferedReader(source, _BLOCK)

    def close(self) -> None:
        """Close the stream and the file."""
        self.lines.close()
        self.raw.close()


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
