"""The configuration of a BART, read and written with the keys of its published files."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from maskloom.models.model_config import SIZES, Fraction, ModelConfig

# Published keys to our keys.
_PUBLISHED = {
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "encoder_layers": "num_hidden_layers",
    "decoder_layers": "num_decoder_layers",
    "encoder_attention_heads": "num_attention_heads",
    "encoder_ffn_dim": "intermediate_size",
    "activation_function": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "activation_dropout": "activation_dropout",
    "classifier_dropout": "classifier_dropout",
    "max_position_embeddings": "max_position_embeddings",
    "scale_embedding": "scale_embedding",
    "init_std": "initializer_range",
    "pad_token_id": "pad_token_id",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "decoder_start_token_id": "decoder_start_token_id",
    "forced_bos_token_id": "forced_bos_token_id",
    "forced_eos_token_id": "forced_eos_token_id",
    "source_vocab_size": "source_vocab_size",
    "source_layers": "num_source_layers",
}
_OF_SOURCES = ("source_vocab_size", "source_layers")
_USUAL_SOURCE_LAYERS = 6
# Published keys of the decoder, and the keys of the encoder whose values they must equal.
_ALIKE = {"decoder_attention_heads": "encoder_attention_heads", "decoder_ffn_dim": "encoder_ffn_dim"}
BART_SIZES = {
    **{name: SIZES[name] for name in ("tiny", "mini", "small")},
    "base": {"num_hidden_layers": 6, "hidden_size": 768, "num_attention_heads": 12},
    "large": {"num_hidden_layers": 12, "hidden_size": 1024, "num_attention_heads": 16},
}
"""Base and large are the published sizes; the decoder has as many layers as the encoder (Lewis et al. 2019, 2.1)."""

TokenId = Annotated[int, Field(ge=0)]


class BartConfig(ModelConfig):
    """Sizes and constants of a BART (Lewis et al. 2019, 2.1), frozen; the defaults are those of bart-large.

    Encoder and decoder each have `num_hidden_layers`, unless `num_decoder_layers` is given for the decoder. With
    `scale_embedding`, word embeddings are multiplied by sqrt(hidden_size). The decoder's input begins with
    `decoder_start_token_id`, in published models the end token. Generated texts begin with `forced_bos_token_id`, and
    end with `forced_eos_token_id` at their length limit. With `num_source_layers`, an additional encoder before this
    one reads sources in a separate vocabulary (3.4).
    """

    vocab_size: Annotated[int, Field(ge=1, le=10_000_000)] = 50_265
    hidden_size: Annotated[int, Field(ge=1, le=65_536)] = 1_024
    num_decoder_layers: Annotated[int, Field(ge=1, le=1_000)] | None = None
    num_attention_heads: Annotated[int, Field(ge=1, le=65_536)] = 16
    intermediate_size: Annotated[int, Field(ge=1, le=1_000_000)] = 4_096
    attention_probs_dropout_prob: Fraction = 0.0
    activation_dropout: Fraction = 0.0
    max_position_embeddings: Annotated[int, Field(ge=1, le=1_000_000)] = 1_024
    layer_norm_eps: Annotated[float, Field(ge=1e-5, le=1e-5)] = 1e-5
    scale_embedding: bool = False
    classifier_dropout: Fraction | None = 0.0
    pad_token_id: TokenId | None = 1
    bos_token_id: TokenId | None = 0
    eos_token_id: TokenId | None = 2
    decoder_start_token_id: TokenId = 2
    forced_bos_token_id: TokenId | None = None
    forced_eos_token_id: TokenId | None = 2
    source_vocab_size: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    num_source_layers: Annotated[int, Field(ge=1, le=1_000)] | None = None

    has_sinusoids: ClassVar[bool] = False
    """Whether positions are sinusoidal and embeddings are not normalised."""
    model_types: ClassVar = ("bart", "maskloom_bart_crf", "maskloom_bart_sources")
    required_values: ClassVar = {
        "is_encoder_decoder": (True, None),
        "is_decoder": (False, None),
        "add_cross_attention": (False, None),
        "tie_word_embeddings": (True, None),
        "encoder_layerdrop": (0.0, None),
        "decoder_layerdrop": (0.0, None),
        "normalize_before": (False, None),
        "normalize_embedding": (True, None),
        "add_final_layer_norm": (False, None),
        "add_bias_logits": (False, None),
        "static_position_embeddings": (False, None),
        "extra_pos_embeddings": (2, None),
    }

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        for key in ("decoder_start_token_id", "forced_bos_token_id"):
            if (getattr(self, key) or 0) >= self.vocab_size:
                raise ValueError(f"{key} {getattr(self, key)} is not below vocab_size {self.vocab_size}")
        if (self.source_vocab_size is None) != (self.num_source_layers is None):
            raise ValueError("source_vocab_size and num_source_layers must be set together")
        return self

    def with_sources(self, vocab_size: int, num_layers: int | None = None) -> Self:
        """Return a copy with a source encoder before its own, by default of 6 layers as in section 5.4 of the paper.

        Raises ConfigError for a Marian.
        """
        if self.has_sinusoids:
            return super().with_sources(vocab_size, num_layers)
        layers = num_layers or _USUAL_SOURCE_LAYERS
        return self.model_copy(update={"source_vocab_size": vocab_size, "num_source_layers": layers})

    @property
    def of_sources(self) -> Self | None:
        """The configuration of the source encoder, or None."""
        if self.source_vocab_size is None:
            return None
        own = {"vocab_size": self.source_vocab_size, "num_hidden_layers": self.num_source_layers}
        return self.model_copy(update={**own, "source_vocab_size": None, "num_source_layers": None})

    @classmethod
    def own_keys(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return a published mapping under the keys of this class."""
        return {key: values[theirs] for theirs, key in _PUBLISHED.items() if theirs in values}

    def as_published(self) -> dict[str, Any]:
        """Return the mapping that goes into config.json, including model_type."""
        own = self.model_dump()
        content = {theirs: own[key] for theirs, key in _PUBLISHED.items()}
        content["decoder_layers"] = self.num_decoder_layers or self.num_hidden_layers
        alike = {theirs: content[encoder] for theirs, encoder in _ALIKE.items()}
        model_type = "bart" if self.source_vocab_size is None else "maskloom_bart_sources"
        if self.source_vocab_size is None:
            content = {key: value for key, value in content.items() if key not in _OF_SOURCES}
        return {"model_type": model_type, "is_encoder_decoder": True, **content, **alike}

    @classmethod
    def _unsupported(cls, values: dict[str, Any]) -> list[str]:
        published = {theirs: cls.model_fields[key].default for theirs, key in _PUBLISHED.items()}
        found = super()._unsupported(values)
        for theirs, encoder in _ALIKE.items():
            one, other = (values.get(key, published[encoder]) for key in (theirs, encoder))
            if one != other:
                found.append(f"{theirs} = {one!r:.200}: only the value of {encoder}, {other!r:.200}, is supported")
        return found
