"""What a sentence-transformers folder says of its vectors: pooling, dense layers, length 1, the longest text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from maskloom.checkpoints.tensor_files import open_weights
from maskloom.errors import ConfigError, DataError
from maskloom.rows import PoolingMode
from maskloom.system.files import write_bytes, write_json
from maskloom.system.foreign_files import file_inside, read_bytes, read_json, read_json_object

POOLING_MODES: tuple[str, ...] = get_args(PoolingMode)
MODULES = "modules.json"
ENCODER = "0_Transformer"
"""Where older releases put the encoder, a folder in Hugging Face layout; newer ones put it beside modules.json."""
_SETTINGS = "sentence_bert_config.json"
_PROMPTS = "config_sentence_transformers.json"
_MAX_COPIED_BYTES = 1 << 30
# Until version 6 a flag for each mode.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": torch.relu,
    "GELU": F.gelu,
    "Sigmoid": torch.sigmoid,
}
_DEFAULT_KEYS = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}


@dataclass(frozen=True)
class DenseStep:
    """A dense layer on vectors: activation(x W^T + b), (texts, inputs) to (texts, outputs)."""

    weight: Tensor
    bias: Tensor | None
    activation: Callable[[Tensor], Tensor]

    def __call__(self, vectors: Tensor) -> Tensor:
        """Return the transformed vectors."""
        bias = None if self.bias is None else self.bias.to(vectors.device)
        return self.activation(F.linear(vectors, self.weight.to(vectors.device), bias))


@dataclass(frozen=True)
class SentenceModules:
    """How token vectors become one vector per text; without such files the plain mean over all tokens.

    `steps` follow the pooling in order: a dense layer, the width that vectors are cut to, or None where they are scaled
    to length 1. `max_length` is in tokens, `prompt` stands before every text, and `lowercase` lowers texts.
    """

    pooling: PoolingMode = "mean"
    steps: tuple[DenseStep | int | None, ...] = ()
    max_length: int | None = None
    prompt: str = ""
    lowercase: bool = False

    @property
    def normalizes(self) -> bool:
        """Whether vectors end with length 1."""
        return self.steps[-1:] == (None,)

    def changed(self, pooling: str | None, normalize: bool | None) -> SentenceModules:
        """Return these modules with what is not None; raises ConfigError for a pooling that is not known."""
        if pooling is not None and pooling not in POOLING_MODES:
            raise ConfigError(f"pooling {pooling!r:.80} is not one of {', '.join(POOLING_MODES)}")
        steps = self.steps
        if normalize is not None and normalize != self.normalizes:
            steps = (*steps, None) if normalize else tuple(step for step in steps if step is not None)
        return replace(self, pooling=pooling or self.pooling, steps=steps)

    def width(self, hidden_size: int) -> int:
        """Return the width of the vectors of an encoder of that hidden size."""
        width = hidden_size
        for step in self.steps:
            if step is not None:
                width = len(step.weight) if isinstance(step, DenseStep) else min(width, step)
        return width

    def text(self, text: str) -> str:
        """Return a text as the encoder reads it."""
        text = self.prompt + text
        return text.lower() if self.lowercase else text

    def vectors(self, hidden: Tensor, lengths: Tensor, first_positions: Tensor) -> Tensor:
        """Return one vector per text, (texts, width), of packed token vectors (tokens, hidden)."""
        vectors = _pooled(hidden.float(), lengths, first_positions, self.pooling)
        for step in self.steps:
            if isinstance(step, int):
                vectors = vectors[:, :step]
            else:
                vectors = F.normalize(vectors, dim=1) if step is None else step(vectors)
        return vectors


def _pooled(hidden: Tensor, lengths: Tensor, first_positions: Tensor, pooling: PoolingMode) -> Tensor:
    if pooling == "cls":
        return hidden[first_positions]
    if pooling in ("max", "mean"):
        return torch.segment_reduce(hidden, pooling, lengths=lengths)
    sizes = lengths.to(hidden.dtype).unsqueeze(1)
    if pooling == "mean_sqrt_len":
        return torch.segment_reduce(hidden, "sum", lengths=lengths) / sizes.sqrt()
    places = torch.arange(1, len(hidden) + 1, device=hidden.device) - first_positions.repeat_interleave(lengths)
    weighted = hidden * places.to(hidden.dtype).unsqueeze(1)
    return torch.segment_reduce(weighted, "sum", lengths=lengths) / (sizes * (sizes + 1) / 2)


def read_modules(folder: Path) -> SentenceModules:
    """Read modules.json and what it names, else the plain mean; raises DataError for what is not known in a file."""
    path = file_inside(folder, MODULES)
    if path is None:
        return SentenceModules()
    (_, place), *others = _module_paths(path)
    pooling: PoolingMode | None = None
    steps: list[DenseStep | int | None] = []
    for kind, name in others:
        if kind == "Pooling" and pooling is None:
            pooling = _read_pooling(folder / name)
        elif kind == "Normalize" and pooling is not None:
            _vector_config(folder / name)
            steps.append(None)
        elif kind == "Dense" and pooling is not None:
            steps.append(_read_dense(folder / name))
        elif kind != "Dropout":  # which does nothing to a vector
            raise DataError(
                f"{path}: the module {kind!r:.80} at this place is not known, so its vectors would be wrong"
            )
    if pooling is None:
        raise DataError(f"{path}: no Pooling module, so there is no vector of a text")
    settings = _object(folder / place, _SETTINGS)
    length = settings.get("max_seq_length")
    if length is not None and (type(length) is not int or length < 3):
        raise DataError(
            f"{folder / place / _SETTINGS}: max_seq_length = {length!r:.80}; a whole number from 3 is expected"
        )
    width = _object(folder, _PROMPTS).get("truncate_dim")
    if width is not None:
        if type(width) is not int or width < 1:
            raise DataError(f"{folder / _PROMPTS}: truncate_dim = {width!r:.80}; a whole number from 1 is expected")
        steps.append(width)
    return SentenceModules(pooling, tuple(steps), length, _prompt(folder), settings.get("do_lower_case") is True)


def write_modules(
    folder: Path, *, hidden_size: int, max_length: int, pooling: PoolingMode = "mean", normalize: bool = False
) -> None:
    """Write what `read_modules` and sentence-transformers read; raises ConfigError for a pooling that is not known."""
    SentenceModules().changed(pooling, normalize)
    modules = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(["Transformer", "Pooling", *(["Normalize"] if normalize else [])])
    ]
    flags = {flag: mode.removesuffix("_tokens") == pooling for flag, mode in _FLAGS.items()}
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": hidden_size, **flags})
    if normalize:
        write_json(folder / "2_Normalize" / "config.json", {})
    write_json(folder / _SETTINGS, {"max_seq_length": max_length, "do_lower_case": False})
    write_json(folder / _PROMPTS, {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"})
    write_json(folder / MODULES, modules)  # last: with it the folder counts


def copy_modules(source: Path, target: Path) -> None:
    """Copy modules.json and what it names, but for the encoder, which lies in `target` itself; nothing without it.

    Raises DataError for a file that is not one of the folder and for a damaged modules.json.
    """
    if (path := file_inside(source, MODULES)) is None:
        return
    (_, encoder), *others = _module_paths(path)
    found = {_SETTINGS: source / encoder, _PROMPTS: source}
    for folder in (source / name for _, name in others if name and (source / name).is_dir()):
        (target / folder.name).mkdir(exist_ok=True)
        found |= {f"{folder.name}/{held.name}": source for held in folder.iterdir() if held.is_file()}
    for name, folder in found.items():
        if (held := file_inside(folder, name)) is not None:
            write_bytes(target / name, read_bytes(held, limit=_MAX_COPIED_BYTES))
    first, *rest = read_json(path)
    write_json(target / MODULES, [{**first, "path": ""}, *rest])


def _module_paths(path: Path) -> list[tuple[str, str]]:
    """Return the kind and the folder of every module in order; the first is the encoder."""
    modules = read_json(path)
    try:
        found = [(_kind(str(module["type"])), str(module["path"])) for module in modules]
    except (TypeError, LookupError):
        raise DataError(f"{path}: not a list of modules with a type and a path each") from None
    for _, name in found:
        if Path(name).name != name or (name and (path.parent / name).is_symlink()):
            raise DataError(f"{path}: {name!r:.80} is not the name of a folder inside this one")
    if not found or found[0][0] != "Transformer":
        raise DataError(
            f"{path}: the first module is {found[0][0] if found else 'missing'!r:.80}; a Transformer is expected"
        )
    return found


def _kind(name: str) -> str:
    """Return the class of a module of sentence-transformers; any other name as it is, which is not known."""
    package, _, kind = name.rpartition(".")
    return kind if package.partition(".")[0] == "sentence_transformers" else name


def _read_pooling(folder: Path) -> PoolingMode:
    config, place = _object(folder, "config.json"), folder / "config.json"
    given = config.get("pooling_mode", [mode for flag, mode in _FLAGS.items() if config.get(flag)] or "mean")
    modes = [given] if isinstance(given, str) else given
    if not isinstance(modes, list) or len(modes) != 1:
        raise DataError(f"{place}: pooling by {modes!r:.200}; exactly one mode is expected")
    mode = str(modes[0]).removesuffix("_tokens")
    if mode not in POOLING_MODES:
        raise DataError(f"{place}: the pooling {mode!r:.80} is not one of {', '.join(POOLING_MODES)}")
    if config.get("include_prompt") is False and _prompt(folder.parent):
        raise DataError(f"{place}: include_prompt is false, which is not supported")
    return mode  # pyright: ignore[reportReturnType]


def _read_dense(folder: Path) -> DenseStep:
    config, place = _vector_config(folder), folder / "config.json"
    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    kind = name.rpartition(".")[2]
    if not name.startswith("torch.nn.modules.") or kind not in _ACTIVATIONS:
        raise DataError(f"{place}: the activation {name!r:.80} is not one of {', '.join(_ACTIVATIONS)}")
    if config.get("use_residual"):
        raise DataError(f"{place}: use_residual is true, which is not supported")
    tensors = open_weights(folder)
    shape = (config.get("out_features"), config.get("in_features"))
    expected = {"linear.weight": shape, **({"linear.bias": shape[:1]} if config.get("bias", True) else {})}
    if {name: tensor.shape for name, tensor in tensors.items()} != expected:
        raise DataError(f"{folder}: its tensors are not {expected}, which {place.name} asks for")
    values = {name: tensor.read().float() for name, tensor in tensors.items()}
    return DenseStep(values["linear.weight"], values.get("linear.bias"), _ACTIVATIONS[kind])


def _vector_config(folder: Path) -> dict[str, Any]:
    """Return what a module's config.json holds; refuses one that works on anything but the vectors of texts."""
    config = _object(folder, "config.json")
    for key, value in _DEFAULT_KEYS.items():
        if config.get(key, value) != value:
            raise DataError(f"{folder / 'config.json'}: {key} = {config[key]!r:.80}; {value!r} is expected")
    return config


def _prompt(folder: Path) -> str:
    """Return what stands before every text unless a prompt is asked for."""
    config = _object(folder, _PROMPTS)
    name, prompts = config.get("default_prompt_name"), config.get("prompts") or {}
    if name is None:
        return ""
    prompt = prompts.get(name) if isinstance(prompts, dict) else None
    if not isinstance(prompt, str):
        raise DataError(f"{folder / _PROMPTS}: default_prompt_name {name!r:.80} is not among the prompts")
    return prompt


def _object(folder: Path, name: str) -> dict[str, Any]:
    path = file_inside(folder, name) if folder.is_dir() else None
    return {} if path is None else read_json_object(path)
