"""The configuration of the original Transformer (Vaswani et al. 2017), in keys of our own."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from maskloom.errors import ConfigError
from maskloom.models.model_config import SIZES, Epsilon, Fraction, ModelConfig, NumLayers, Size, VocabSize, Width

TRANSFORMER_SIZES = {
    **{name: SIZES[name] for name in ("tiny", "mini", "small")},
    "base": {"num_hidden_layers": 6, "hidden_size": 512, "num_attention_heads": 8},
    "large": {"num_hidden_layers": 6, "hidden_size": 1024, "num_attention_heads": 16, "hidden_dropout_prob": 0.3},
}
"""Base and large are the paper's base and big (Table 3)."""


class TransformerConfig(ModelConfig):
    """Sizes and constants of an encoder and a decoder, frozen; the defaults are the paper's base model.

    Each has `num_hidden_layers`, unless `num_decoder_layers` is given for the decoder. Heads divide the hidden size
    evenly; a smaller `key_size`, the paper's d_k, applies to queries and keys only. Norms come after the blocks, as in
    the paper, or before them with `pre_norm`, as in its later code. `learned_positions` are tables of
    max_position_embeddings rows. Sinusoids have no limit of their own: that key only bounds the input, and may be
    raised for a trained model. An `attention_neighborhood` of r restricts self-attention to r tokens on either side,
    in the decoder to the r tokens before (section 4 of the paper); 0 means no restriction. With `source_vocab_size`
    the encoder reads a different vocabulary from the decoder's, with its own word embeddings.
    """

    vocab_size: VocabSize = 37_000
    hidden_size: Width = 512
    num_hidden_layers: NumLayers = 6
    num_decoder_layers: NumLayers | None = None
    num_attention_heads: Width = 8
    key_size: Width | None = None
    intermediate_size: Size = 2_048
    hidden_act: str = "relu"
    attention_probs_dropout_prob: Fraction = 0.0
    max_position_embeddings: Size = 1_024
    layer_norm_eps: Epsilon = 1e-6
    pre_norm: bool = False
    learned_positions: bool = False
    attention_neighborhood: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    source_vocab_size: VocabSize | None = None

    model_types: ClassVar = ("maskloom_transformer", "maskloom_transformer_crf")

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.hidden_size % 2 and not self.learned_positions:
            raise ValueError(f"hidden_size {self.hidden_size} must be even for sinusoidal positions")
        if self.key_size is not None and self.key_size > (share := self.hidden_size // self.num_attention_heads):
            raise ValueError(f"key_size {self.key_size} is above {share}, a head's share of hidden_size")
        return self

    def with_sources(self, vocab_size: int, num_layers: int | None = None) -> Self:
        """Return a copy with a vocabulary for sources; raises ConfigError for extra layers, which only a BART has."""
        if num_layers is not None:
            raise ConfigError(f"seq2seq.source_layers = {num_layers}: only a BART (model.architecture=bart) has them")
        return self.model_copy(update={"source_vocab_size": vocab_size})
