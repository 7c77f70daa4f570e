"""A tagger on vectors of a frozen encoder: a bidirectional LSTM and a linear layer (BERT paper 5.3, Table 7)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from maskloom.errors import ConfigError
from maskloom.layers.layer_mix import LayerChoice, LayerCombination, ScalarMix
from maskloom.layers.recurrent import BiLSTM
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.model_config import ModelConfig


class BiLSTMTagger(nn.Module):
    """Word vectors to tags: (words, vectors, width) to (words, num_labels).

    `layers` selects hidden states, as in `LayerCombination`; several vectors of a word are concatenated or, for
    "scalar_mix", mixed with learned weights, with `mix_layer_norm` after normalisation. `lstm_size` is the width of
    both directions together: the paper's "768-dimensional" is ambiguous, and we take it that the output is as wide as
    BERT-base. `dropout` is applied before the LSTM, between its layers, and before the linear layer. With `word_size`,
    word vectors of that size are concatenated with the mixed vector (Peters et al. 2018, 3.3). Raises ConfigError for
    unknown layers and for an odd `lstm_size`.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_labels: int,
        *,
        layers: LayerChoice = "concat_last_four",
        lstm_size: int = 768,
        lstm_layers: int = 2,
        dropout: float = 0.1,
        mix_layer_norm: bool = False,
        word_size: int = 0,
    ) -> None:
        super().__init__()
        if lstm_size < 2 or lstm_size % 2:
            raise ConfigError(f"lstm_size = {lstm_size} must be even and at least 2: two directions share it")
        self.num_labels, self.word_size = num_labels, word_size
        self.combination = LayerCombination.of(layers, config.num_hidden_layers)
        is_mixed, num_vectors = self.combination.join == "mix", self.combination.num_vectors
        width = self.combination.width(config.hidden_size)
        self.mix = ScalarMix(num_vectors, layer_norm=mix_layer_norm) if is_mixed else None
        self.dropout = nn.Dropout(dropout)
        self.bilstm = BiLSTM(
            (width if is_mixed else width * num_vectors) + word_size,
            lstm_size,
            num_layers=lstm_layers,
            dropout=dropout,
        )
        self.dense = nn.Linear(lstm_size, num_labels)

    def forward(self, vectors: Tensor, layout: SequenceLayout, word_vectors: Tensor | None = None) -> Tensor:
        """Return a logit per tag: (words, vectors, width) and, if used, (words, word_size) to (words, tags).

        Raises ConfigError for word vectors of a size other than the model's.
        """
        size = 0 if word_vectors is None else word_vectors.shape[1]
        if size != self.word_size:
            raise ConfigError(
                f"word vectors have {size} numbers; the model was trained with {self.word_size or 'none'}"
            )
        mixed = vectors.flatten(1) if self.mix is None else self.mix(vectors)
        mixed = mixed if word_vectors is None else torch.cat([mixed, word_vectors], 1)
        return self.dense(self.dropout(self.bilstm(self.dropout(mixed), layout)))
