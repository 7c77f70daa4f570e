"""Weights written by torch.save (pytorch_model.bin), read by torch's weights-only loader, which executes no code."""

from __future__ import annotations

import pickletools
import re
import warnings
import zipfile
from itertools import chain
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from maskloom.checkpoints.tensor_files import StoredTensor
from maskloom.errors import DataError
from maskloom.system.foreign_files import check_regular
from maskloom.system.resources import require_memory

# Files of torch before 1.6 begin with this number, followed by four pickles and the values; later ones are zips.
_MAGIC, _ZIP = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", b"PK\x03\x04"
_MAX_OPERATIONS = 1_000_000
_NAMES = re.compile(r"collections OrderedDict|torch\._utils _rebuild_(tensor_v2|parameter)|torch [A-Za-z0-9]+Storage")


class _RefusedError(ValueError):
    """Raised for content that does not belong in a file of tensors."""


def open_pickled(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a torch.save file by name; a zip is mapped, an older file is loaded into memory.

    torch's reader of weights executes no code, but it would unpack compressed zips and call functions that allocate any
    amount of memory, such as bytearray. So these are refused first, and then tensors larger than their values. Raises
    DataError that names the file for anything but a dictionary from names to tensors.
    """
    check_regular(path)
    require_memory(path.stat().st_size, f"{path}:", DataError)
    try:
        is_zip = _checked(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about storages that old files name
            values = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)  # may run code: weights only
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except _RefusedError as problem:
        raise DataError(f"{path}: not read: {problem}") from None
    except Exception as error:  # a damaged file may raise anything; torch adds advice to load it unchecked
        what = str(error).rpartition("WeightsUnpickler error:")[2].partition("Check the documentation")[0].strip()
        raise DataError(f"{path}: not a valid torch.save file: {what:.300}") from None
    pairs = values.items() if isinstance(values, dict) else [(None, values)]
    if not all(isinstance(name, str) and isinstance(value, Tensor) for name, value in pairs):
        held = sorted(map(str, values))[:4] if isinstance(values, dict) else type(values).__name__
        raise DataError(f"{path}: expected a dictionary from names to tensors, got {held!s:.200}")
    for name, value in values.items():
        if value.nbytes > value.untyped_storage().nbytes():
            raise DataError(f"{path}: not read: {name!r:.80} repeats its values up to the shape {tuple(value.shape)}")
    return {
        name: StoredTensor(name, tuple(value.shape), value.is_floating_point(), path, value.detach)
        for name, value in values.items()
    }


def _checked(path: Path) -> bool:
    """Tell whether a file is a zip; raises _RefusedError for content that could take any amount of memory."""
    with path.open("rb") as file:
        if (start := file.read(len(_MAGIC))) == _MAGIC:
            _check_pickles(file, 4)
            return False
    if not start.startswith(_ZIP):
        raise _RefusedError("in neither of torch.save's two formats")
    with zipfile.ZipFile(path) as archive:
        if any(part.compress_type or part.file_size != part.compress_size for part in archive.infolist()):
            raise _RefusedError("its zip is compressed; torch.save compresses nothing")
        pickles = [name for name in archive.namelist() if name.lower().endswith(".pkl")]
        if len(pickles) != 1:
            raise _RefusedError("its zip holds a pickle other than data.pkl, or none")
        with archive.open(pickles[0]) as part:
            _check_pickles(part, 1)
    return True


def _check_pickles(file: IO[bytes], number: int) -> None:
    operations = chain.from_iterable(pickletools.genops(file) for _ in range(number))
    for count, (operation, argument, _place) in enumerate(operations):
        if count > _MAX_OPERATIONS:
            raise _RefusedError("its pickle is longer than any model's")
        if operation.name in ("STACK_GLOBAL", "INST"):
            raise _RefusedError(f"its pickle imports by {operation.name}, which torch.save does not write")
        if operation.name == "GLOBAL" and not _NAMES.fullmatch(str(argument)):
            raise _RefusedError(f"its pickle imports {argument!r:.80}, which no dictionary of tensors needs")
