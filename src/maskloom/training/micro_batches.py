"""How many sequences fit into memory at once (`training.micro_batch_size = "auto"`)."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskloom.machine_memory import available_memory
from maskloom.models.assembled import EncoderWithHeads
from maskloom.objectives.objective import Objective, model_device
from maskloom.training.ranks import Ranks

# Sequences that are tried, the longest of a batch.
_NUM_TRIED = 4
# Of the free memory, what activations may take; the backward pass has temporary ones beside those that are kept.
_SHARE_FOR_ACTIVATIONS = 0.5


def fitting_micro_batch_size(model: EncoderWithHeads, objective: Objective, batch: Any, ranks: Ranks) -> int:
    """Return how many sequences as long as the longest of a batch fit into free memory: a power of two, or all.

    A forward pass over a few of them tells what each keeps for the backward pass. All ranks return the same number.
    """
    parts = batch.split(1)
    longest = sorted(parts, key=lambda part: -int(np.sum(part.lengths)))[:_NUM_TRIED]
    per_sequence = max(1.0, sum(_kept_bytes(model, objective, part) for part in longest) / len(longest))
    free = _free_memory(model_device(model))
    size = len(parts) if free is None else int(_SHARE_FOR_ACTIVATIONS * free / per_sequence)
    fitting = max(1, len(parts) if size >= len(parts) else 1 << max(0, size.bit_length() - 1))
    while ranks.any_(size < fitting) and fitting > 1:
        fitting = (fitting + 1) // 2
    return fitting


def _kept_bytes(model: EncoderWithHeads, objective: Objective, batch: Any) -> int:
    """Return the bytes that a forward pass keeps for the backward pass, weights left out."""
    known = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    device = model_device(model)
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
    ):
        sums = objective.loss_sums(model.train(), batch)
    del sums
    return sum(kept.values())


def _free_memory(device: torch.device) -> int | None:
    """Return the bytes that this process may take of its device; processes of one machine share its memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = available_memory()
    return free if free is None else free // int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
