"""The configurations of BART and Marian, read and written with the keys of their published files."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from maskloom.models.model_config import SIZES, Fraction, ModelConfig, NumLayers, Size, TokenId, VocabSize, Width

_USUAL_SOURCE_LAYERS = 6
# Published keys of the decoder, and our keys of the encoder whose values they must equal.
_ALIKE = {"decoder_attention_heads": "num_attention_heads", "decoder_ffn_dim": "intermediate_size"}
# Defaults of published files of Marian that differ from ours.
_OF_MARIAN = {"pad_token_id": 58_100, "decoder_start_token_id": 58_100, "scale_embedding": False}
BART_SIZES = {
    **{name: SIZES[name] for name in ("tiny", "mini", "small")},
    "base": {"num_hidden_layers": 6, "hidden_size": 768, "num_attention_heads": 12},
    "large": {"num_hidden_layers": 12, "hidden_size": 1024, "num_attention_heads": 16},
}
"""Base and large are the published sizes; the decoder has as many layers as the encoder (Lewis et al. 2019, 2.1)."""


class BartConfig(ModelConfig):
    """Sizes and constants of a BART (Lewis et al. 2019, 2.1), frozen; the defaults are those of bart-large.

    Encoder and decoder each have `num_hidden_layers`, unless `num_decoder_layers` is given for the decoder. With
    `scale_embedding`, word embeddings are multiplied by sqrt(hidden_size). The decoder's input begins with
    `decoder_start_token_id`, in published models the end token. Generated texts begin with `forced_bos_token_id`, and
    end with `forced_eos_token_id` at their length limit. With `num_source_layers`, an additional encoder before this
    one reads sources in a separate vocabulary (3.4).
    """

    vocab_size: VocabSize = 50_265
    hidden_size: Width = 1_024
    num_decoder_layers: NumLayers | None = None
    num_attention_heads: Width = 16
    intermediate_size: Size = 4_096
    attention_probs_dropout_prob: Fraction = 0.0
    activation_dropout: Fraction = 0.0
    max_position_embeddings: Size = 1_024
    layer_norm_eps: Annotated[float, Field(ge=1e-5, le=1e-5)] = 1e-5
    scale_embedding: bool = False
    classifier_dropout: Fraction | None = 0.0
    pad_token_id: TokenId | None = 1
    bos_token_id: TokenId | None = 0
    eos_token_id: TokenId | None = 2
    decoder_start_token_id: TokenId = 2
    forced_bos_token_id: TokenId | None = None
    forced_eos_token_id: TokenId | None = 2
    source_vocab_size: VocabSize | None = None
    num_source_layers: NumLayers | None = None

    has_sinusoids: ClassVar[bool] = False
    """Whether positions are sinusoidal and embeddings are not normalised."""
    model_types: ClassVar = ("bart", "maskloom_bart_crf", "maskloom_bart_sources")
    published_names: ClassVar = {
        "hidden_size": "d_model",
        "num_hidden_layers": "encoder_layers",
        "num_decoder_layers": "decoder_layers",
        "num_attention_heads": "encoder_attention_heads",
        "intermediate_size": "encoder_ffn_dim",
        "hidden_act": "activation_function",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "initializer_range": "init_std",
        "num_source_layers": "source_layers",
    }
    unpublished: ClassVar = frozenset({"layer_norm_eps"})
    required_values: ClassVar = {
        **dict.fromkeys(("is_encoder_decoder", "tie_word_embeddings", "normalize_embedding"), True),
        **dict.fromkeys(("is_decoder", "add_cross_attention", "normalize_before", "add_final_layer_norm"), False),
        **dict.fromkeys(("add_bias_logits", "static_position_embeddings"), False),
        **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), 0.0),
        "extra_pos_embeddings": 2,
    }

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
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

    def as_published(self) -> dict[str, Any]:
        """Return the mapping that goes into config.json, including model_type."""
        content = super().as_published()
        content |= {"decoder_layers": self.num_decoder_layers or self.num_hidden_layers, "is_encoder_decoder": True}
        content |= {theirs: getattr(self, key) for theirs, key in _ALIKE.items()}
        if self.source_vocab_size is None:
            del content["source_vocab_size"], content["source_layers"]
            return content
        return {**content, "model_type": "maskloom_bart_sources"}

    @classmethod
    def _unsupported(cls, values: dict[str, Any]) -> list[str]:
        found = super()._unsupported(values)
        for theirs, key in _ALIKE.items():
            encoder, default = cls.published_names[key], cls.model_fields[key].default
            one, other = values.get(theirs, default), values.get(encoder, default)
            if one != other:
                found.append(f"{theirs} = {one!r:.200}: only the value of {encoder}, {other!r:.200}, is supported")
        return found


class MarianConfig(BartConfig):
    """The keys of a BART, for the original Transformer: scaled embeddings with sinusoids, and no norm after them.

    All sines of a position come before its cosines. Everything else is as in BART, including the keys in files. The
    published models are Marian's (Junczys-Dowmunt et al. 2018).
    """

    vocab_size: VocabSize = 58_101
    scale_embedding: bool = True
    pad_token_id: TokenId | None = None
    bos_token_id: TokenId | None = None
    eos_token_id: TokenId | None = 0
    decoder_start_token_id: TokenId = 0
    forced_eos_token_id: TokenId | None = 0

    has_sinusoids: ClassVar[bool] = True
    model_types: ClassVar = ("marian", "maskloom_marian_crf")
    required_values: ClassVar = {
        **{key: value for key, value in BartConfig.required_values.items() if key != "extra_pos_embeddings"},
        "normalize_embedding": False,
        **dict.fromkeys(("static_position_embeddings", "share_encoder_decoder_embeddings"), True),
    }

    @model_validator(mode="after")
    def _is_the_original(self) -> Self:
        if self.hidden_size % 2:
            raise ValueError(f"hidden_size {self.hidden_size} must be even for sinusoidal positions")
        if self.source_vocab_size is not None:
            raise ValueError("source_vocab_size: only a BART has a source encoder")
        return self

    @property
    def never_generated(self) -> tuple[int, ...]:
        """Padding: published models give it a logit of 0, however low the others are, and forbid it."""
        return () if self.pad_token_id in (None, self.eos_token_id) else (self.pad_token_id,)

    @classmethod
    def own_keys(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return a published mapping under the keys of this class."""
        return super().own_keys({**_OF_MARIAN, **values})

    def as_published(self) -> dict[str, Any]:
        """Return the mapping that goes into config.json, including model_type."""
        return {**super().as_published(), "model_type": self.model_types[0], "decoder_vocab_size": self.vocab_size}

    @classmethod
    def _unsupported(cls, values: dict[str, Any]) -> list[str]:
        found, size = super()._unsupported(values), values.get("decoder_vocab_size")
        if size not in (None, values.get("vocab_size", cls.model_fields["vocab_size"].default)):
            found.append(f"decoder_vocab_size = {size!r:.200} must equal vocab_size")
        return found
