"""The model of the evaluation that a run did best in, beside the model of its end."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from maskloom.checkpoints.huggingface import save_model
from maskloom.files import replacing_folder
from maskloom.models.assembled import EncoderWithHeads
from maskloom.text.tokenizer import Tokenizer
from maskloom.training.checkpoints import MODEL, REST, step_folders


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
