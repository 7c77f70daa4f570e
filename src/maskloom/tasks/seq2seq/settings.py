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

    max_target_length: Length = key(128, "Maximum tokens per target; longer ones are truncated and counted.", ge=3)
    label_smoothing: float = key(
        0.1, "Fraction of the target distribution spread evenly over the vocabulary.", ge=0.0, lt=1.0
    )
    beam: int = key(4, "Beam size; 1 is greedy search.", ge=1, le=1000)
    length_penalty: float = key(
        0.6, "Beam search divides log-probabilities by ((5 + length) / 6) to this power.", ge=0.0, le=100.0
    )
    min_tokens: int = key(0, "Minimum tokens per generated text.", ge=0, le=100_000)
    no_repeat_ngram: int = key(
        0, "Never generate an n-gram of this length twice in a text; 0 allows all.", ge=0, le=100
    )
    source_layers: int | None = key(
        None, "Layers of the new encoder in front of a BART for sources with their own vocabulary; defaults to 6.", ge=1
    )
    source_first: bool = key(
        False,
        "Train only a BART's new source encoder, its position embeddings and the input projection of its first "
        "self-attention: the first of two training steps for translation.",
    )
    target_suffix: Annotated[str, Field(pattern=SUFFIX)] | None = key(
        None, 'Suffix of the target file that matches a source file line by line: "en" for train.de and train.en.'
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
