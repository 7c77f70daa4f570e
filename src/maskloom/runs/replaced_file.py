"""A file that takes its name only when it is complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replaced_file(path: Path, mode: str = "w", *, newline: str | None = None) -> Iterator[Any]:
    """Open a temporary file beside `path`; at the end it is synced and renamed, on an error it is removed."""
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    encoding = None if "b" in mode else "utf-8"
    try:
        with temporary.open(mode, encoding=encoding, newline=newline) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
