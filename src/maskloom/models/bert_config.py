"""The configuration of a BERT, with the keys of the published config.json."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from maskloom.models.model_config import ModelConfig

CAUSAL_MODEL_TYPE = "maskloom_causal_bert"
"""What config.json calls a left-to-right BERT: other programs would let its tokens see those after them."""

CRF_MODEL_TYPES = ("maskloom_bert_crf", "maskloom_causal_bert_crf")


class BertConfig(ModelConfig):
    """Sizes and constants of a BERT encoder (paper 3.1), frozen; the defaults are those of bert-base-uncased.

    A `causal` one is the left-to-right model of the paper's Table 5: a token attends to itself and those before it, and
    the last token stands for its sequence, as the first one sees itself alone.
    """

    type_vocab_size: Annotated[int, Field(ge=1, le=10_000)] = 2
    causal: bool = False

    required_values: ClassVar = {
        "model_type": ("bert", CAUSAL_MODEL_TYPE, *CRF_MODEL_TYPES),
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
        if self.causal:
            return {"model_type": CAUSAL_MODEL_TYPE, **self.model_dump(), "position_embedding_type": "absolute"}
        return {"model_type": "bert", **self.model_dump(exclude={"causal"}), "position_embedding_type": "absolute"}
