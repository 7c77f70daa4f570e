"""The configuration of a BERT, with the keys of the published config.json."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from maskloom.models.model_config import ModelConfig

CAUSAL_MODEL_TYPE = "maskloom_causal_bert"
"""What config.json calls a left-to-right BERT: other programs would let its tokens see those after them."""

# Other programs know none of these either: they would leave the BiLSTM out, or the field.
_OWN_TYPES = (CAUSAL_MODEL_TYPE, "maskloom_bert_bilstm", "maskloom_causal_bert_bilstm")
BERT_MODEL_TYPES = ("bert", *_OWN_TYPES, "maskloom_bert_crf", *(f"{name}_crf" for name in _OWN_TYPES))


class BertConfig(ModelConfig):
    """Sizes and constants of a BERT encoder (paper 3.1), frozen; the defaults are those of bert-base-uncased.

    A `causal` one is the left-to-right model of the paper's Table 5: a token attends to itself and those before it, and
    the last token stands for its sequence, as the first one sees itself alone. With `bilstm` a bidirectional LSTM reads
    the last layer, as in that table's last row, and heads read what it gives.
    """

    type_vocab_size: Annotated[int, Field(ge=1, le=10_000)] = 2
    causal: bool = False
    bilstm: bool = False

    required_values: ClassVar = {
        "model_type": BERT_MODEL_TYPES,
        "position_embedding_type": ("absolute", None),
        "is_decoder": (False, None),
        "add_cross_attention": (False, None),
        "tie_word_embeddings": (True, None),
    }

    @property
    def is_causal(self) -> bool:
        """Whether this is a left-to-right BERT."""
        return self.causal

    @property
    def num_segments(self) -> int:
        """How many segments have embeddings: A and B."""
        return self.type_vocab_size

    def as_published(self) -> dict[str, Any]:
        """Return the mapping that goes into config.json, model_type included."""
        own = {key for key in ("causal", "bilstm") if getattr(self, key)}
        values = self.model_dump(exclude={"causal", "bilstm"} - own)
        kind = "bert" if not own else CAUSAL_MODEL_TYPE if self.causal else "maskloom_bert"
        kind += "_bilstm" if self.bilstm else ""
        return {"model_type": kind, **values, "position_embedding_type": "absolute"}
