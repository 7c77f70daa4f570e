"""Recurrent networks as encoders, and their decoder (Bahdanau et al. 2015; Luong et al. 2015)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskloom.errors import ConfigError
from maskloom.layers.attention import LayerState
from maskloom.layers.dropout import Dropout
from maskloom.layers.embeddings import WordEmbeddings
from maskloom.layers.general_attention import AttentionLayout, Energy, EnergyAttention
from maskloom.layers.initialization import InitialRules
from maskloom.layers.pooling import LastToken, OverTokens
from maskloom.layers.recurrent import RecurrentLayer
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.decoder import TiedDecoder
from maskloom.models.encoder import Encoder
from maskloom.models.recurrent_config import RecurrentConfig


def _fill(
    module: nn.Module, name: str, values: Tensor, generator: torch.Generator, *, forget_bias: float = 0.0
) -> None:
    """Fill weights as torch does and biases with 0, but with `forget_bias` for the gates that keep memory."""
    size: int = module.hidden_size  # pyright: ignore[reportAssignmentType]
    if not name.startswith("bias"):
        values.uniform_(-1 / math.sqrt(size), 1 / math.sqrt(size), generator=generator)
        return
    values.zero_()
    if name.startswith("bias_ih"):
        values[size : 2 * size] = forget_bias  # the second gate of LSTMs and GRUs; Elman's cells have none


class AttentionPooling(nn.Module):
    """Pools the tokens of each sequence by attention: (tokens, hidden) to (sequences, hidden).

    The query is learned, or passed in for each sequence. An empty sequence pools to zeros.
    """

    def __init__(self, energy: Energy, hidden_size: int, *, is_learned: bool) -> None:
        super().__init__()
        self.attention = EnergyAttention(energy, hidden_size)
        self.query = nn.Parameter(torch.empty(1, hidden_size)) if is_learned else None

    def forward(self, hidden: Tensor, layout: SequenceLayout, queries: Tensor | None = None) -> Tensor:
        """Return one vector per sequence, for `queries` (sequences, hidden) or, if None, the learned query."""
        given = self.query if queries is None else queries
        queries = cast(Tensor, given).expand(layout.num_sequences, -1)
        single = SequenceLayout.from_lengths(np.ones(layout.num_sequences, dtype=np.int64), hidden.device)
        return self.attention(queries, hidden, AttentionLayout(single, layout))


class Recurrent(Encoder):
    """Word embeddings and recurrent layers, each of which reads the states of the one below.

    Dropout applies to the input of each layer and, in a left-to-right network, to the output of the last layer, which
    predicts the next word (Zaremba et al. 2014, 3.2); other networks leave the latter to their heads.
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config, size = config, config.hidden_size
        self.embeddings = WordEmbeddings(config.vocab_size, size)
        self.layers = recurrent_layers(config, bidirectional=not config.causal)
        self.final_norm = Dropout(config.hidden_dropout_prob) if config.causal else nn.Identity()
        self.last = LastToken("last" if config.causal else "ends")
        self._query = None
        if config.pooling == "attention":
            self._query = config.attention_query
            self.pooler = AttentionPooling(config.attention_energy, size, is_learned=self._query == "learned")
        else:
            self.pooler = self.last if config.pooling == "last" else OverTokens(config.pooling)
        self.pools_state = self._query == "c"
        forget_bias = getattr(config, "forget_bias", 0.0)
        self.initial_rules: InitialRules = {nn.RNNBase: partial(_fill, forget_bias=forget_bias)}

    def pooled(self, hidden: Tensor, layout: SequenceLayout, past: Sequence[LayerState] | None) -> Tensor:
        """Pool token vectors to one vector per sequence, (sequences, hidden); `past` has the state of every layer."""
        if self._query == "h":
            return self.pooler(hidden, layout, self.last(hidden, layout))
        if self._query == "c":
            last = cast("Sequence[LayerState]", past)[-1]
            queries = hidden.new_zeros(layout.num_sequences, hidden.shape[1]) if last.is_empty else last.tensor[:, 1]
            return self.pooler(hidden, layout, queries)
        return self.pooler(hidden, layout)

    def new_decoder(self) -> RecurrentDecoder:
        """Return a decoder of the same sizes; raises ConfigError for an encoder without layers."""
        if not self.layers:
            raise ConfigError(
                "num_hidden_layers = 0: a decoder starts from the state of a layer, so at least 1 is needed"
            )
        return RecurrentDecoder(self)


