"""ELMo's weight names: ours, and those in the HDF5 files of bilm-tf and AllenNLP."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maskloom.checkpoints.published.format import lstm_names, own_rows
from maskloom.checkpoints.published.own import own_format
from maskloom.errors import ConfigError, DataError, amount
from maskloom.models.assembled import EncoderWithHeads, build_model
from maskloom.models.elmo_config import SPELLING_SIZE, ElmoConfig
from maskloom.system.foreign_files import check_regular, read_json_object
from maskloom.system.resources import require_memory

OPTIONS = "options.json"
_CHARACTERS = "encoder.embeddings.characters"
_WORDS = own_rows("encoder.embeddings.word.weight")
_MIX = own_rows("encoder.mix.weights", "encoder.mix.scale")
_TOP = own_rows(*(f"encoder.top.{name}" for name in lstm_names(1)))
ELMO_FORMAT = own_format(
    "ELMo",
    {"bilm": own_rows("heads.bilm.bias")},
    {("bilm",): "BidirectionalLM"},
    top=_TOP,
    optional=(*_WORDS, *_MIX),
)


def published_elmo(folder: Path) -> tuple[EncoderWithHeads, Path, tuple[tuple[str, str], ...]]:
    """Return the model of a bilm-tf or AllenNLP folder, its weight file, and pairs of our and the published names.

    Such a folder has an options.json and one HDF5 file of weights, which does not hold the words that the model
    predicted. A parameter that is made of several published tensors is paired with the first. Raises DataError for
    missing and damaged files, and for tensors that are missing or contradict the options in shape, and ConfigError
    without h5py.
    """
    options, weights = folder / OPTIONS, sorted(folder.glob("*weights*.hdf5"))
    if len(weights) != 1:
        raise DataError(f"{folder}: {len(weights)} files *weights*.hdf5 next to {OPTIONS}; expected one")
    config = _config(read_json_object(options), options)
    stored = read_arrays(weights[0])
    with torch.device("meta"):
        planned = dict(build_model(config, ()).named_parameters())
    found, problems = dict[str, Tensor](), list[str]()
    for ours, names, made in _published(config):
        missing = [name for name in names if name not in stored]
        problems += [f"{name}: missing" for name in missing]
        if missing:
            continue
        parts, shape = [stored.pop(name) for name in names], tuple(planned[ours].shape)
        try:
            found[ours] = values = made(*parts)
        except (RuntimeError, IndexError, ValueError):  # too few dimensions, or parts of different shapes
            shapes = " and ".join(str(tuple(part.shape)) for part in parts)
            problems.append(f"{', '.join(names)}: cannot be of shape {shapes}")
            continue
        if values.shape != shape:
            problems.append(f"{', '.join(names)}: gives {tuple(values.shape)}, but {OPTIONS} needs {shape}")
        elif not bool(values.isfinite().all()):
            problems.append(f"{', '.join(names)}: holds values that are not finite")
    if problems:
        raise DataError(f"{weights[0]}: {amount(len(problems), 'problem')}:\n  " + "\n  ".join(problems))
    model = build_model(config, (), seed=0, leave=found.keys())
    with torch.no_grad():
        for name, values in found.items():
            model.get_parameter(name).copy_(values)
    return model, weights[0], tuple((ours, names[0]) for ours, names, _ in _published(config))


def read_arrays(path: Path) -> dict[str, Tensor]:
    """Return the arrays of an HDF5 file by path, such as "CNN/W_cnn_0", in fp32.

    Raises ConfigError without h5py, and DataError, with the file, for a damaged one and for anything but floats that
    are uncompressed in the file itself.
    """
    try:
        import h5py
    except ImportError:
        raise ConfigError(f"{path}: reading HDF5 needs h5py; install it with: pip install 'maskloom[elmo]'") from None
    check_regular(path)
    require_memory(path.stat().st_size, f"{path}:", DataError)
    arrays = dict[str, Any]()
    try:
        with h5py.File(path) as file:
            file.visititems(lambda name, item: arrays.update({name: item} if isinstance(item, h5py.Dataset) else {}))
            for name, array in arrays.items():
                if array.dtype.kind != "f" or array.external or array.is_virtual or array.compression:
                    raise ValueError(f"{name!r} is not an uncompressed array of floats in the file itself")
            if sum(array.nbytes for array in arrays.values()) > path.stat().st_size:
                raise ValueError("its arrays take more bytes than the file has")
            return {name: torch.from_numpy(array[...]).float() for name, array in arrays.items()}
    except (MemoryError, PermissionError):
        raise
    except Exception as error:  # a damaged file may raise anything
        raise DataError(f"{path}: damaged, or not an HDF5 file of plain float arrays: {error!s:.300}") from None


def _config(options: dict[str, Any], path: Path) -> ElmoConfig:
    try:
        lstm, characters = options["lstm"], options["char_cnn"]
        values = {
            "vocab_size": SPELLING_SIZE,
            "hidden_size": 2 * lstm["projection_dim"],
            "num_hidden_layers": lstm["n_layers"],
            "intermediate_size": lstm["dim"],
            "hidden_act": characters["activation"],
            "character_size": characters["embedding"]["dim"],
            "max_characters": characters["max_characters_per_token"],
            "filters": characters["filters"],
            "num_highways": characters["n_highway"],
            "cell_clip": float(lstm.get("cell_clip") or 0.0),
            "projection_clip": float(lstm.get("proj_clip") or 0.0),
            "adds_input": lstm["use_skip_connections"],
        }
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: {error} is missing or not an ELMo setting") from None
    return ElmoConfig.from_published(values, str(path))


def _published(config: ElmoConfig) -> Iterator[tuple[str, Sequence[str], Callable[..., Tensor]]]:
    """Yield each of our parameters, the published tensors it is made of, and the function that makes it."""

    def same(values: Tensor) -> Tensor:
        return values

    yield f"{_CHARACTERS}.character.weight", ("char_embed",), same
    for number in range(len(config.filters)):
        ours = f"{_CHARACTERS}.convolutions.{number}"
        yield f"{ours}.weight", (f"CNN/W_cnn_{number}",), lambda values: values[0].permute(2, 1, 0)
        yield f"{ours}.bias", (f"CNN/b_cnn_{number}",), same
    for number in range(config.num_highways):
        ours, theirs = f"{_CHARACTERS}.highways.{number}", f"CNN_high_{number}"
        names = (f"{theirs}/W_transform", f"{theirs}/W_carry")
        yield f"{ours}.weight", names, lambda new, gate: torch.cat([new.T, gate.T])
        yield f"{ours}.bias", (f"{theirs}/b_transform", f"{theirs}/b_carry"), lambda new, gate: torch.cat([new, gate])
    yield f"{_CHARACTERS}.projection.weight", ("CNN_proj/W_proj",), lambda values: values.T
    yield f"{_CHARACTERS}.projection.bias", ("CNN_proj/b_proj",), same
    for layer in range(config.num_hidden_layers):
        ours, cells = f"encoder.layers.{layer}", [f"RNN_{way}/RNN/MultiRNNCell/Cell{layer}/LSTMCell" for way in (0, 1)]
        weights, biases, projections = ([f"{cell}/{name}" for cell in cells] for name in ("W_0", "B", "W_P_0"))
        yield f"{ours}.weight", weights, lambda *both: torch.stack([_gates(each).T for each in both])
        yield f"{ours}.bias", biases, lambda *both: torch.stack([_gates(each[None], 1.0) for each in both])
        yield f"{ours}.projection", projections, lambda *both: torch.stack([each.T for each in both])


def _gates(values: Tensor, forget: float = 0.0) -> Tensor:
    """Reorder the gate columns i, j, f, o to ours, adding `forget` to f: TensorFlow adds 1 to that gate at run time."""
    i, j, f, o = values.chunk(4, 1)
    return torch.cat([i, f + forget, o, j], 1)
