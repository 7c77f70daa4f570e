"""Writing model folders whole: weights, tokenizer, what a task needs besides, and the card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from maskloom.checkpoints.huggingface import save_model
from maskloom.checkpoints.sentence_transformers import copy_modules
from maskloom.errors import ConfigError
from maskloom.files import copy_files, replacing_folder, write_json
from maskloom.inference.model_folder import SETTINGS_FILE
from maskloom.models.assembled import EncoderWithHeads
from maskloom.runs.model_card import Card
from maskloom.text.tokenizer import Tokenizer
from maskloom.training.checkpoints import MODEL, REST, step_folders


def check_new_folder(out: Path) -> None:
    """Raise ConfigError for the place of a new model folder where something is already."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists and is not an empty folder; choose another --out")


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


def kept_step(checkpoints: Path) -> int | None:
    """Return the step whose checkpoint is kept as the best of a stage, or None."""
    newest = next(iter(step_folders(checkpoints)), None)
    kept = newest and json.loads((newest / REST).read_text(encoding="utf-8"))["extra"].get("kept")
    return kept and kept["step"]


def write_best_model(model: EncoderWithHeads, checkpoints: Path, tokenizer: Tokenizer, folder: Path) -> int | None:
    """Write the weights of the checkpoint that was kept as the best into a model folder, and return its step.

    `model` has those weights afterwards. None, and nothing is written, when no evaluation was compared, or when several
    processes wrote the checkpoint, each a share.
    """
    step = kept_step(checkpoints)
    source = checkpoints / f"step-{step or 0:08d}" / MODEL
    if step is None or not source.exists():
        return None
    weights = load_file(source)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    with replacing_folder(folder) as temporary:
        save_model(model, temporary)
        tokenizer.save(temporary)
    return step
