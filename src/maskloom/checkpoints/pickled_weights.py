"""Weights written by torch.save (pytorch_model.bin): a pickle, loaded only after every operation in it is checked."""

from __future__ import annotations

import pickletools
import warnings
import zipfile
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from maskloom.checkpoints.safetensors_format import MAX_TENSORS
from maskloom.checkpoints.tensor_files import StoredTensor
from maskloom.errors import DataError
from maskloom.system.foreign_files import check_regular
from maskloom.system.resources import require_memory

_MAX_PICKLE_BYTES, _MAX_OPERATIONS = 64 << 20, 1_000_000
# Files of torch before 1.6 begin with this number, followed by four pickles and the values.
_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_NUM_PICKLES = 5
# Everything in a dictionary of tensors: names, integers, containers, and the three calls below.
_OPERATIONS = {
    *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1"),
    *("BINUNICODE", "SHORT_BINUNICODE", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2"),
    *("TUPLE3", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
    *("MEMOIZE", "GLOBAL", "BINPERSID", "REDUCE", "BUILD"),
}
_KINDS = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
_GLOBALS = {
    *("collections OrderedDict", "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter"),
    *(f"torch {kind}Storage" for kind in _KINDS),
}


class _RefusedError(ValueError):
    """Raised for content that does not belong in a file of tensors."""


def open_pickled(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a torch.save file by name, all loaded into memory.

    First, every operation of its pickles is checked against a short allowlist: they may only build dictionaries of
    tensors, and no number may exceed the file's size; the members of a zip must be uncompressed. Only then does torch
    load the same open file, with `weights_only`. Raises DataError that names the file for anything else.
    """
    check_regular(path)
    require_memory(path.stat().st_size, f"{path}:", DataError)
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            _check(file, size)
            file.seek(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns about storages that old files name
                values = torch.load(file, map_location="cpu", weights_only=True)  # may run code: not after _check
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except _RefusedError as problem:
        raise DataError(f"{path}: not read: {problem}") from None
    except Exception as error:  # a damaged file may raise anything
        raise DataError(f"{path}: not a valid torch.save file: {error!s:.300}") from None
    pairs = values.items() if isinstance(values, dict) else [(None, values)]
    if not all(isinstance(name, str) and isinstance(value, Tensor) for name, value in pairs):
        held = sorted(map(str, values))[:4] if isinstance(values, dict) else type(values).__name__
        raise DataError(f"{path}: expected a dictionary from names to tensors, got {held!s:.200}")
    return {
        name: StoredTensor(name, tuple(value.shape), value.is_floating_point(), path, value.detach)
        for name, value in values.items()
    }


def _check(file: IO[bytes], size: int) -> None:
    file.seek(0)
    if file.read(len(_MAGIC)) == _MAGIC:
        for _ in range(_NUM_PICKLES - 1):
            _check_pickle(file, size)
        return
    if not zipfile.is_zipfile(file):
        raise _RefusedError("in neither of torch.save's two formats")
    with zipfile.ZipFile(file) as archive:
        parts = archive.infolist()
        if len({part.filename for part in parts}) != len(parts) or len(parts) > 2 * MAX_TENSORS:
            raise _RefusedError("its zip holds a name twice, or too many files")
        if any(part.compress_type != zipfile.ZIP_STORED or part.file_size != part.compress_size for part in parts):
            raise _RefusedError("its zip is compressed; torch.save compresses nothing")
        if sum(part.file_size for part in parts) > size:
            raise _RefusedError("the parts of its zip overlap")
        pickles = [part for part in parts if part.filename.endswith(".pkl")]
        if [part.filename.count("/") for part in pickles] != [1] or not pickles[0].filename.endswith("/data.pkl"):
            raise _RefusedError("its zip holds a pickle other than data.pkl, or none")
        with archive.open(pickles[0]) as part:
            _check_pickle(part, size)


def _check_pickle(file: IO[bytes], size: int) -> None:
    """Raise _RefusedError for a pickle that does more than build dictionaries of tensors; none of it is executed."""
    start = file.tell()
    for count, (operation, argument, _place) in enumerate(pickletools.genops(file)):
        if count > _MAX_OPERATIONS or file.tell() - start > _MAX_PICKLE_BYTES:
            raise _RefusedError("its pickle is longer than any model's")
        if operation.name not in _OPERATIONS:
            raise _RefusedError(f"its pickle does more than hold tensors ({operation.name}), so it could run code")
        if operation.name == "GLOBAL" and argument not in _GLOBALS:
            raise _RefusedError(f"its pickle imports {argument!r:.80}, so it could run code")
        if isinstance(argument, int) and not -1 <= argument <= max(size, 4096):
            raise _RefusedError(f"its pickle holds the number {argument!r:.40}, beyond the size of the file")
