"""The manifest of a corpus folder: its contents, how it was built, and checksums that verify every file."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from maskloom.errors import DataError
from maskloom.system.files import file_sha256, write_json
from maskloom.system.foreign_files import check_regular, parse_json, read_bytes, why_changed

FORMAT = "maskloom corpus"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"

SHARD_FOLDER = "shards"
SENTENCE_LENGTHS = "sentence_lengths.bin"
SENTENCE_OFFSETS = "sentence_offsets.bin"
DOCUMENT_OFFSETS = "document_offsets.bin"
_NUM_NAMED = 10
# the manifest has a line for each source file and shard
_MAX_MANIFEST_BYTES = 1 << 28
_TOKEN_BYTES = {"<u2": 2, "<u4": 4}
_LEFT_OUT = ("num_skipped_documents", "num_ignored_files", "num_duplicate_documents", "num_empty_documents")


def shard_name(number: int) -> str:
    """Return the path of a token shard relative to the corpus folder."""
    return f"{SHARD_FOLDER}/{number:05d}.tokens"


def file_sum(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal; raises DataError if it is not a regular file."""
    check_regular(path)
    return file_sha256(path)


def describe_file(path: Path, sha256: str | None = None) -> dict[str, Any]:
    """Return the size and the SHA-256 of a file, which is computed unless it is given."""
    return {"num_bytes": path.stat().st_size, "sha256": sha256 or file_sum(path)}


def write_manifest(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Write the manifest atomically, with a checksum of itself, and return its content."""
    content = {"format": FORMAT, "format_version": FORMAT_VERSION, **content}
    content["checksum"] = _own_checksum(content)
    write_json(folder / MANIFEST, content)
    return content


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the validated manifest of a corpus; raises DataError if it is missing, damaged or in a newer format."""
    path = folder / MANIFEST
    if not path.exists():
        why = f"no {MANIFEST}, so it is not a corpus; `maskloom corpus build` makes one"
        if (folder / SHARD_FOLDER).is_dir():
            why = "the corpus is unfinished; run the same build again to continue where it stopped"
        raise DataError(f"{folder}: {why if folder.exists() else 'no such folder'}")
    read = read_bytes(path, limit=_MAX_MANIFEST_BYTES)
    try:
        content = parse_json(read, str(path))
    except DataError as error:
        raise DataError(f"{error}; the corpus is damaged: copy it again, or build it again") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError(f"{path}: not the manifest of a maskloom corpus")
    version = content.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise DataError(
            f"{path}: format version {version}, but this maskloom reads versions up to {FORMAT_VERSION}; "
            "upgrade maskloom or build the corpus again"
        )
    if content.get("checksum") != _own_checksum(content):
        raise DataError(f"{path}: damaged: its checksum does not match its content; build the corpus again")
    try:
        is_sound = _is_sound(content)
    except (KeyError, TypeError, AttributeError):
        is_sound = False
    if not is_sound:
        raise DataError(f"{path}: its parts are inconsistent, so maskloom did not write it; build the corpus again")
    return content


def check_files(folder: Path, manifest: dict[str, Any], *, sums: bool) -> None:
    """Compare every file of a corpus with the manifest: its size and, with `sums`, its SHA-256.

    Raises DataError, naming the files that are missing, truncated or changed.
    """

    def problem(item: tuple[str, dict[str, Any]]) -> str | None:
        name, expected = item
        why = why_changed(folder / name, expected["num_bytes"], expected["sha256"] if sums else None)
        return why and f"{name}: {why}"

    # hashing releases the GIL, so several files are read in parallel
    with ThreadPoolExecutor(4) as threads:
        problems = [found for found in threads.map(problem, manifest["files"].items()) if found]
    if problems:
        more = f" and {len(problems) - _NUM_NAMED} more" if len(problems) > _NUM_NAMED else ""
        raise DataError(
            f"{folder}: the corpus is damaged: {'; '.join(problems[:_NUM_NAMED])}{more}; "
            "copy it again, or remove the folder and build it again"
        )


def _own_checksum(content: dict[str, Any]) -> str:
    rest = {name: value for name, value in content.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, ensure_ascii=False).encode("utf-8", "replace")).hexdigest()


def _is_sound(content: dict[str, Any]) -> bool:
    """Return whether everything that readers rely on is present; missing or ill-typed values may raise instead."""
    files, shards = content["files"], content["shards"]
    names = [PurePosixPath(name) for name in files]
    counts = [content[name] for name in ("num_documents", "num_sentences", "num_tokens", *_LEFT_OUT)]
    counts += [shard["num_tokens"] for shard in shards] + [entry["num_bytes"] for entry in files.values()]
    width = _TOKEN_BYTES[content["token_type"]]
    return (
        all(type(count) is int and count >= 0 for count in counts)
        and min(counts[:3]) > 0
        and all(isinstance(source["name"], str) for source in content["sources"])
        and all(isinstance(entry["sha256"], str) for entry in files.values())
        and isinstance(content["settings"]["vocabulary_sha256"], str)
        and isinstance(content["sources"], list)
        and not any(name.is_absolute() or ".." in name.parts for name in names)
        and {SENTENCE_LENGTHS, SENTENCE_OFFSETS, DOCUMENT_OFFSETS, "tokenizer_config.json"} <= files.keys()
        and all(files[shard["file"]]["num_bytes"] == width * shard["num_tokens"] for shard in shards)
        and sum(shard["num_tokens"] for shard in shards) == content["num_tokens"]
    )
