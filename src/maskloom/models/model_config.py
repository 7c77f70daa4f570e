"""The base of all encoder configurations: sizes by name, readable errors, published files."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from maskloom.errors import ConfigError, DataError
from maskloom.recipe_files import reason_of
from maskloom.rows import SizeName, row_of
from maskloom.sections import Section, key

SIZES: Mapping[str, Mapping[str, Any]] = {
    name: {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    for name, layers, hidden, heads in (
        ("tiny", 2, 128, 2),
        ("mini", 4, 256, 4),
        ("small", 4, 512, 8),
        ("medium", 8, 512, 8),
        ("base", 12, 768, 12),
        ("large", 24, 1024, 16),
    )
}
"""The published sizes of BERT, which architectures use unless their rows override them."""

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Deviation = Annotated[float, Field(gt=0.0, le=10.0)]
Epsilon = Annotated[float, Field(gt=0.0, le=1.0)]
TokenId = Annotated[int, Field(ge=0)]
VocabSize = Annotated[int, Field(ge=1, le=10_000_000)]
NumLayers = Annotated[int, Field(ge=1, le=1_000)]
Size = Annotated[int, Field(ge=1, le=1_000_000)]
Width = Annotated[int, Field(ge=1, le=65_536)]
# Keys that name Python code in the model folder for other programs to run.
_CODE = ("auto_map", "custom_pipelines")


class ModelSection(Section):
    """The architecture to build; `config` overrides individual keys of its size, under BERT's names."""

    architecture: Annotated[str, row_of("model.architecture")] = key(
        "bert",
        "Kind of model: bert or gpt; encoder-decoder transformer, marian, bart, t5; recurrent rnn, lstm, gru, elmo.",
    )
    size: SizeName = key("mini", "Published size, which sets layers, hidden size and heads.")
    config: dict[str, Any] = key(
        {},
        "Overrides of single config keys under BERT's own names, such as num_hidden_layers = 3. Off by default: "
        "pre_norm (norms before the blocks) and, in a BERT, gated (feed-forward blocks with a gate, GEGLU), rotary "
        "(rotary positions) and embedding_size (width of the embeddings if it is not hidden_size).",
    )
    word_vectors: str | None = key(
        None,
        "Word vectors that initialise a new model's embeddings: a `words train` folder or a file in word2vec's format. "
        "Their width must equal that of the embeddings.",
    )
    freeze_word_vectors: bool = key(False, "Freeze the embeddings, including those of words without a vector.")

    @model_validator(mode="after")
    def _vectors_are_named(self) -> Self:
        if self.freeze_word_vectors and self.word_vectors is None:
            raise ValueError("freeze_word_vectors = true needs model.word_vectors")
        return self


