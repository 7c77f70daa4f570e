"""The configuration of a T5 (Raffel et al. 2019), read and written with the keys of its published files."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from maskloom.models.model_config import SIZES, Epsilon, ModelConfig, NumLayers, Size, TokenId, VocabSize, Width

T5_SIZES = {
    **{name: SIZES[name] for name in ("tiny", "mini", "base", "large")},
    "small": {"num_hidden_layers": 6, "hidden_size": 512, "num_attention_heads": 8},
}
"""Small, base and large are the published sizes."""


class T5Config(ModelConfig):
    """Sizes and constants of a T5 (Raffel et al. 2019, 3.1.1, 3.7), frozen; the defaults are those of t5-small.

    Heads have size `head_size`, by default their share of the hidden size. The decoder has `num_decoder_layers`, by
    default as many as the encoder. With `gated` and without `tie_word_embeddings`, in which case the decoder has its
    own output matrix, it is T5 1.1. No weight depends on the number of positions; max_position_embeddings only bounds
    the input. There is one dropout rate, `hidden_dropout_prob`.
    """

    vocab_size: VocabSize = 32_128
    hidden_size: Width = 512
    head_size: Width = 64
    num_hidden_layers: NumLayers = 6
    num_decoder_layers: NumLayers | None = None
    num_attention_heads: Width = 8
    intermediate_size: Size = 2_048
    hidden_act: str = "relu"
    gated: bool = False
    relative_attention_num_buckets: Annotated[int, Field(ge=4, le=65_536, multiple_of=4)] = 32
    relative_attention_max_distance: Annotated[int, Field(ge=2, le=1_000_000)] = 128
    layer_norm_eps: Epsilon = 1e-6
    initializer_factor: Annotated[float, Field(gt=0.0, le=100.0)] = 1.0
    tie_word_embeddings: bool = True
    eos_token_id: TokenId = 1
    decoder_start_token_id: TokenId = 0

    model_types: ClassVar = ("t5", "maskloom_t5", "maskloom_t5_crf")  # the latter two have heads unknown elsewhere
    required_values: ClassVar = {"is_decoder": False}
    published_names: ClassVar = {
        "hidden_size": "d_model",
        "head_size": "d_kv",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "intermediate_size": "d_ff",
        "hidden_act": "feed_forward_proj",
        "hidden_dropout_prob": "dropout_rate",
        "layer_norm_eps": "layer_norm_epsilon",
        "max_position_embeddings": "n_positions",
    }
    unpublished: ClassVar = frozenset({"attention_probs_dropout_prob", "gated"})

    @model_validator(mode="before")
    @classmethod
    def _derived(cls, values: dict[str, Any]) -> dict[str, Any]:
        hidden, heads = (
            values.get(key, cls.model_fields[key].default) for key in ("hidden_size", "num_attention_heads")
        )
        more = {"attention_probs_dropout_prob": values.get("hidden_dropout_prob", 0.1)}
        if isinstance(hidden, int) and isinstance(heads, int) and heads > 0 and hidden % heads == 0:
            more["head_size"] = hidden // heads
        return {**more, **values}

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        """Check the constraints specific to T5, whose heads need not divide the hidden size."""
        if self.relative_attention_max_distance <= (exact := self.relative_attention_num_buckets // 2):
            raise ValueError(
                f"relative_attention_max_distance {self.relative_attention_max_distance} is not above {exact}, half of "
                "relative_attention_num_buckets"
            )
        if self.attention_probs_dropout_prob != self.hidden_dropout_prob:
            raise ValueError(
                f"attention_probs_dropout_prob {self.attention_probs_dropout_prob}: a T5 has one dropout rate, "
                f"hidden_dropout_prob {self.hidden_dropout_prob}"
            )
        if self.gated and self.hidden_act == "gelu":
            raise ValueError("hidden_act 'gelu' with gated = true: a T5 has 'gelu_new'")
        return self

    def with_marks(self, pad: int | None, begin: int | None, end: int | None) -> Self:
        """Return a copy with the ids of special tokens in keys that were not set; padding starts decoder inputs."""
        is_open = pad is not None and "decoder_start_token_id" not in self.model_fields_set
        start = {"decoder_start_token_id": pad if is_open else self.decoder_start_token_id}
        return super().with_marks(pad, begin, end).model_copy(update=start)

    @classmethod
    def own_keys(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return a published mapping under the keys of this class; absent keys have the published defaults."""
        own = {key: value for key, value in super().own_keys(values).items() if value is not None}
        name = values.get("feed_forward_proj", "relu")
        own["gated"] = isinstance(name, str) and name.startswith("gated-")
        own["hidden_act"] = {"gated-gelu": "gelu_new"}.get(name, name.removeprefix("gated-")) if own["gated"] else name
        if values.get("scale_decoder_outputs") is False:  # later files mark untied embeddings this way
            own["tie_word_embeddings"] = False
        return {"head_size": 64, "decoder_start_token_id": own.get("pad_token_id", 0), **own}

    @classmethod
    def _unsupported(cls, values: dict[str, Any]) -> list[str]:
        found = super()._unsupported(values)
        if values.get("tie_word_embeddings") is False and values.get("scale_decoder_outputs") is True:
            found.append("scale_decoder_outputs = True: only False is supported with tie_word_embeddings = False")
        return found

    def as_published(self) -> dict[str, Any]:
        """Return the mapping that goes into config.json, including model_type."""
        content = {key: value for key, value in super().as_published().items() if value is not None}
        act = "gelu" if self.gated and self.hidden_act == "gelu_new" else self.hidden_act
        form = {"feed_forward_proj": f"gated-{act}" if self.gated else act, "is_encoder_decoder": True}
        return {**content, **form}
