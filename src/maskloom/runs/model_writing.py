"""Writing a model folder whole: weights, tokenizer, what a task needs besides, and the card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from maskloom.checkpoints.huggingface import save_model
from maskloom.checkpoints.sentence_transformers import copy_modules
from maskloom.files import copy_files, replacing_folder, write_json
from maskloom.inference.model_folder import SETTINGS_FILE
from maskloom.models.assembled import EncoderWithHeads
from maskloom.runs.model_card import Card
from maskloom.text.tokenizer import Tokenizer


def write_model_folder(
    final: Path,
    weights: EncoderWithHeads | Path,
    tokenizer: Tokenizer,
    card: Card,
    *,
    extra_config: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    vectors_as: Path | None = None,
) -> None:
    """Write a folder that opens here and in transformers, under a temporary name until it is whole.

    `weights` is a model, or a folder with config.json and weights that are copied. `extra_config` adds keys to
    config.json, `settings` are those of a task, and `vectors_as` is a folder whose modules.json is copied. Raises
    OSError when the disk fails; nothing is left then.
    """
    with replacing_folder(final) as folder:
        if isinstance(weights, Path):
            copy_files(weights, folder)
        else:
            save_model(weights, folder, extra_config=dict(extra_config or {}))
        tokenizer.save(folder)
        if settings is not None:
            write_json(folder / SETTINGS_FILE, settings)
        if vectors_as is not None:
            copy_modules(vectors_as, folder)
        card.write(folder)
