"""BART: a bidirectional encoder and a decoder (Lewis et al. 2019, 2.1), which together encode texts."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from maskloom.layers.pooling import LastToken
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.bart_config import BartConfig
from maskloom.models.encoder import Encoder
from maskloom.models.transformer import Positions, ScaledEmbeddings, TransformerDecoder

# Unused first rows of the published position tables.
_OFFSET = 2
LEARNED_FIRST = (
    *("encoder.source.", "encoder.embeddings.positions.", "heads.decoder.positions."),
    "encoder.layers.0.attention.qkv.weight",
)
"""Name prefixes of the parameters that are trained in the first of the two steps of machine translation (3.4)."""


class Bart(Encoder):
    """The encoder: normed sums of word and position embeddings, and post-norm layers; Marian omits the first norm.

    Heads for sequences and tokens read a decoder on top of it, whose inputs are the same tokens shifted right by one
    (3.1, 3.2). In a model with the head "decoder", which generates other texts, heads read the encoder itself.
    Differs from the paper, which adds a token to represent the text: as in the published code, the vector that
    predicts the last token, an end token, represents it.
    """

    def __init__(self, config: BartConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = ScaledEmbeddings(config, _positions(config), _norm(config))
        self.layers, self.final_norm = self.transformer_stack()
        self.pooler = LastToken()
        self.source: Bart | None = None if config.of_sources is None else Bart(config.of_sources)

    def embedded(self, token_ids: Tensor, segment_ids: Tensor, layout: SequenceLayout) -> Tensor:
        """Return the normed sum of word and position embeddings; segments are ignored.

        With a source encoder, its output takes the place of the word embeddings (3.4).
        """
        if self.source is None:
            return self.embeddings(token_ids, layout)
        vectors = self.source.encode_packed(token_ids, segment_ids, layout).last_hidden_state
        return cast(ScaledEmbeddings, self.embeddings).of_vectors(vectors, layout)

    def freeze(self) -> None:
        """Freeze everything: the decoder on top belongs to the trained model."""
        self.requires_grad_(False)

    def new_decoder(self) -> BartDecoder:
        """Return a decoder that predicts words."""
        return BartDecoder(self, predicts=True)

    def read_through_decoder(self) -> None:
        """Put a decoder on top of the encoder."""
        self.top = BartDecoder(self, predicts=False)

    def through_top(self, token_ids: Tensor, hidden: Tensor, layout: SequenceLayout) -> Tensor:
        """Return the decoder's vectors of the same tokens, which it reads shifted right by one."""
        start = cast(BartConfig, self.config).decoder_start_token_id
        later = token_ids.roll(1).index_fill_(0, layout.first_positions, start)
        return cast(nn.Module, self.top)(later, layout, hidden, layout)


class BartDecoder(TransformerDecoder):
    """The decoder, with its own positions and norm; if it `predicts`, with a bias that is frozen at 0."""

    def __init__(self, encoder: Bart, *, predicts: bool) -> None:
        super().__init__(encoder)
        config = cast(BartConfig, encoder.config)
        self.positions, self.layer_norm = _positions(config), _norm(config)
        if predicts:
            self.bias = nn.Parameter(torch.zeros(1, config.vocab_size), requires_grad=False)


def _positions(config: BartConfig) -> Positions:
    number, scales = None if config.has_sinusoids else config.max_position_embeddings, config.scale_embedding
    return Positions(config.hidden_size, number, offset=_OFFSET, scales_words=scales, sines_first=config.has_sinusoids)


def _norm(config: BartConfig) -> nn.Module:
    return nn.Identity() if config.has_sinusoids else nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
