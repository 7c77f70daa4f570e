"""The configuration of a BERT, with the keys of the published config.json."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from maskloom.config import reason_of
from maskloom.errors import ConfigError, DataError

SizeName = Literal["tiny", "mini", "small", "medium", "base", "large"]

# Layers, hidden size, heads of the published sizes; the feed-forward block is four times the hidden size.
SIZES: dict[str, tuple[int, int, int]] = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}

_Rate = Annotated[float, Field(ge=0.0, lt=1.0, allow_inf_nan=False)]
_Width = Annotated[int, Field(ge=1, le=65_536)]


class BertConfig(BaseModel):
    """Sizes and constants of a BERT encoder (paper 3.1), frozen; the defaults are those of bert-base-uncased.

    A `causal` one is the left-to-right model of the paper's Table 5: a token attends to itself and those before it, and
    the last token stands for its sequence, as the first one sees itself alone.

    Raises ValueError (pydantic's) for a wrong value; `from_published` and `of_size` say it in one readable message.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    vocab_size: Annotated[int, Field(ge=1, le=10_000_000)] = 30_522
    hidden_size: _Width = 768
    num_hidden_layers: Annotated[int, Field(ge=1, le=1_000)] = 12
    num_attention_heads: _Width = 12
    intermediate_size: Annotated[int, Field(ge=1, le=1_000_000)] = 3_072
    hidden_act: str = "gelu"
    hidden_dropout_prob: _Rate = 0.1
    attention_probs_dropout_prob: _Rate = 0.1
    max_position_embeddings: Annotated[int, Field(ge=1, le=1_000_000)] = 512
    type_vocab_size: Annotated[int, Field(ge=1, le=10_000)] = 2
    initializer_range: Annotated[float, Field(gt=0.0, le=10.0, allow_inf_nan=False)] = 0.02
    layer_norm_eps: Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)] = 1e-12
    pad_token_id: Annotated[int, Field(ge=0)] | None = 0
    classifier_dropout: _Rate | None = None
    causal: bool = False

    @field_validator("hidden_act")
    @classmethod
    def _activation_is_known(cls, value: str) -> str:
        from maskloom.layers.activations import activation  # torch; so that wrong sizes are refused without it

        activation(value)
        return value

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not divisible by num_attention_heads {self.num_attention_heads}"
            )
        if self.pad_token_id is not None and self.pad_token_id >= self.vocab_size:
            raise ValueError(f"pad_token_id {self.pad_token_id} is not below vocab_size {self.vocab_size}")
        return self

    @property
    def head_dropout(self) -> float:
        """Dropout before a classifier: `classifier_dropout`, or the hidden dropout where that is absent."""
        return self.hidden_dropout_prob if self.classifier_dropout is None else self.classifier_dropout

    @classmethod
    def of_size(cls, name: SizeName, *, vocab_size: int = 30_522, **overrides: Any) -> Self:
        """Return a published size; `overrides` are keys of this class.

        A changed `hidden_size` takes `intermediate_size` with it, at four times, unless that is given as well. Raises
        ConfigError that names an unknown size, an unknown key or a wrong value.
        """
        if name not in SIZES:
            raise ConfigError(f"unknown model size {name!r}; known: {', '.join(SIZES)}")
        layers, hidden, heads = SIZES[name]
        values: dict[str, Any] = {
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": heads,
            "vocab_size": vocab_size,
            **overrides,
        }
        if isinstance(values["hidden_size"], int):
            values.setdefault("intermediate_size", 4 * values["hidden_size"])
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            problems = "; ".join(_explain(problem) for problem in error.errors(include_url=False))
            raise ConfigError(f"[model.config] {problems}") from None

    @classmethod
    def from_published(cls, values: dict[str, Any], source: str) -> Self:
        """Read the mapping of a published config.json or bert_config.json; `source` names the file in errors.

        Keys that other programs keep there and keys of old releases are ignored; an absent key has the published
        default. Raises DataError, with the file and every wrong key, also for what this encoder does not compute:
        another model_type, relative positions, a decoder.
        """
        if not isinstance(values, dict):
            raise DataError(f"{source}: a model configuration is a JSON object, not {type(values).__name__}")
        problems = [f"{source}: {problem}" for problem in _unsupported(values)]
        try:
            config = cls.model_validate({key: value for key, value in values.items() if key in cls.model_fields})
        except ValidationError as error:
            problems += [f"{source}: {_explain(problem)}" for problem in error.errors(include_url=False)]
            raise DataError("\n".join(problems)) from None
        if problems:
            raise DataError("\n".join(problems))
        return config

    def as_published(self) -> dict[str, Any]:
        """Return the mapping that goes into config.json, model_type included."""
        if self.causal:
            return {"model_type": CAUSAL_MODEL_TYPE, **self.model_dump()}
        return {"model_type": "bert", **self.model_dump(exclude={"causal"})}


CAUSAL_MODEL_TYPE = "maskloom_causal_bert"
"""What config.json calls a left-to-right BERT: other programs would let its tokens see those after them."""

CRF_MODEL_TYPE = "maskloom_bert_crf"
"""What config.json calls a BERT whose tags a conditional random field decides: no program without one may open it."""

# Foreign keys that change what is computed, with the values that mean "as in BERT".
_REQUIRED_VALUES: dict[str, tuple[Any, ...]] = {
    "model_type": ("bert", CRF_MODEL_TYPE, CAUSAL_MODEL_TYPE),
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "tie_word_embeddings": (True, None),
}


# Keys that name Python code of the folder for other programs to run.
_CODE = ("auto_map", "custom_pipelines")


def _unsupported(values: dict[str, Any]) -> list[str]:
    found = [
        f"{key}: names code that comes with the model, which is never run; without the key the model is read as a BERT"
        for key in _CODE
        if values.get(key)
    ]
    for key, allowed in _REQUIRED_VALUES.items():
        if key in values and not any(values[key] is value or values[key] == value for value in allowed):
            found.append(f"{key} = {values[key]!r:.200}: only {allowed[0]!r} is supported")
    return found


def _explain(problem: Any) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    reason = reason_of(problem)
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, BertConfig.model_fields, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(BertConfig.model_fields))}"
        return f"unknown model key {key!r:.200}; {hint}"
    return f"{key} = {problem['input']!r:.200}: {reason}" if key else reason
