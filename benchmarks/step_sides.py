"""Pre-training steps of both sides on given batches, on any device and in any precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from maskloom.data.batch import PretrainingBatch
from maskloom.layers.copies import HostCopy
from maskloom.models.assembled import build_model, prepare_blocks
from maskloom.models.bert import BertConfig
from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.system.freed_memory import kept_memory
from maskloom.training.loop import train_steps
from maskloom.training.precision import in_precision
from maskloom.training.ranks.ranks import Ranks
from maskloom.training.settings import TrainingSection
from maskloom.training.state import TrainState


class Ours:
    """maskloom's training loop in the given precision."""

    def __init__(
        self, config: BertConfig, device: torch.device, batches: list[PretrainingBatch], precision: str, **blocks: bool
    ):
        model = build_model(config, seed=0).to(device)
        prepare_blocks(model, recompute=blocks.get("recompute", False), compile_=blocks.get("compile_", False))
        settings = TrainingSection(steps=10**9, learning_rate=1e-4, warmup_steps=0)
        objective = in_precision(MaskedLanguageModeling(), precision, device)
        self._steps = train_steps(
            TrainState.fresh(model, settings),
            objective,
            lambda at: (batches[at.get("n", 0) % len(batches)], {"n": at.get("n", 0) + 1}),
            settings=settings,
            seed=0,
            ranks=Ranks(device),
        )

    def step(self) -> float:
        """Take a step, as in a run, and return its loss."""
        with kept_memory():
            return next(self._steps).loss


class Peer:
    """BertForPreTraining with sdpa, its head on the predicted positions, under autocast for bf16, with fused AdamW."""

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        batches: list[PretrainingBatch],
        precision: str,
        *,
        is_compiled: bool = False,
    ) -> None:
        from transformers import BertForPreTraining

        self.model = BertForPreTraining.from_pretrained(folder, attn_implementation="sdpa").to(device).train()
        self._body = torch.compile(self.model.bert) if is_compiled else self.model.bert
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, eps=1e-6, fused=True)
        length = max(int(batch.lengths.max()) for batch in batches)
        self._batches, self._next, self._device = [_padded(batch, length) for batch in batches], 0, device
        if device.type == "cuda":
            self._batches = [{name: tensor.pin_memory() for name, tensor in batch.items()} for batch in self._batches]
        self._is_half, self._loss = precision == "bf16", HostCopy(torch.zeros(()))

    @kept_memory()  # as on our side
    def step(self) -> float:
        """Take a step, as in careful user code, and return its loss; on a GPU that of the step before, if there is one.

        That loss was copied when it was computed, because `float` of a tensor on a GPU waits for all that is queued.
        The device therefore computes the step while the host launches the next.
        """
        batch = self._batches[self._next % len(self._batches)]
        self._next += 1
        moved = dict(batch)
        if self._device.type == "cuda":
            moved = {name: tensor.to(self._device, non_blocking=True) for name, tensor in batch.items()}
        places, labels, relation = moved.pop("places"), moved.pop("labels"), moved.pop("relation")
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._is_half):
            found = self._body(**moved)
            hidden = found.last_hidden_state.flatten(0, 1).index_select(0, places)
            scores, related = self.model.cls(hidden, found.pooler_output)
        loss = cross_entropy(scores.float(), labels) + cross_entropy(related.float(), relation)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        before, self._loss = self._loss, HostCopy(loss.detach())
        return float((before if self._device.type == "cuda" and self._next > 1 else self._loss).tensor())


def _padded(batch: PretrainingBatch, length: int) -> dict[str, torch.Tensor]:
    """Return padded tensors; full rows get no mask, whose values the peer would read from the GPU in every step.

    Nor could it use flash attention with a mask when compiled, as it cannot then see that the mask hides nothing.
    """
    is_real = np.arange(length)[None, :] < batch.lengths[:, None]
    ids = np.zeros(is_real.shape, np.int64)
    ids[is_real] = batch.token_ids
    arrays = {
        "input_ids": ids,
        "token_type_ids": np.zeros_like(ids),
        "attention_mask": None if is_real.all() else is_real.astype(np.int64),
        "places": np.flatnonzero(is_real)[batch.mlm_positions],
        "labels": batch.mlm_labels,
        "relation": batch.nsp_labels,
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items() if array is not None}
