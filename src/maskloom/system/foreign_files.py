"""Reading files from others: only regular files of limited size inside their folder, and bounded JSON."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from maskloom.errors import ConfigError, DataError
from maskloom.system.files import file_sha256, numbered_folders

MAX_JSON_BYTES = 16 << 20
"""16 MiB: a configuration, an index or a manifest is thousands of times smaller."""

ValueT = TypeVar("ValueT")
_PIECE = 1 << 20
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# A snapshot in the Hugging Face cache consists of links to files outside it:
# REPO/snapshots/REVISION/x -> REPO/blobs/y.
_SNAPSHOTS = "snapshots"


def why_unreadable(path: str | Path) -> str | None:
    """Return why not to open a path, or None for a regular file or a link to one; pipes and devices may never end."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    except ValueError:
        return "cannot be read: its name contains a NUL character"
    return None if stat.S_ISREG(mode) else f"is {_KINDS.get(stat.S_IFMT(mode), 'not a file')}; expected a regular file"


def check_regular(path: str | Path) -> None:
    """Raise DataError naming the path unless it is a regular file or a link to one."""
    if problem := why_unreadable(path):
        raise DataError(f"{path}: {problem}")


def why_changed(path: Path, num_bytes: int, sha256: str | None) -> str | None:
    """Return how a file differs from its manifest entry in size or, if given, SHA-256; None if it does not."""
    try:
        if problem := why_unreadable(path):
            return problem
        if (size := path.stat().st_size) != num_bytes:
            return f"has {size:,} bytes instead of {num_bytes:,}"
        return "its SHA-256 differs from the manifest's" if sha256 is not None and file_sha256(path) != sha256 else None
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def check_name(path: str | Path) -> None:
    """Raise DataError for a path that is not UTF-8: neither our files nor messages could contain it."""
    whole = os.path.abspath(path)
    if not is_utf8(whole):
        raise DataError(f"{shown_name(whole)}: the name is not UTF-8; rename it")


def is_utf8(text: str) -> bool:
    """Tell whether UTF-8 can encode a text: it has no lone surrogates, which JSON and file names may contain."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def shown_name(path: str) -> str:
    """Return a path as valid UTF-8, with undecodable bytes as \\x and two digits."""
    try:
        return os.fsencode(path).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a lone surrogate that stands for no byte
        return path.encode("utf-8", "backslashreplace").decode("utf-8")


def check_path(name: str, path: Any) -> None:
    """Raise ConfigError for an argument that is not a path, and DataError for a name that is not UTF-8."""
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"{name}: expected a path, as a str or Path, got {type(path).__name__}")
    check_name(Path(path))


def check_model_name(path: Any) -> None:
    """Raise DataError for a value that is not a path, and for a path that does not exist, such as a hub name."""
    if not isinstance(path, str | os.PathLike):
        raise DataError(f"expected a model folder, got {type(path).__name__}")
    path = Path(path)
    if path.exists():
        return
    message = "there is no such folder; expected a model folder in Hugging Face layout or a run"
    if not path.is_absolute() and len(path.parts) <= 2 and not str(path).startswith("."):
        message += (
            "; nothing is downloaded: for a model from a hub, put its files (config.json, model.safetensors, "
            "vocab.txt or tokenizer.json) into a folder and give that"
        )
    raise DataError(f"{shown_name(str(path))}: {message}")


def restart_models(run: str | Path) -> list[Path]:
    """Return the model folders of the restarts that a fine-tuning run kept, by seed; raises ConfigError without any."""
    models = (seed / "model" for seed in numbered_folders(Path(run) / "restarts", "seed"))
    found = [path for path in models if (path / "config.json").is_file()]
    if not found:
        raise ConfigError(f"{run}: contains no models of restarts; fine-tune with --restarts N --keep-restarts")
    return found


def file_inside(folder: Path, name: str) -> Path | None:
    """Return the path of a file in a folder, or None if there is none of that name.

    Raises DataError if it is not a regular file, and for a link that leads out of the folder: its author would choose
    which file of this machine is read. Links between parts of a model in the Hugging Face cache count as inside.
    """
    path = folder / name
    if not os.path.lexists(path):  # also False for a name that is too long
        return None
    check_regular(path)
    if not path.is_symlink():
        return path
    home = folder.resolve()
    inside = next((above.parent for above in home.parents[:2] if above.name == _SNAPSHOTS), home)
    target = path.resolve()
    if not target.is_relative_to(inside):
        raise DataError(f"{path}: is a link to {target}, outside the folder; replace it with a copy of the file")
    return path


def read_bytes(path: str | Path, *, limit: int) -> bytes:
    """Return the content of a regular file; raises DataError naming it, also if it is larger than `limit`."""
    check_regular(path)
    content = bytearray()
    try:
        with open(path, "rb") as file:
            # in pieces: a single read would allocate the whole limit before knowing the size
            while len(content) <= limit and (piece := file.read(min(limit + 1 - len(content), _PIECE))):
                content += piece
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(content) > limit:
        raise DataError(f"{path}: larger than {limit:,} bytes, the limit for such a file")
    return bytes(content)


def parse_json(content: bytes | str, place: str, *, objects: Callable[[list[tuple[str, Any]]], Any] = dict) -> Any:
    """Return the value of UTF-8 JSON text; raises DataError that names the text as `place` for anything else.

    `objects` converts the keys and values of an object; a dictionary keeps only the last value of a repeated key.
    """
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        return json.loads(text, object_pairs_hook=None if objects is dict else objects)
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: byte {error.start + 1} is not UTF-8; JSON is UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise DataError(f"{place}: line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}") from None
    except RecursionError:
        raise DataError(f"{place}: not valid JSON: nested too deeply") from None
    except ValueError:
        raise DataError(f"{place}: not valid JSON: a number has too many digits") from None


def read_json(path: str | Path, *, limit: int = MAX_JSON_BYTES) -> Any:
    """Read a JSON file of at most `limit` bytes; raises DataError with its name, line and column."""
    return parse_json(read_bytes(path, limit=limit), str(path))


def read_json_object(path: str | Path, *, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Read a JSON file that holds an object; raises DataError naming the file for anything else."""
    values = read_json(path, limit=limit)
    if not isinstance(values, dict):
        raise DataError(f"{path}: expected a JSON object, got {type(values).__name__}")
    return values


def read_object_inside(folder: Path, name: str, *, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Return the object in a JSON file of a folder, or an empty one if there is no such file."""
    path = file_inside(folder, name)
    return {} if path is None else read_json_object(path, limit=limit)


def read_json_value(path: str | Path, key: str, kind: type[ValueT]) -> ValueT:
    """Return a value from the JSON object in a file; raises DataError naming the file if it is of another type."""
    value = read_json_object(path).get(key)
    if not isinstance(value, kind):
        raise DataError(f"{path}: the file is damaged: {key!r} is {value!r:.80}, expected {kind.__name__}")
    return value
