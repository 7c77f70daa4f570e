"""The manifest of a checkpoint folder: written last, it says what every file has to be, and that it is itself whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from maskloom.errors import DataError
from maskloom.files import write_hashed
from maskloom.foreign_files import check_regular, why_unreadable

MANIFEST = "manifest.json"
# Version 1 had no sum of itself and no facts beyond the step and the files.
FORMAT_VERSION = 2
_KEYS_OF_VERSION_1 = {"format_version", "step", "files"}


def write_manifest(
    folder: Path,
    *,
    step: int,
    files: dict[str, dict[str, Any]],
    facts: dict[str, Any],
    before_chunk: Callable[[], None] | None = None,
) -> None:
    """Write the manifest of a folder whose files are all there and synced.

    `files` holds `bytes` and `sha256` of each by its name, `facts` is what else a reader may want to know.
    """
    content = {"format_version": FORMAT_VERSION, "step": step, **facts, "files": files}
    write_hashed(folder / MANIFEST, [_as_bytes({**content, "sha256": _sum_of(content)})], before_chunk=before_chunk)


def whole_manifest(folder: Path, required: Collection[str]) -> dict[str, Any]:
    """Return the manifest of a folder after comparing it with itself and with every file that it names.

    `required` are files that it must name. Raises DataError that names the first file that is missing, cut short or
    changed, a newer format by its number, and a folder whose name tells of another step.
    """
    manifest = _read(folder / MANIFEST)
    files = manifest["files"]
    for name in sorted({*required, *files}):
        described = files.get(name)
        if described is None or Path(name).name != name:
            raise DataError(f"{folder / MANIFEST}: not a checkpoint manifest: {name!r} is not among its files")
        try:
            problem = _difference(folder / name, described)
        except OSError as error:
            raise DataError(f"{folder / name}: {error.strerror}") from None
        if problem:
            raise DataError(f"{folder / name}: {problem}")
    number = folder.name.removeprefix("step-").partition(".")[0]
    if number.isdigit() and int(number) != manifest["step"]:
        raise DataError(f"{folder}: its manifest is of step {manifest['step']}: the folder was renamed or swapped")
    return manifest


def _read(path: Path) -> dict[str, Any]:
    """Return a manifest that is in order by itself."""
    try:
        if path.exists():
            check_regular(path)
        content = path.read_bytes()
        manifest = json.loads(content)
        version, rest = manifest["format_version"], {k: v for k, v in manifest.items() if k != "sha256"}
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise DataError(
                f"{path.parent}: format version {version}; this program reads versions 1 to {FORMAT_VERSION}: "
                "a newer one wrote it"
            )
        if version == 1:
            is_sound = set(manifest) == _KEYS_OF_VERSION_1
        else:
            # the very bytes count, so that no changed blank or capital passes either
            is_sound = (
                version == FORMAT_VERSION and manifest["sha256"] == _sum_of(rest) and content == _as_bytes(manifest)
            )
        is_sound = is_sound and isinstance(manifest["step"], int) and isinstance(manifest["files"], dict)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: not a checkpoint manifest") from None
    if not is_sound:
        raise DataError(f"{path}: damaged: it does not agree with its own SHA-256")
    return manifest


def _difference(path: Path, described: Any) -> str | None:
    if path.exists() and (problem := why_unreadable(path)):
        return problem
    size = path.stat().st_size
    expected = described.get("bytes") if isinstance(described, dict) else None
    if size != expected:
        return f"{size:,} bytes, the manifest says {expected!r}"
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return None if digest == described.get("sha256") else "its SHA-256 differs from the manifest's"


def _as_bytes(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, indent=1).encode()


def _sum_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(_as_bytes(content)).hexdigest()