class ModelConfig(BaseModel):
    """Sizes and constants of an encoder, frozen, under the names of BERT's published config.json.

    Raises ValueError (pydantic's) for a wrong value; `from_published` and `of_size` raise it as one readable message.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    vocab_size: VocabSize = 30_522
    hidden_size: Width = 768
    num_hidden_layers: NumLayers = 12
    num_attention_heads: Width = 12
    intermediate_size: Size = 3_072
    hidden_act: str = "gelu"
    hidden_dropout_prob: Fraction = 0.1
    attention_probs_dropout_prob: Fraction = 0.1
    max_position_embeddings: Size = 512
    initializer_range: Deviation = 0.02
    layer_norm_eps: Epsilon = 1e-12
    pad_token_id: TokenId | None = 0
    classifier_dropout: Fraction | None = None

    # The values of model_type in a config.json that describes this architecture; ours is the first.
    model_types: ClassVar[tuple[str, ...]] = ()
    # Published keys that change the computation, with the value that, like null, matches this encoder's computation.
    required_values: ClassVar[Mapping[str, Any]] = {}
    # The published names of our keys, where they differ, and our keys that published files do not have.
    published_names: ClassVar[Mapping[str, str]] = {}
    unpublished: ClassVar[frozenset[str]] = frozenset()

    @field_validator("hidden_act")
    @classmethod
    def _activation_is_known(cls, value: str) -> str:
        from maskloom.layers.activations import activation  # needs torch; wrong sizes are refused without it

        activation(value)
        return value

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not divisible by num_attention_heads {self.num_attention_heads}"
            )
        return self

    @model_validator(mode="after")
    def _marks_fit(self) -> Self:
        for name in type(self).model_fields:
            if name.endswith("_token_id") and (getattr(self, name) or 0) >= self.vocab_size:
                raise ValueError(f"{name} {getattr(self, name)} is not below vocab_size {self.vocab_size}")
        return self

    @property
    def is_causal(self) -> bool:
        """Whether each token attends only to itself and earlier tokens."""
        return getattr(self, "causal", False)

    @property
    def own_start(self) -> int | None:
        """The token that a decoder of this model reads before every target; None if the model does not fix one."""
        return getattr(self, "decoder_start_token_id", None)

    @property
    def never_generated(self) -> tuple[int, ...]:
        """Tokens that a decoder of this model does not generate."""
        return ()

    def with_sources(self, vocab_size: int, num_layers: int | None = None) -> Self:
        """Return a copy with a separate vocabulary for sources, read by `num_layers` extra encoder layers if supported.

        Raises ConfigError if the architecture does not support it.
        """
        raise ConfigError("only a Transformer or a BART can have a separate source vocabulary")

    @property
    def num_segments(self) -> int:
        """The number of segments that have embeddings."""
        return getattr(self, "type_vocab_size", 1)

    @property
    def head_dropout(self) -> float:
        """Dropout before a classifier: `classifier_dropout`, or the hidden dropout if that is None."""
        return self.hidden_dropout_prob if self.classifier_dropout is None else self.classifier_dropout

    def with_marks(self, pad: int | None, begin: int | None, end: int | None) -> Self:
        """Return a copy with the ids of special tokens in keys that were not set; None leaves a key unchanged."""
        ids = {"pad_token_id": pad, "bos_token_id": begin, "forced_bos_token_id": begin}
        ids |= dict.fromkeys(("eos_token_id", "forced_eos_token_id", "decoder_start_token_id"), end)
        open_keys = type(self).model_fields.keys() - self.model_fields_set
        return self.model_copy(update={key: ids[key] for key in open_keys & ids.keys() if ids[key] is not None})

    @classmethod
    def of_size(cls, name: SizeName, sizes: Mapping[str, Mapping[str, Any]] = SIZES, /, **overrides: Any) -> Self:
        """Return one of the `sizes`; `overrides` are keys of this class.

        `intermediate_size` defaults to four times `hidden_size`. Raises ConfigError for an unknown or wrong key.
        """
        if name not in sizes:
            raise ConfigError(f"unknown model size {name!r}; known: {', '.join(sizes)}")
        values: dict[str, Any] = {**sizes[name], **overrides}
        if isinstance(hidden := values.get("hidden_size"), int):
            values.setdefault("intermediate_size", 4 * hidden)
        return cls._checked(values, "[model.config] ")

    def with_keys(self, values: Mapping[str, Any], where: str) -> Self:
        """Return a copy with other values of some keys; raises ConfigError, which names `where`, if they do not fit."""
        own = {key: getattr(self, key) for key in self.model_fields_set}
        return self._checked({**own, **values}, where)

    @classmethod
    def _checked(cls, values: dict[str, Any], where: str) -> Self:
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            problems = "; ".join(cls._explain(problem) for problem in error.errors(include_url=False))
            raise ConfigError(f"{where}{problems}") from None

    @classmethod
    def from_published(cls, values: dict[str, Any], source: str) -> Self:
        """Read the mapping of a published configuration; `source` names the file in errors.

        Keys of other programs and of old releases are ignored; an absent key has the published default. Raises
        DataError, naming the file and every wrong key, also for settings that this encoder does not support.
        """
        problems = [f"{source}: {problem}" for problem in cls._unsupported(values)]
        try:
            config = cls.model_validate(cls.own_keys(values))
        except ValidationError as error:
            for problem in error.errors(include_url=False):
                problems.append(f"{source}: {cls._explain(problem, cls.published_names)}")
            raise DataError("\n".join(problems)) from None
        if problems:
            raise DataError("\n".join(problems))
        return config

    @classmethod
    def own_keys(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return a published mapping under the keys of this class, without keys that it does not have."""
        theirs = {key: cls.published_names.get(key, key) for key in cls.model_fields if key not in cls.unpublished}
        return {key: values[name] for key, name in theirs.items() if name in values}

    def as_published(self) -> dict[str, Any]:
        """Return the mapping that goes into config.json, including model_type."""
        own = self.model_dump(exclude={*self.unpublished})
        content = {self.published_names.get(key, key): value for key, value in own.items()}
        return {"model_type": self.model_types[0], **content}

    @classmethod
    def _unsupported(cls, values: dict[str, Any]) -> list[str]:
        found = [
            f"{key}: names code that comes with the model, which is never run; without the key the model is read as "
            "one of maskloom's own"
            for key in _CODE
            if values.get(key)
        ]
        kind = values.get("model_type", cls.model_types[0])
        required = {**cls.required_values, "model_type": kind if kind in cls.model_types else cls.model_types[0]}
        for name, value in required.items():
            if values.get(name) not in (value, None):
                found.append(f"{name} = {values[name]!r:.200}: only {value!r} is supported")
        return found

    @classmethod
    def _explain(cls, problem: Any, names: Mapping[str, str] | None = None) -> str:
        key = ".".join(str(part) for part in problem["loc"])
        key = (names or {}).get(key, key)
        if problem["type"] != "extra_forbidden":
            reason = reason_of(problem)
            return f"{key} = {problem['input']!r:.200}: {reason}" if key else reason
        from maskloom.models.architectures import ARCHITECTURES  # which needs all configurations

        if akin := [name for name, row in ARCHITECTURES.items() if key in row.config_type.model_fields]:
            hint = f"it is a key of the architecture {' and '.join(akin)}"
        elif near := difflib.get_close_matches(key, cls.model_fields, n=1):
            hint = f"did you mean {near[0]!r}?"
        else:
            hint = f"known: {', '.join(sorted(cls.model_fields))}"
        return f"unknown model key {key!r:.200}; {hint}"
