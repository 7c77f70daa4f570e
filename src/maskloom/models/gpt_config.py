"""The configuration of a GPT, read and written with the keys of its published files."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import model_validator

from maskloom.models.model_config import Epsilon, Fraction, ModelConfig, TokenId, VocabSize

# Our names of activations to the names in the first GPT's files.
_FIRST_ACTIVATIONS = {"gelu_new": "gelu", "relu": "relu", "silu": "silu"}


class GptConfig(ModelConfig):
    """Sizes and constants of a GPT (Radford et al. 2018, 4.1), frozen; the defaults are those of openai-gpt.

    With `pre_norm` it has the layout of GPT-2 (Radford et al. 2019, 2.3): a norm before each block and one at the end.
    All classifiers use `classifier_dropout`, or the hidden dropout if it is None; transformers uses none for texts.
    """

    vocab_size: VocabSize = 40_478
    hidden_act: str = "gelu_new"
    embedding_dropout_prob: Fraction = 0.1
    layer_norm_eps: Epsilon = 1e-5
    pad_token_id: TokenId | None = None
    pre_norm: bool = False

    causal: ClassVar[bool] = True
    model_types: ClassVar = ("openai-gpt", "gpt2", "maskloom_openai-gpt_crf", "maskloom_gpt2_crf")
    published_names: ClassVar = {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
        "hidden_dropout_prob": "resid_pdrop",
        "attention_probs_dropout_prob": "attn_pdrop",
        "embedding_dropout_prob": "embd_pdrop",
        "classifier_dropout": "summary_first_dropout",
        "layer_norm_eps": "layer_norm_epsilon",
    }
    unpublished: ClassVar = frozenset({"hidden_act", "pre_norm"})
    required_values: ClassVar = {
        **dict.fromkeys(("scale_attn_weights", "tie_word_embeddings"), True),
        **dict.fromkeys(("summary_use_proj", "summary_proj_to_labels"), True),
        **dict.fromkeys(("scale_attn_by_inverse_layer_idx", "add_cross_attention"), False),
        "summary_type": "cls_index",
        "summary_activation": None,
    }

    @model_validator(mode="after")
    def _is_published(self) -> Self:
        if self.pre_norm:
            return self
        if self.hidden_act not in _FIRST_ACTIVATIONS:
            known = ", ".join(_FIRST_ACTIVATIONS)
            raise ValueError(f"hidden_act {self.hidden_act!r}: without pre_norm a GPT has one of {known}")
        if self.intermediate_size != 4 * self.hidden_size:
            raise ValueError(
                f"intermediate_size {self.intermediate_size}: without pre_norm a GPT has four times its hidden_size, "
                f"{4 * self.hidden_size}"
            )
        return self

    @classmethod
    def own_keys(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return a published mapping under the keys of this class; absent sizes are derived as in published code."""
        own = {key: value for key, value in super().own_keys(values).items() if value is not None}
        own["pre_norm"] = "gpt2" in str(values.get("model_type"))
        if own["pre_norm"]:
            own["hidden_act"] = values.get("activation_function", "gelu_new")
            own.setdefault("vocab_size", 50_257)
            own.setdefault("max_position_embeddings", 1_024)
        else:
            name = values.get("afn", "gelu")
            own["hidden_act"] = {"gelu": "gelu_new", "swish": "silu"}.get(str(name), name)
            own.pop("intermediate_size", None)
        hidden = own.get("hidden_size", cls.model_fields["hidden_size"].default)
        return {"intermediate_size": 4 * hidden if isinstance(hidden, int) else 1, **own}

    def as_published(self) -> dict[str, Any]:
        """Return the mapping that goes into config.json, including model_type."""
        content = {key: value for key, value in super().as_published().items() if value is not None}
        if self.pre_norm:
            # without these keys, transformers uses its own ids
            marks = {"bos_token_id": None, "eos_token_id": None}
            return {**content, "model_type": "gpt2", "activation_function": self.hidden_act, **marks}
        del content["n_inner"]
        return {**content, "afn": _FIRST_ACTIVATIONS[self.hidden_act]}
