"""Where the model is in a folder that a person names, and what our own file beside it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from maskloom.checkpoints.huggingface import read_config
from maskloom.config import DataError
from maskloom.text.tokenizer import Tokenizer

SETTINGS_FILE = "maskloom.json"


def resolve_model_folder(path: str | Path) -> Path:
    """Return the folder with config.json: the one named, or `model/` inside a run folder.

    Raises DataError that says what the folder holds instead.
    """
    path = Path(path)
    for candidate in (path, path / "model"):
        if (candidate / "config.json").is_file():
            return candidate
    if not path.exists():
        raise DataError(f"{path}: there is no such folder; a model folder in Hugging Face layout or a run is expected")
    if not path.is_dir():
        raise DataError(f"{path}: a folder is expected (config.json, model.safetensors, vocab.txt), this is a file")
    if (path / "recipe.toml").exists():
        raise DataError(f"{path}: this run has no model/ yet; finish it with --resume")
    held = sorted(entry.name for entry in path.iterdir())[:8]
    raise DataError(f"{path}: no config.json in it or in {path / 'model'}; it holds: {', '.join(held) or 'nothing'}")


def load_tokenizer(folder: Path) -> Tokenizer:
    """Open the tokenizer of a model folder; raises DataError when it has more tokens than the model has embeddings."""
    tokenizer = Tokenizer.load(folder)
    vocab_size = read_config(folder).get("vocab_size", 30_522)
    if len(tokenizer.vocabulary) > vocab_size:
        raise DataError(
            f"{folder}: the vocabulary has {len(tokenizer.vocabulary)} tokens, the model embeds {vocab_size}; "
            "these files do not belong together"
        )
    return tokenizer


def read_settings(folder: Path) -> dict[str, Any]:
    """Return what fine-tuning wrote beside a model (kind of task, labels, metric, max_length, columns), or {}."""
    path = folder / SETTINGS_FILE
    if not path.exists():
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(settings, dict):
        raise DataError(f"{path}: a JSON object is expected")
    return settings
