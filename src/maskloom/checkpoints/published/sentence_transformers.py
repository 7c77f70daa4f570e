"""How a sentence-transformers folder defines its vectors: pooling, normalisation, and the longest text."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from maskloom.errors import ConfigError, DataError
from maskloom.models.architectures import architecture_of
from maskloom.models.model_config import ModelConfig
from maskloom.rows import PoolingMode
from maskloom.system.files import write_bytes, write_json
from maskloom.system.foreign_files import file_inside, read_bytes, read_json, read_object_inside

POOLING_MODES: tuple[str, ...] = get_args(PoolingMode)
MODULES = "modules.json"
ENCODER = "0_Transformer"
"""Where older releases put the encoder, a folder in Hugging Face layout; newer ones put it next to modules.json."""
_SETTINGS = "sentence_bert_config.json"
_PROMPTS = "config_sentence_transformers.json"
_MAX_COPIED_BYTES = 1 << 30
_POOLING_FLAG = "pooling_mode_"
"""Until version 6 there was a flag for each mode: pooling_mode_cls_token, pooling_mode_max_tokens and so on."""


@dataclass(frozen=True)
class SentenceModules:
    """How token vectors are pooled into one per text, of length 1 if it `normalizes`; `max_length` is in tokens.

    `unsupported` names what the folder requires but is not computed here, so that the caller must choose a pooling.
    """

    pooling: PoolingMode = "mean"
    normalizes: bool = False
    max_length: int | None = None
    unsupported: str = ""

    def changed(self, pooling: str | None, normalize: bool | None, model: ModelConfig | None = None) -> SentenceModules:
        """Return these modules with the arguments that are not None, for vectors of a `model`.

        Raises ConfigError for an unknown pooling and for the first token of a left-to-right model, DataError if the
        folder is `unsupported` and no pooling is given.
        """
        if self.unsupported and pooling is None:
            how = f"choose a pooling ({', '.join(POOLING_MODES)}) to compute vectors without it"
            raise DataError(f"{self.unsupported}, so its own vectors cannot be computed; {how}")
        if pooling is not None and pooling not in POOLING_MODES:
            raise ConfigError(f"pooling {pooling!r:.80} is not one of {', '.join(POOLING_MODES)}")
        if (pooling or self.pooling) == "cls" and model is not None and model.is_causal:
            why = f"the first token of a left-to-right {architecture_of(model).name} sees no other token of its text"
            raise ConfigError(f"pooling = 'cls': {why}; use mean or max")
        normalizes = self.normalizes if normalize is None else normalize
        return replace(self, pooling=pooling or self.pooling, normalizes=normalizes, unsupported="")

    def vectors(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Return one vector per text, (texts, hidden), from packed token vectors (tokens, hidden); 0 without tokens."""
        hidden = hidden.float()
        if hidden.device.type == "mps":  # it has no segment_reduce
            hidden, lengths = hidden.cpu(), lengths.cpu()
        if self.pooling == "cls":
            vectors = F.pad(hidden, (0, 0, 0, 1))[lengths.cumsum(0) - lengths]
        else:
            # unsafe: skip a check of the lengths, which are correct, for which the CPU would wait for the GPU
            vectors = torch.segment_reduce(hidden, self.pooling, lengths=lengths, unsafe=True)
        vectors = vectors.masked_fill((lengths == 0).unsqueeze(1), 0.0)
        return F.normalize(vectors, dim=1) if self.normalizes else vectors


def read_modules(folder: Path) -> SentenceModules:
    """Read modules.json and the files it names, or return the plain mean; raises DataError for invalid files."""
    if (path := file_inside(folder, MODULES)) is None:
        return SentenceModules()
    (_, place), *others = _module_paths(path)
    if not others:
        raise DataError(f"{path}: no Pooling module, so texts have no vectors")
    settings = read_object_inside(folder / place, _SETTINGS)
    length = settings.get("max_seq_length")
    if length is not None and (type(length) is not int or length < 3):
        raise DataError(
            f"{folder / place / _SETTINGS}: max_seq_length = {length!r:.80}; expected a whole number of at least 3"
        )
    kinds = [kind for kind, _ in others]
    unknown = [kind for kind, known in zip(kinds, ["Pooling", "Normalize", ""], strict=False) if kind != known]
    pooling = "" if unknown else _pooling(folder / others[0][1])
    unsupported = [f"{path}: the module {kind!r:.80} is not supported" for kind in unknown[:1]]
    if not unknown and pooling not in POOLING_MODES:
        unsupported.append(f"{folder / others[0][1] / 'config.json'}: pooling by {pooling!r:.80} is not supported")
    for key, value in (settings | read_object_inside(folder, _PROMPTS)).items():
        if key in ("do_lower_case", "default_prompt_name", "truncate_dim") and value:
            unsupported.append(f"{folder}: {key} = {value!r:.80} is not supported")
    if unsupported:
        return SentenceModules(max_length=length, unsupported=unsupported[0])
    return SentenceModules(pooling, "Normalize" in kinds, length)  # pyright: ignore[reportArgumentType]


def write_modules(folder: Path, *, hidden_size: int, max_length: int, pooling: PoolingMode, normalize: bool) -> None:
    """Write the files that `read_modules` and sentence-transformers read."""
    modules = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(["Transformer", "Pooling", *(["Normalize"] if normalize else [])])
    ]
    flags = {"cls_token": "cls", "max_tokens": "max", "mean_tokens": "mean"}
    config = {_POOLING_FLAG + flag: mode == pooling for flag, mode in flags.items()}
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": hidden_size, **config})
    if normalize:
        write_json(folder / "2_Normalize" / "config.json", {})
    write_json(folder / _SETTINGS, {"max_seq_length": max_length, "do_lower_case": False})
    write_json(folder / _PROMPTS, {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"})
    write_json(folder / MODULES, modules)  # last: it makes the folder valid


def copy_modules(source: Path, target: Path) -> None:
    """Copy modules.json, if any, and what it names except the encoder; raises DataError for an invalid list or file."""
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
    """Return the kind and the folder of every module in order, the encoder first."""
    modules = read_json(path)
    try:
        found = [(_kind(str(module["type"])), str(module["path"])) for module in modules]
    except (TypeError, LookupError):
        raise DataError(f"{path}: not a list of modules, each with a type and a path") from None
    for _, name in found:
        if Path(name).name != name or name == ".." or (name and (path.parent / name).is_symlink()):
            raise DataError(f"{path}: {name!r:.80} is not the name of a folder inside this one")
    if not found or found[0][0] != "Transformer":
        raise DataError(
            f"{path}: the first module is {found[0][0] if found else 'missing'!r:.80}; expected a Transformer"
        )
    return found


def _kind(name: str) -> str:
    """Return the class name of a sentence-transformers module; any other name is returned unchanged, as unknown."""
    package, _, kind = name.rpartition(".")
    return kind if package.partition(".")[0] == "sentence_transformers" else name


def _pooling(folder: Path) -> str:
    """Return the mode of a Pooling module; several modes, which would be concatenated, are returned as one string."""
    config = read_object_inside(folder, "config.json")
    flags = [key for key, value in config.items() if key.startswith(_POOLING_FLAG) and value]
    given = config.get("pooling_mode", flags or "mean")
    mode = given[0] if isinstance(given, list) and len(given) == 1 else given
    return re.sub(r"_tokens?$", "", str(mode).removeprefix(_POOLING_FLAG))
