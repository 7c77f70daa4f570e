"""Settings for word vectors: those of the word2vec program, with its defaults, and for splitting text into words."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from maskloom.sections import Positive, Section


class WordsRecipe(Section):
    """A run that trains word vectors; the defaults are word2vec's, except for the model.

    The help of `maskloom words train` says what each key means.
    """

    kind: Literal["words"] = "words"
    model: Literal["skipgram", "cbow"] = "skipgram"
    loss: Literal["negative", "hierarchical", "softmax"] = "negative"
    size: int = Field(100, ge=1, le=10_000)
    window: int = Field(5, ge=1, le=1000)
    negative: int = Field(5, ge=1, le=1000)
    noise_exponent: float = Field(0.75, ge=-10.0, le=10.0)
    sample: float = Field(1e-3, ge=0.0, le=1.0)
    context: Literal["mean", "sum"] = "mean"
    divided_gradient: bool = False
    epochs: int = Field(5, ge=1, le=100_000)
    learning_rate: Positive | None = None
    min_count: int = Field(5, ge=1, le=2**31)
    tokenize: Literal["words", "spaces"] = "words"
    cased: bool = False
    phrases: int = Field(0, ge=0, le=10)
    phrase_threshold: Positive = 100.0
    workers: int = Field(1, ge=1, le=256)
    deterministic: bool = False
    seed: int = Field(0, ge=0, lt=2**32)

    @model_validator(mode="after")
    def _sample_has_an_inverse(self) -> Self:
        if 0 < self.sample < 1e-12:
            raise ValueError(f"sample = {self.sample:g}: it must be 0 or at least 1e-12")
        return self

    @property
    def peak_rate(self) -> float:
        """The learning rate at the start."""
        return self.learning_rate or (0.05 if self.model == "cbow" else 0.025)
