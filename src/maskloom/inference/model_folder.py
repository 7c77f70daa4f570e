"""Locating the model in a folder given by the user, and reading maskloom's own settings file next to it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from maskloom.checkpoints.huggingface import read_config
from maskloom.checkpoints.published.sentence_transformers import ENCODER, MODULES
from maskloom.checkpoints.tensor_files import refuse_unconverted, refuse_unsafe
from maskloom.errors import DataError
from maskloom.models.architectures import architecture_of
from maskloom.models.model_config import ModelConfig
from maskloom.recipe_files import validate_recipe
from maskloom.sections import Section
from maskloom.system.foreign_files import check_model_name, check_regular, file_inside, read_json_object
from maskloom.tasks.tables import check_stored
from maskloom.text.spelled_tokenizer import SpelledTokenizer
from maskloom.text.tokenizer import TARGETS, Tokenizer

SETTINGS_FILE = "maskloom.json"
FORMAT_VERSION = 1
WORD_VECTORS = "word_vectors"


def resolve_model_folder(path: str | Path) -> Path:
    """Return the folder of config.json in a model, run or sentence-transformers folder; raises DataError otherwise."""
    check_model_name(path)
    path = Path(path)
    for candidate in (path, path / "model", path / ENCODER):
        if (config := candidate / "config.json").exists():
            check_regular(config)
            return candidate
    if not path.is_dir():
        refuse_unsafe(path)
        raise DataError(f"{path}: expected a folder with config.json, model.safetensors and vocab.txt, got a file")
    refuse_unconverted(path)
    if (path / "vectors.bin").exists() or (path / "vectors.txt").exists():
        raise DataError(f"{path} contains word vectors, not a model; `maskloom words --help` lists their uses")
    if (path / "recipe.toml").exists():
        how = f"finish it with --resume, or: maskloom export {shlex.quote(str(path))} --out DIR"
        raise DataError(f"{path}: this run has no model/ yet; {how}")
    held = sorted(entry.name for entry in path.iterdir())[:8]
    raise DataError(f"{path}: no config.json here or in {path / 'model'}; found: {', '.join(held) or 'nothing'}")


def modules_folder(model_folder: Path) -> Path:
    """Return where to look for modules.json: in an encoder folder's parent if the file is there, else in the folder."""
    around = model_folder.parent
    return around if model_folder.name == ENCODER and (around / MODULES).exists() else model_folder


def load_tokenizer(folder: Path) -> Tokenizer:
    """Open the tokenizer of a model folder.

    Raises DataError if it has more tokens than the model has embeddings, or if the model has separate source and target
    vocabularies and they are not the ones it was trained with.
    """
    tokenizer, config = Tokenizer.load(folder), read_config(folder)
    has_two = tokenizer.targets is not None
    if has_two != (config.get("source_vocab_size") is not None):
        missing = "source_vocab_size in config.json" if has_two else f"folder {TARGETS}"
        raise DataError(f"{folder}: there is no {missing}; a model with two vocabularies needs both")
    for key, part in (("vocab_size", tokenizer.of_targets), ("source_vocab_size", tokenizer))[: 1 + has_two]:
        size = config.get(key, 30_522)
        if type(size) is not int:
            raise DataError(f"{folder}: {key} = {size!r:.80} is not a whole number")
        if len(part.vocabulary) > size:
            what = f"the vocabulary has {len(part.vocabulary)} tokens, the model embeds {size}"
            raise DataError(f"{folder}: {what}; these files do not belong together")
    known = read_settings(folder).get("vocabularies") if has_two else None
    if known is not None and {"vocabularies": known} != vocabularies_of(tokenizer):
        raise DataError(f"{folder}: the source and target vocabularies are not the ones in {SETTINGS_FILE}")
    return tokenizer


def vocabularies_of(tokenizer: Tokenizer) -> dict[str, list[str]]:
    """Return the SHA-256 of the source and target vocabularies as `vocabularies`; {} if they share one."""
    if tokenizer.targets is None:
        return {}
    return {"vocabularies": [part.identity()["vocabulary_sha256"] for part in (tokenizer, tokenizer.targets)]}


def tokenizer_read(config: ModelConfig, words: Tokenizer) -> Tokenizer:
    """Return the input tokenizer of a new model with this vocabulary: `words`, or its spelling for models that read it.

    It takes texts as long as the model has positions, of which a vocabulary knows nothing.
    """
    if architecture_of(config).reads_spelling:
        return SpelledTokenizer.of(words)
    return replace(words, max_length=config.max_position_embeddings)


class _Settings(Section):
    """Keys of maskloom's settings file next to a model; unknown keys from later releases are ignored."""

    model_config = ConfigDict(extra="ignore")

    format_version: Annotated[int, Field(ge=1, le=FORMAT_VERSION)] = FORMAT_VERSION
    kind: str | None = None
    takes_pairs: bool | None = None
    primary: str | None = None
    max_length: Annotated[int, Field(ge=3)] | None = None
    reading: dict[str, Any] | None = None
    settings: dict[str, Any] | None = None
    vocabularies: list[str] | None = None


def with_word_vectors(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a task's settings with the path of the word vectors in the model folder, if it uses any."""
    features = settings.get("features")
    if not isinstance(features, dict) or features.get("word_vectors") is None:
        return settings
    if (path := file_inside(folder, WORD_VECTORS)) is None:
        raise DataError(f"{folder}: no {WORD_VECTORS}, the word vectors that the model was trained with")
    return {**settings, "features": {**features, "word_vectors": str(path)}}


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the checked settings written by fine-tuning, or {}; raises DataError or ConfigError naming the file."""
    if (path := file_inside(folder, SETTINGS_FILE)) is None:
        return {}
    settings = read_json_object(path)
    check_stored(validate_recipe(_Settings, settings, source=str(path)).reading or {}, path)
    return {key: value for key, value in settings.items() if value is not None}
