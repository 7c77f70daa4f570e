"""The original Transformer (Vaswani et al. 2017): its encoder, and its decoder as a head on top of an encoder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskloom.layers.attention import CrossAttention, KeyValues, Memory, PackedMemory, PaddedMemory
from maskloom.layers.dropout import Dropout
from maskloom.layers.embeddings import table
from maskloom.layers.general_attention import AttentionLayout
from maskloom.layers.initialization import InitialRules
from maskloom.layers.pooling import LastToken
from maskloom.layers.positions import sinusoids
from maskloom.layers.processor.matrix_products import Dense
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.decoder import TiedDecoder
from maskloom.models.encoder import Encoder
from maskloom.models.model_config import ModelConfig
from maskloom.models.transformer_config import TransformerConfig


def _uniform(module: nn.Module, name: str, values: Tensor, generator: torch.Generator) -> None:
    """Fill Glorot-uniformly; joint projections are filled separately, so that they start like independent ones."""
    if name == "bias":
        values.zero_()
        return
    for part in values.split(cast(Dense, module).widths or len(values)):
        bound = math.sqrt(6.0 / sum(part.shape))
        part.uniform_(-bound, bound, generator=generator)


def _scaled(module: nn.Module, name: str, values: Tensor, generator: torch.Generator) -> None:
    values.normal_(0.0, values.shape[1] ** -0.5, generator=generator)


TRANSFORMER_RULES: InitialRules = {Dense: _uniform, nn.Embedding: _scaled}
"""Initial weights: Glorot uniform, and embeddings of variance 1 / d, as in the published code."""


class ScaledEmbeddings(nn.Module):
    """Word embeddings times sqrt(d), plus sinusoids or learned positions, an optional norm, then dropout (3.4, 3.5).

    With `source_size`, inputs are in a separate vocabulary with its own table `source`; `word` is for a decoder.
    """

    def __init__(
        self,
        config: ModelConfig,
        positions: Positions,
        layer_norm: nn.Module | None = None,
        source_size: int | None = None,
    ) -> None:
        super().__init__()
        self.word = table(config.vocab_size, config.hidden_size)
        self.source = None if source_size is None else table(source_size, config.hidden_size)
        self.positions = positions
        self.layer_norm = layer_norm or nn.Identity()
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, token_ids: Tensor, layout: SequenceLayout) -> Tensor:
        """Return the sum for every token: (tokens,) to (tokens, hidden)."""
        return self.of_vectors((self.word if self.source is None else self.source)(token_ids), layout)

    def of_vectors(self, vectors: Tensor, layout: SequenceLayout) -> Tensor:
        """Return the sum for vectors in place of word embeddings: (tokens, hidden) to (tokens, hidden)."""
        return self.dropout(self.layer_norm(self.positions.added(vectors, layout)))


class Positions(nn.Module):
    """Sinusoids, or with `num_positions` a learned table, whose first `offset` rows are unused.

    With `sines_first` all sines of a position come before its cosines.
    """

    def __init__(
        self,
        hidden_size: int,
        num_positions: int | None,
        *,
        offset: int = 0,
        scales_words: bool = True,
        sines_first: bool = False,
    ) -> None:
        super().__init__()
        self.offset, self._size, self._sines_first = offset, hidden_size, sines_first
        self._scale = math.sqrt(hidden_size) if scales_words else 1.0
        self.table = None if num_positions is None else table(num_positions + offset, hidden_size)

    def forward(self, position_ids: Tensor, last: int | None = None) -> Tensor:
        """Return the vectors of positions up to `last`, (tokens, hidden)."""
        if self.table is not None:
            return self.table(position_ids + self.offset)
        vectors = sinusoids(position_ids, self._size, last)
        return torch.cat([vectors[:, ::2], vectors[:, 1::2]], 1) if self._sines_first else vectors

    def added(self, vectors: Tensor, layout: SequenceLayout) -> Tensor:
        """Return vectors, times sqrt(d) if `scales_words`, plus position vectors, (tokens, hidden)."""
        return torch.add(self(layout.position_ids, layout.max_position), vectors, alpha=self._scale)


class Transformer(Encoder):
    """The encoder: scaled embeddings with positions, layers and, with `pre_norm`, a last norm."""

    initial_rules = TRANSFORMER_RULES

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        num_positions = config.max_position_embeddings if config.learned_positions else None
        positions = Positions(config.hidden_size, num_positions)
        self.embeddings = ScaledEmbeddings(config, positions, source_size=config.source_vocab_size)
        self.layers, self.final_norm = self.transformer_stack()
        self.pooler = LastToken()

    def embedded(self, token_ids: Tensor, segment_ids: Tensor, layout: SequenceLayout) -> Tensor:
        """Return scaled word embeddings with positions; segments are ignored."""
        return self.embeddings(token_ids, layout)

    def layer_layout(self, layout: SequenceLayout) -> SequenceLayout:
        """Return the layout that the layers read: with neighborhoods if attention is restricted to them."""
        return layout.within(cast(TransformerConfig, self.config).attention_neighborhood)

    def new_decoder(self) -> TransformerDecoder:
        """Return a decoder of the same sizes."""
        return TransformerDecoder(self)


class TransformerDecoder(TiedDecoder):
    """A decoder on the output of an encoder, with tied word embeddings at its input and output (3.1, 3.4).

    Its sizes come from the encoder's configuration.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        config, size = encoder.config, encoder.config.hidden_size
        self.neighborhood = getattr(config, "attention_neighborhood", 0)
        learned = getattr(config, "learned_positions", False)
        self.positions = Positions(size, config.max_position_embeddings if learned else None)
        self.layer_norm: nn.Module = nn.Identity()
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.layers, self.final_norm = encoder.transformer_stack(of_decoder=True)

    def forward(self, token_ids: Tensor, layout: SequenceLayout, hidden: Tensor, source: SequenceLayout) -> Tensor:
        """Return the vectors from which next tokens are predicted: target ids (tokens,) to (tokens, hidden).

        `hidden` (source tokens, hidden) is the encoder's output. Raises ValueError for targets beyond the positions.
        """
        with self.reading(layout):
            layout = self.layer_layout(layout)
            rows = layout.filled_up(self.embedded(token_ids, layout))
            memory = PackedMemory(source.filled_up(hidden), AttentionLayout(layout, source))
            for layer in self.layers:
                rows = layer(rows, layout, memory=memory)
            return self.final_norm(rows[: layout.num_tokens])

    def layer_layout(self, layout: SequenceLayout, past: KeyValues | None = None) -> SequenceLayout:
        """Return the layout that the layers read, for tokens that follow those in `past`."""
        return layout.within(self.neighborhood)

    def embedded(self, token_ids: Tensor, layout: SequenceLayout) -> Tensor:
        """Return the input of the first layer, (tokens, hidden)."""
        vectors = self.positions.added(F.embedding(token_ids, self.decoder), layout)
        return self.dropout(self.layer_norm(vectors))

    def memories(self, hidden: Tensor, layout: SequenceLayout) -> list[Any]:
        """Return the memory of each layer for all decoding steps, from the sources' vectors (source tokens, hidden)."""
        return [PaddedMemory.of(cast(CrossAttention, layer.cross_attention), hidden, layout) for layer in self.layers]

    def step(
        self,
        token_ids: Tensor,
        layout: SequenceLayout,
        memories: Sequence[Memory],
        past: Sequence[KeyValues],
        layers: Iterable[Callable[..., Tensor]],
    ) -> Tensor:
        """Return the vectors of tokens that follow `past`, and update it: (tokens,) to (tokens, hidden).

        `memories`, `past` and `layers` have one entry per layer; `layers` may be equivalent functions.
        """
        layout, rows = self.layer_layout(layout, past[0]), self.embedded(token_ids, layout)
        for layer, memory, key_values in zip(layers, memories, past, strict=True):
            rows = layer(rows, layout, key_values, memory)
        return self.final_norm(rows)