def recurrent_layers(config: RecurrentConfig, *, bidirectional: bool) -> nn.ModuleList:
    """Return the layers of a configuration."""
    size, dropout = config.hidden_size, config.hidden_dropout_prob
    return nn.ModuleList(
        RecurrentLayer(config.cell, size, bidirectional=bidirectional, dropout=dropout)
        for _ in range(config.num_hidden_layers)
    )


@dataclass(frozen=True)
class SourceMemory:
    """The input of all decoding steps: the initial state of each layer, and padded sources.

    `first` has (sequences, parts, hidden) per layer, `sources` is (sequences, source, hidden), `is_real` (sequences,
    source).
    """

    first: tuple[Tensor, ...]
    sources: Tensor
    is_real: Tensor

    def taken(self, rows: Tensor) -> SourceMemory:
        """Return a copy with the sequences `rows`, in that order; rows may repeat."""
        first = tuple(state.index_select(0, rows) for state in self.first)
        return SourceMemory(first, self.sources.index_select(0, rows), self.is_real.index_select(0, rows))


class RecurrentDecoder(TiedDecoder):
    """Recurrent layers that start from the encoder's last state, optionally with attention to its output.

    Each layer starts from tanh(W s), with s the state at the ends of the source (Bahdanau et al. 2015, A.2.2). With
    attention, the state h queries the source, and tanh(W [context; h]) predicts the next word (Luong et al. 2015,
    equation 5). Their input feeding is left out, so that training computes all tokens of a layer together.
    """

    def __init__(self, encoder: Recurrent) -> None:
        super().__init__(encoder)
        config, size = cast(RecurrentConfig, encoder.config), encoder.config.hidden_size
        self.layers = recurrent_layers(config, bidirectional=False)
        self.state_shape = cast(RecurrentLayer, self.layers[0]).state_shape
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.last = encoder.last
        self.start = nn.Linear(size, len(self.layers) * self.state_shape[0] * size)
        energy = config.decoder_attention
        self.attention = None if energy == "none" else EnergyAttention(energy, size)
        self.combine = None if energy == "none" else nn.Linear(2 * size, size)

    def forward(self, token_ids: Tensor, layout: SequenceLayout, hidden: Tensor, source: SequenceLayout) -> Tensor:
        """Return the vectors from which next tokens are predicted: target ids (tokens,) to (tokens, hidden).

        `hidden` (source tokens, hidden) is the encoder's output. Raises ValueError for targets beyond `max_length`.
        """
        with self.reading(layout):
            rows = F.embedding(token_ids, self.decoder)
            for layer, state in zip(self.layers, self._first(hidden, source), strict=True):
                rows = layer(rows, layout, LayerState(state))
            if self.attention is not None:
                rows = self._joined(self.attention(rows, hidden, AttentionLayout(layout, source)), rows)
            return self.dropout(rows)

    def memories(self, hidden: Tensor, layout: SequenceLayout) -> list[SourceMemory]:
        """Return the memory that all decoding steps read, from sources' vectors `hidden` (source tokens, hidden)."""
        is_real = torch.arange(layout.max_length, device=hidden.device) < layout.lengths.unsqueeze(1)
        return [SourceMemory(self._first(hidden, layout), layout.padded(hidden), is_real)]

    def step(
        self,
        token_ids: Tensor,
        layout: SequenceLayout,
        memories: Sequence[SourceMemory],
        past: Sequence[LayerState],
        layers: Iterable[Callable[..., Tensor]],
    ) -> Tensor:
        """Return the vectors of tokens that follow `past`, and update it: (tokens,) to (tokens, hidden)."""
        (memory,), rows = memories, F.embedding(token_ids, self.decoder)
        for layer, state, first in zip(layers, past, memory.first, strict=True):
            state.tensor = first if state.is_empty else state.tensor
            rows = layer(rows, layout, state)
        if self.attention is None:
            return rows
        queries = rows.view(len(memory.sources), -1, rows.shape[1])
        weights = self.attention.weights(queries, memory.sources, memory.is_real.unsqueeze(1))
        return self._joined(weights @ memory.sources, rows)

    def _joined(self, context: Tensor, rows: Tensor) -> Tensor:
        return cast(nn.Linear, self.combine)(torch.cat([context.view_as(rows), rows], 1)).tanh()

    def _first(self, hidden: Tensor, source: SequenceLayout) -> tuple[Tensor, ...]:
        states = self.start(self.last(hidden, source)).tanh()
        return states.view(source.num_sequences, len(self.layers), *self.state_shape).unbind(1)
