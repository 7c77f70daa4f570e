"""T5: an encoder, and a decoder as a head on top of it (Raffel et al. 2019, 2.1)."""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskloom.layers.attention import KeyValues
from maskloom.layers.dropout import Dropout
from maskloom.layers.embeddings import WordEmbeddings
from maskloom.layers.feed_forward import FeedForward, GatedFeedForward
from maskloom.layers.initialization import InitialRules, constants
from maskloom.layers.pooling import LastToken
from maskloom.layers.processor.matrix_products import Dense
from maskloom.layers.relative_attention import QueryDense, RelativeBias, RelativeSelfAttention, UnscaledCrossAttention
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.layers.transformer import TransformerLayer
from maskloom.layers.vocabulary_loss import vocabulary_loss
from maskloom.models.decoder import TiedDecoder
from maskloom.models.encoder import Encoder
from maskloom.models.t5_config import T5Config
from maskloom.models.transformer import TransformerDecoder


class LastNorm(nn.RMSNorm):
    """The norm after the last layer, then dropout."""

    def __init__(self, config: T5Config) -> None:
        super().__init__(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised vectors, with dropout in training."""
        return self.dropout(super().forward(x))


class T5(Encoder):
    """The encoder: word embeddings, pre-norm layers that share one table of relative position biases, and a last norm.

    Norms are RMSNorm (Zhang and Sennrich 2019), and there are no additive biases. The last token represents a sequence.
    """

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.config = config
        self.initial_rules = t5_rules(config)
        self.embeddings = WordEmbeddings(config.vocab_size, config.hidden_size, config.hidden_dropout_prob)
        self.relative_bias, self.layers, self.final_norm = _stack(config)
        self.pooler = LastToken()

    def layer_layout(self, layout: SequenceLayout) -> SequenceLayout:
        """Return the layout with the relative biases of attention scores."""
        return self.relative_bias.within(layout)

    def new_decoder(self) -> T5Decoder:
        """Return a decoder of the same sizes."""
        return T5Decoder(self)


class T5Decoder(TransformerDecoder):
    """The decoder, with the word embeddings of its encoder, and relative position biases in self-attention only.

    Tied word embeddings also produce the logits, from vectors scaled by d^-0.5; otherwise `output` does (T5 1.1).
    """

    def __init__(self, encoder: T5) -> None:
        TiedDecoder.__init__(self, encoder)
        config = cast(T5Config, encoder.config)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.relative_bias, self.layers, self.final_norm = _stack(config, of_decoder=True)
        self.output = None if config.tie_word_embeddings else Dense(config.hidden_size, config.vocab_size, bias=False)

    def layer_layout(self, layout: SequenceLayout, past: KeyValues | None = None) -> SequenceLayout:
        """Return the layout with the relative biases of attention scores."""
        if past is None or past.is_empty:
            return self.relative_bias.within(layout)
        return self.relative_bias.after(layout, past.past)

    def embedded(self, token_ids: Tensor, layout: SequenceLayout) -> Tensor:
        """Return word embeddings; relative biases encode positions."""
        return self.dropout(F.embedding(token_ids, self.decoder))

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the vocabulary logits, (tokens, vocabulary)."""
        return super().logits(hidden * hidden.shape[1] ** -0.5) if self.output is None else self.output(hidden)

    def pack(self, dtype: torch.dtype = torch.float32) -> None:
        """Pack the word embeddings if they produce the logits."""
        if self.output is None:
            super().pack(dtype)

    def loss_sum(self, hidden: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the summed cross-entropy against labels (tokens,), in nats."""
        weight = self.decoder if self.output is None else self.output.weight
        scaled = hidden * hidden.shape[1] ** -0.5 if self.output is None else hidden
        return vocabulary_loss(scaled, weight, None, labels, smoothing=smoothing)

    @torch.no_grad()
    def resize(self, vocab_size: int) -> None:
        """Resize an output matrix: keep its first rows, and fill new rows with the mean of the old ones."""
        if self.output is None:
            return
        old = self.output.weight
        new = old.mean(0).repeat(vocab_size, 1)
        new[: len(old)] = old[:vocab_size]
        self.output.weight = nn.Parameter(new)


def t5_rules(config: T5Config) -> InitialRules:
    """Return the initialisation rules: normal, scaled by fan-in, and smaller for queries, since scores are not scaled.

    They are the rules of the published code, times `initializer_factor`.
    """
    factor = config.initializer_factor

    def fill(module: nn.Module, name: str, values: Tensor, generator: torch.Generator) -> None:
        if name == "bias":  # of a head
            values.zero_()
            return
        width = config.hidden_size**-0.5 if isinstance(module, RelativeBias) else values.shape[1] ** -0.5
        values.normal_(0.0, factor if isinstance(module, nn.Embedding) else factor * width, generator=generator)
        if isinstance(module, QueryDense):
            values[: module.widths[0]] *= config.head_size**-0.5

    return {nn.RMSNorm: constants(weight=factor), **dict.fromkeys((nn.Embedding, RelativeBias, Dense), fill)}


def _stack(config: T5Config, *, of_decoder: bool = False) -> tuple[RelativeBias, nn.ModuleList, LastNorm]:
    """Return the biases of scores, the layers and the last norm of the encoder, or of the decoder."""
    buckets, longest = config.relative_attention_num_buckets, config.relative_attention_max_distance
    bias = RelativeBias(buckets, longest, config.num_attention_heads, causal=of_decoder)
    number, dropout = config.num_decoder_layers if of_decoder else None, config.hidden_dropout_prob
    sizes = (config.hidden_size, config.num_attention_heads, config.head_size, dropout)
    block = GatedFeedForward if config.gated else FeedForward
    layers = nn.ModuleList(
        TransformerLayer(
            RelativeSelfAttention(*sizes),
            block(config.hidden_size, config.intermediate_size, config.hidden_act, dropout, bias=False),
            norm=partial(nn.RMSNorm, config.hidden_size, eps=config.layer_norm_eps),
            dropout=dropout,
            pre_norm=True,
            cross_attention=UnscaledCrossAttention(*sizes) if of_decoder else None,
        )
        for _ in range(number or config.num_hidden_layers)
    )
    return bias, layers, LastNorm(config)
