"""Language modelling with truncated back-propagation: a recurrent network's state is carried from batch to batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from maskloom.layers.attention import Kept
from maskloom.layers.transformer import CarriedLayer
from maskloom.models.assembled import EncoderWithHeads
from maskloom.objectives.carrying import Carry
from maskloom.objectives.masked_lm import MaskedLanguageModeling, vectors_at
from maskloom.objectives.objective import encode_batch


@dataclass(frozen=True)
class CarriedLanguageModeling(MaskedLanguageModeling):
    """Cross-entropy of every next token; a row starts from the final state of the same row of the previous batch.

    Gradients stop at the start of a row (Williams and Peng 1990; Mikolov et al. 2010). The encoder's layers are
    `CarriedLayer`s.
    """

    def first_carry(self, model: EncoderWithHeads, num_sequences: int) -> Carry:
        """Return the initial states, one per layer."""
        word, layers = model.encoder.word_embeddings, cast("Iterable[CarriedLayer]", model.encoder.layers)
        shapes = [(num_sequences, *layer.state_shape) for layer in layers]
        return tuple(torch.zeros(shape, dtype=word.dtype, device=word.device) for shape in shapes)

    def _vectors(self, model: EncoderWithHeads, batch: Any) -> tuple[Tensor, Tensor]:
        past = [Kept(state) for state in batch.carry]
        output = encode_batch(model, batch, past=past)
        batch.after = tuple(kept.kept.detach() for kept in past)
        return vectors_at(batch.mlm_positions, output)
