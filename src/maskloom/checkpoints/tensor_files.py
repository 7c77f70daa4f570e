"""Weight files that hold no code: safetensors, whole or sharded, and .npz; names and shapes are known before values."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from maskloom.config import DataError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

_MAX_JSON_BYTES = 16 * 2**20
_FLOATS = ("F64", "F32", "F16", "BF16")
_UNSAFE = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt", "*.ckpt.*", "*.h5", "*.msgpack")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file that has not been read yet. `read` returns its values."""

    name: str
    shape: tuple[int, ...]
    is_float: bool
    path: Path
    read: Callable[[], Tensor]


def open_weights(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a model folder by the name that the file gives them.

    Raises DataError when there is no weight file, when only files of kinds that can run code are there, or when a
    file's header does not hold together.
    """
    if (folder / WEIGHTS).exists():
        return _safetensors(folder / WEIGHTS)
    if (folder / INDEX).exists():
        return _sharded(folder / INDEX)
    arrays = sorted(folder.glob("*.npz"))
    if len(arrays) == 1:
        return _npz(arrays[0])
    if arrays:
        raise DataError(f"{folder}: several .npz files ({', '.join(path.name for path in arrays)}); keep one")
    unsafe = sorted(path.name for pattern in _UNSAFE for path in folder.glob(pattern))
    if unsafe:
        raise DataError(
            f"{folder / unsafe[0]}: files of this kind can run code when opened and are never read; convert it to "
            f"{WEIGHTS} where it is trusted (transformers: from_pretrained, then save_pretrained), or to .npz"
        )
    raise DataError(f"{folder}: no weights; expected {WEIGHTS}, {INDEX} or one .npz file")


def read_json(path: Path) -> Any:
    """Read a JSON file of moderate size; raises DataError that names it when it cannot be read or parsed."""
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise DataError(f"{path}: larger than {_MAX_JSON_BYTES} bytes; this is no such JSON file")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: not valid JSON: {error}") from None


def _safetensors(path: Path) -> dict[str, StoredTensor]:
    try:
        file = safe_open(path, framework="pt")
        found = {}
        for name in file.keys():  # noqa: SIM118
            header = file.get_slice(name)
            found[name] = StoredTensor(
                name,
                tuple(header.get_shape()),
                header.get_dtype() in _FLOATS,
                path,
                _safetensors_reader(file, name, path),
            )
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise DataError(f"{path}: not a whole safetensors file: {error}") from None
    return found


def _safetensors_reader(file: Any, name: str, path: Path) -> Callable[[], Tensor]:
    def read() -> Tensor:
        try:
            return file.get_tensor(name)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise DataError(f"{path}: tensor {name!r} cannot be read: {error}") from None

    return read


def _sharded(index: Path) -> dict[str, StoredTensor]:
    content = read_json(index)
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise DataError(f"{index}: no weight_map from tensor names to file names")
    found: dict[str, StoredTensor] = {}
    for file in sorted(set(places.values())):
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise DataError(f"{index}: {file!r} is not the name of a safetensors file in the same folder")
        for name, tensor in _safetensors(index.parent / file).items():
            if places.get(name) != file:
                raise DataError(f"{index}: tensor {name!r} lies in {file}, the index says {places.get(name)}")
            found[name] = tensor
    missing = sorted(set(places) - set(found))
    if missing:
        raise DataError(f"{index}: the index names {len(missing)} tensors that no file holds, such as {missing[0]!r}")
    return found


def _npz(path: Path) -> dict[str, StoredTensor]:
    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                name = member.removesuffix(".npy")
                with archive.open(member) as file:
                    version = np.lib.format.read_magic(file)
                    read_header = (
                        np.lib.format.read_array_header_1_0
                        if version == (1, 0)
                        else np.lib.format.read_array_header_2_0
                    )
                    shape, _, dtype = read_header(file)
                if dtype.hasobject:
                    raise DataError(f"{path}: array {name!r} holds Python objects; such arrays are never read")
                found[name] = StoredTensor(
                    name, tuple(shape), bool(np.issubdtype(dtype, np.floating)), path, _npz_reader(path, name)
                )
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except DataError:
        raise
    except Exception as error:
        # The zip layer, the inflater and numpy each have their own errors for a damaged member.
        raise DataError(f"{path}: not a whole .npz file: {error}") from None
    return found


def _npz_reader(path: Path, name: str) -> Callable[[], Tensor]:
    def read() -> Tensor:
        try:
            with np.load(path, allow_pickle=False) as archive:
                array = np.ascontiguousarray(archive[name])
            return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
        except Exception as error:
            raise DataError(f"{path}: array {name!r} cannot be read: {error}") from None

    return read
