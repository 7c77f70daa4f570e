"""The configuration of a BERT, with the keys of the published config.json."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from maskloom.models.model_config import ModelConfig, Width

CAUSAL_MODEL_TYPE = "maskloom_causal_bert"
"""The model_type of a left-to-right BERT: other programs would let its tokens attend to later ones."""

# Types that other programs refuse; otherwise they would omit the BiLSTM or the CRF, or compute different layers.
_OWN_TYPES = ("maskloom_bert", CAUSAL_MODEL_TYPE, "maskloom_bert_bilstm", "maskloom_causal_bert_bilstm")
ROFORMER = "roformer"
"""The model_type in other programs of a BERT with rotary positions and none of our other keys."""

OWN_KEYS = ("causal", "bilstm", "pre_norm", "gated", "rotary", "embedding_size")
"""Keys that no published BERT has: a model with any of them on has its own model_type."""


class BertConfig(ModelConfig):
    """Sizes and constants of a BERT encoder (paper 3.1), frozen; the defaults are those of bert-base-uncased.

    With `causal` it is the left-to-right model of the paper's Table 5: each token attends only to itself and earlier
    tokens, and the last token represents its sequence, because the first one sees only itself. With `bilstm` a
    bidirectional LSTM reads the last layer, as in that table's last row, and heads read the LSTM's output.

    `pre_norm` puts a norm before each block and one after the last layer (Xiong et al. 2020, figure 1b). `gated`
    feed-forward blocks multiply the activated projection by a second one (Shazeer 2020, equations 5-6), each of
    `intermediate_size`. With `rotary`, queries and keys are rotated by their positions in every layer, which replaces
    the table of positions (Su et al. 2021, RoFormer, 3.2.2). With an `embedding_size` other
    than `hidden_size`, a projection follows the embeddings, and the masked-LM head projects back (Lan et al. 2019,
    ALBERT, 3.1).
    """

    type_vocab_size: Annotated[int, Field(ge=1, le=10_000)] = 2
    causal: bool = False
    bilstm: bool = False
    pre_norm: bool = False
    gated: bool = False
    rotary: bool = False
    embedding_size: Width | None = None

    model_types: ClassVar = ("bert", ROFORMER, *_OWN_TYPES, *(f"{name}_crf" for name in _OWN_TYPES))
    required_values: ClassVar = {
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        **dict.fromkeys(("is_decoder", "add_cross_attention", "rotary_value"), False),
    }

    @model_validator(mode="before")
    @classmethod
    def _usual_width_is_no_option(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("embedding_size") == values.get("hidden_size", 768):
            return {key: value for key, value in values.items() if key != "embedding_size"}
        return values

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.rotary and (size := self.hidden_size // self.num_attention_heads) % 2:
            raise ValueError(f"rotary = true needs heads of even size; hidden_size / num_attention_heads is {size}")
        if self.bilstm and self.hidden_size % 2:
            raise ValueError(f"bilstm = true: hidden_size {self.hidden_size} must be even: two directions share it")
        return self

    @classmethod
    def own_keys(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return a published mapping under the keys of this class: a RoFormer has rotary positions."""
        return super().own_keys(values) | ({"rotary": True} if values.get("model_type") == ROFORMER else {})

    @property
    def is_roformer(self) -> bool:
        """Whether this is the encoder of RoFormer: a BERT with rotary positions and no other key that it lacks."""
        return [key for key in OWN_KEYS if getattr(self, key)] in (["rotary"], ["rotary", "embedding_size"])

    def as_published(self) -> dict[str, Any]:
        """Return the mapping that goes into config.json, including model_type."""
        values = {key: value for key, value in self.model_dump().items() if value or key not in OWN_KEYS}
        kind = "bert" if values.keys().isdisjoint(OWN_KEYS) else "maskloom_bert"
        kind = (CAUSAL_MODEL_TYPE if self.causal else kind) + ("_bilstm" if self.bilstm else "")
        return {"model_type": kind, **values} | ({} if self.rotary else {"position_embedding_type": "absolute"})
