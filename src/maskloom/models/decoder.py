"""The base of all decoders: word embeddings tied to the encoder, logits and a loss."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskloom.layers.dropout import current_draws, drawing
from maskloom.layers.processor.matrix_products import product
from maskloom.layers.processor.onednn import Packable
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.layers.vocabulary_loss import vocabulary_loss
from maskloom.models.encoder import Encoder


class TiedDecoder(Packable):
    """A decoder on the output of an encoder, with the encoder's word embeddings at its input and output.

    `decoder` is the encoder's own word-embedding parameter, which embeds target tokens and predicts the next ones, with
    an optional `bias` (1, vocabulary). Targets have at most `max_length` tokens. A nonzero `neighborhood` restricts
    self-attention to that many earlier tokens.
    """

    neighborhood = 0
    bias: nn.Parameter | None  # pyright: ignore[reportIncompatibleVariableOverride]
    layers: nn.ModuleList

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.decoder = encoder.word_embeddings
        self.register_parameter("bias", None)
        self.max_length = encoder.config.max_position_embeddings

    def reading(self, layout: SequenceLayout) -> AbstractContextManager[Any]:
        """Return a context in which dropout draws for targets; raises ValueError for a target that is too long."""
        if layout.max_position >= self.max_length:
            raise ValueError(f"a target of {layout.max_position + 1} tokens exceeds the {self.max_length} positions")
        draws = current_draws()
        return nullcontext() if draws is None else drawing(draws.for_targets(layout.sizes))

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the vocabulary logits, (tokens, vocabulary)."""
        if self.is_packed_for(hidden):
            return self.packed_product(hidden)
        return (F.linear if torch.is_grad_enabled() else product)(hidden, self.decoder, self._bias)

    @property
    def weight(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The word embeddings."""
        return self.decoder

    def loss_sum(self, hidden: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the summed cross-entropy against labels (tokens,), in nats, with label smoothing (5.4)."""
        return vocabulary_loss(hidden, self.decoder, self._bias, labels, smoothing=smoothing)

    @property
    def _bias(self) -> Tensor | None:
        return None if self.bias is None else self.bias[0]

    @torch.no_grad()
    def resize(self, vocab_size: int) -> None:
        """Resize a bias, with new values at 0; the encoder resizes the word embeddings."""
        if self.bias is not None:
            values = F.pad(self.bias, (0, vocab_size - self.bias.shape[1]))  # a negative width truncates
            kept = nn.Parameter(values, requires_grad=self.bias.requires_grad)
            self.bias = kept  # pyright: ignore[reportIncompatibleVariableOverride]
