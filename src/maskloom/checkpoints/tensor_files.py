"""Weight files without code: safetensors, whole or sharded; names and shapes are read before values.

Also writing them, piece by piece.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from maskloom.errors import DataError, amount
from maskloom.system.foreign_files import file_inside, read_json_object

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = "pytorch_model.bin"
MAX_TENSORS = 20_000
"""The largest number of tensors in one safetensors file."""

_MAX_HEADER_BYTES, _MAX_DIMENSIONS = 16 << 20, 16
# The memory that JSON takes depends more on its number of parts than on its length; a tensor has about twelve.
_MAX_PARTS = 20 * MAX_TENSORS
_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_FLOATS = ("F64", "F32", "F16", "BF16")
# Pickles in various forms, programs (.pt2), and formats that this program cannot read.
_UNSAFE = (
    *("*.bin", "*.pt", "*.pth", "*.pt2", "*.pkl", "*.pickle", "*.joblib", "*.ckpt", "*.ckpt.*", "*.h5", "*.msgpack"),
    *("*.npy", "*.npz", "*.distcp", ".metadata", "*.pdparams"),
)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file that has not been read yet; `read` returns its values."""

    name: str
    shape: tuple[int, ...]
    is_float: bool
    path: Path
    read: Callable[[], Tensor]


def open_weights(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a model folder by name; raises DataError for no weights, unsafe ones or a broken header."""
    if (whole := file_inside(folder, WEIGHTS)) is not None:
        return _safetensors(whole)
    if (index := file_inside(folder, INDEX)) is not None:
        return _sharded(index)
    refuse_unconverted(folder)
    raise DataError(
        f"{folder}: no weights; {_held_instead(folder)}; expected {WEIGHTS} or {INDEX} next to "
        "config.json and vocab.txt; `maskloom convert` also reads a TensorFlow checkpoint and pytorch_model.bin"
    )


def _held_instead(folder: Path) -> str:
    """Describe a folder that has no weights to read; raises DataError for files that can run code."""
    if (folder / "model" / "config.json").exists():
        return f"this is a run; its model is in {folder / 'model'}"
    if (folder / "recipe.toml").exists() and not any(folder.glob("vectors.*")):  # those of word vectors
        quoted = shlex.quote(str(folder))
        return f"this is a run; maskloom export {quoted} --out DIR makes a model folder from a checkpoint"
    held = sorted(folder.iterdir())
    if any(path.name in ("config.json", "bert_config.json") for path in held):
        for path in held:
            refuse_unsafe(path)
    return f"it holds {', '.join(path.name for path in held[:8])}" if held else "the folder is empty"


def refuse_unconverted(folder: Path) -> None:
    """Raise DataError for a folder whose weights only `maskloom convert` reads."""
    found = next((path for path in (folder / PICKLED, *sorted(folder.glob("*.index"))) if path.is_file()), None)
    if found is not None:
        what = "files of this kind can run code when opened" if found.name == PICKLED else "a TensorFlow checkpoint"
        how = f"with checks: maskloom convert {shlex.quote(str(folder))} --out DIR"
        raise DataError(f"{found}: {what}; convert it to {WEIGHTS}, {how}")


def refuse_unsafe(path: Path) -> None:
    """Raise DataError for a file whose name marks it as able to run code, or as a format that nothing here reads."""
    if path.is_file() and any(path.match(pattern) for pattern in _UNSAFE):
        raise DataError(
            f"{path}: files of this kind can run code when opened and are never read; convert it to "
            f"{WEIGHTS} where you trust it (transformers: from_pretrained, then save_pretrained)"
        )


def _safetensors(path: Path) -> dict[str, StoredTensor]:
    try:
        text = _bounded_header(path)
        file = safe_open(path, framework="pt")
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
        fields = [len(entry) for name, entry in json.loads(text, object_pairs_hook=list) if name != "__metadata__"]
        if fields != [3] * len(slices):  # the library would ignore both
            raise SafetensorError("its header has a tensor twice, or a field that is not of the format")
        if len(shapes) > MAX_TENSORS:
            raise SafetensorError(f"its header names {len(shapes):,} tensors; at most {MAX_TENSORS:,} are read")
        for name, shape in shapes.items():
            if 0 in shape or len(shape) > _MAX_DIMENSIONS:
                what = f"{len(shape):,} dimensions (at most {_MAX_DIMENSIONS} are read)" if all(shape) else "no values"
                raise SafetensorError(f"tensor {name[:80]!r} has {what}")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (SafetensorError, ValueError) as error:
        raise DataError(f"{path}: not a valid safetensors file: {error!s:.300}") from None

    def read(name: str) -> Tensor:
        try:
            return file.get_tensor(name)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise DataError(f"{path}: tensor {name!r:.80} cannot be read: {error!s:.300}") from None

    return {
        name: StoredTensor(name, shapes[name], part.get_dtype() in _FLOATS, path, partial(read, name))
        for name, part in slices.items()
    }


def _bounded_header(path: Path) -> bytes:
    """Return the text of a header that takes little memory to parse; raises SafetensorError for any other."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _MAX_HEADER_BYTES:
            raise SafetensorError(f"its header takes {length:,} bytes; at most {_MAX_HEADER_BYTES:,} are read")
        text = file.read(length)
    if sum(map(text.count, (b"{", b"[", b",", b":"))) > _MAX_PARTS:
        raise SafetensorError(f"its header has more parts than {MAX_TENSORS:,} tensors need")
    return text


def _sharded(index: Path) -> dict[str, StoredTensor]:
    places = read_json_object(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise DataError(f"{index}: no weight_map from tensor names to file names")
    found: dict[str, StoredTensor] = {}
    for file in sorted(set(places.values())):
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise DataError(f"{index}: {file!r:.80} is not the name of a safetensors file in the same folder")
        if (shard := file_inside(index.parent, file)) is None:
            raise DataError(f"{index.parent / file}: does not exist, but {index.name} names it")
        for name, tensor in _safetensors(shard).items():
            if places.get(name) != file:
                raise DataError(
                    f"{index}: tensor {name!r:.80} is in {file}, but the index says {places.get(name)!s:.80}"
                )
            found[name] = tensor
    if missing := sorted(set(places) - set(found)):
        raise DataError(
            f"{index}: the index names {amount(len(missing), 'tensor')} that no file holds, such as {missing[0]!r:.80}"
        )
    return found


def safetensors_pieces(
    tensors: Mapping[str, Tensor], *, metadata: Mapping[str, str] | None = None
) -> Iterator[memoryview]:
    """Yield the header and then each tensor's values, as views of tensors that are contiguous in memory.

    `metadata` is stored in the header. Wider types come first, and names are sorted within a type, so that every tensor
    starts at a multiple of its width. Tensors on another device are copied one at a time.
    """
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), _TYPES[item[1].dtype], item[0]))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    start = 0
    for name, tensor in ordered:
        end = start + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for _, tensor in ordered:
        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().data
