"""The configuration of ELMo, in keys of our own."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from maskloom.models.model_config import Deviation, Fraction, ModelConfig, NumLayers, Size, Width

_FILTERS = [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]]
ELMO_SIZES = {
    "tiny": {"hidden_size": 128, "filters": [[1, 16], [2, 32], [3, 64], [4, 64], [5, 64]]},
    "mini": {"hidden_size": 256, "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256]]},
    "small": {"hidden_size": 256, "filters": _FILTERS, "num_highways": 1},
    "medium": {"hidden_size": 512, "filters": _FILTERS, "num_highways": 1},
    "large": {"hidden_size": 1024, "filters": _FILTERS},
}
"""Small, medium and large are the published sizes: 13.6, 28 and 93.6 million parameters (Peters et al. 2018)."""
SPELLING_SIZE = 515
"""The number of token ids of `text.spelled_tokenizer`."""


class ElmoConfig(ModelConfig):
    """Sizes and constants of an ELMo, frozen; `hidden_size` covers both directions, `intermediate_size` one cell.

    `vocab_size` counts the words that it learns to predict; its inputs are words spelled in bytes. `filters` are pairs
    of width and number. With `adds_input`, layers after the first add their input. `mix_layer_norm` normalises layers
    before they are mixed, `mix_dropout` applies to the mix, and with `bilstm` a bidirectional LSTM reads the mix.
    """

    hidden_size: Width = 1024
    num_hidden_layers: NumLayers = 2
    num_attention_heads: Annotated[int, Field(ge=1, le=1)] = 1
    intermediate_size: Size = 4096
    hidden_act: str = "relu"
    attention_probs_dropout_prob: Annotated[float, Field(ge=0.0, le=0.0)] = 0.0
    max_position_embeddings: Size = 10_000
    initializer_range: Deviation = 0.1
    source_vocab_size: Annotated[int, Field(ge=SPELLING_SIZE, le=SPELLING_SIZE)] | None = None
    character_size: Width = 16
    max_characters: Annotated[int, Field(ge=3, le=1_000)] = 50
    filters: Annotated[list[Annotated[list[Width], Field(min_length=2, max_length=2)]], Field(min_length=1)] = _FILTERS
    num_highways: Annotated[int, Field(ge=0, le=100)] = 2
    cell_clip: Annotated[float, Field(ge=0.0, le=1e6)] = 3.0
    projection_clip: Annotated[float, Field(ge=0.0, le=1e6)] = 3.0
    adds_input: bool = True
    mix_layer_norm: bool = False
    mix_dropout: Fraction = 0.0
    bilstm: bool = False

    model_types: ClassVar = ("maskloom_elmo", "maskloom_elmo_crf")

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.hidden_size % 2:
            raise ValueError(f"hidden_size {self.hidden_size} must be even: two directions share it")
        if (widest := max(width for width, _ in self.filters)) > self.max_characters:
            raise ValueError(f"filters: one is {widest} characters wide, but words have {self.max_characters}")
        if self.hidden_act not in ("relu", "tanh"):
            raise ValueError(f"hidden_act {self.hidden_act!r}: an ELMo needs 'relu' or 'tanh'")
        return self

    @property
    def weights_of_layer(self) -> int:
        """The number of weights in a layer that each word is multiplied by."""
        return 2 * self.intermediate_size * (8 + 1) * (self.hidden_size // 2)

    def with_marks(self, pad: int | None, begin: int | None, end: int | None) -> Self:
        """Return the configuration for a vocabulary of words, which the model reads spelled."""
        return self.model_copy(update={"source_vocab_size": SPELLING_SIZE})
