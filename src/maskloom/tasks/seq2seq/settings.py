"""The settings of sequence-to-sequence tasks."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from maskloom.sections import Length, Section, key
from maskloom.tasks.settings import KindSettings

SUFFIX = r"^[\w-]+$"
"""The pattern of the suffix of a file of targets, without the dot."""


class Seq2SeqSection(Section):
    """Generating targets from sources."""

    max_target_length: Length = key(128, "Maximum tokens of a target; longer ones are cut, and counted.", ge=3)
    label_smoothing: float = key(0.1, "Share of the target distribution on all words alike.", ge=0.0, lt=1.0)
    beam: int = key(4, "Texts that a search keeps at each step; 1 is greedy.", ge=1, le=1000)
    length_penalty: float = key(
        0.6, "Log-probabilities are divided by ((5 + length) / 6) to this power.", ge=0.0, le=100.0
    )
    min_tokens: int = key(0, "Tokens that a text has at least.", ge=0, le=100_000)
    no_repeat_ngram: int = key(0, "No run of so many tokens occurs twice in a text; 0 allows all.", ge=0, le=100)
    source_layers: int | None = key(
        None, "Layers of the encoder that reads sources in a vocabulary of their own before a BART; absent, 6.", ge=1
    )
    source_first: bool = key(
        False,
        "Train only a BART's new source encoder, its positions and its first self-attention's input matrix: the first "
        "of two steps of translation.",
    )
    target_suffix: Annotated[str, Field(pattern=SUFFIX)] | None = key(
        None, 'Suffix of the file of targets beside a file of sources, line by line: "en" for train.de and train.en.'
    )

    @model_validator(mode="after")
    def _lengths_fit(self) -> Self:
        if self.min_tokens > self.max_target_length:
            rule = f"it may not exceed max_target_length = {self.max_target_length}"
            raise ValueError(f"min_tokens = {self.min_tokens}: {rule}")
        return self


class Seq2SeqSettings(Seq2SeqSection, KindSettings):
    """Settings of sequence-to-sequence tasks; `decoder_start` is the model's own token before every target."""

    decoder_start: int | None = None
