"""Settings for word vectors: those of the word2vec program, with its defaults, and for splitting text into words."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from maskloom.sections import Section, key


class WordsRecipe(Section):
    """A run that trains word vectors; the defaults are word2vec's, except for the model."""

    kind: Literal["words"] = "words"
    model: Literal["skipgram", "cbow"] = key(
        "skipgram", "skipgram: each word of a window predicts its centre; cbow: all words of the window together do."
    )
    loss: Literal["negative", "hierarchical", "softmax"] = key(
        "negative", "Negative sampling, hierarchical softmax over a Huffman tree, or softmax over all words."
    )
    size: int = key(100, "Dimension of the vectors.", ge=1, le=10_000)
    window: int = key(5, "Maximum words on each side; the width of each window is drawn up to this.", ge=1, le=1000)
    negative: int = key(5, "Noise words per prediction.", ge=1, le=1000)
    noise_exponent: float = key(
        0.75, "Noise words are drawn in proportion to their counts to this power.", ge=-10.0, le=10.0
    )
    sample: float = key(
        1e-3, "Subsample words that make up more than this fraction of the text; 0 for none.", ge=0.0, le=1.0
    )
    context: Literal["mean", "sum"] = key("mean", "How cbow combines the vectors of a window.")
    divided_gradient: bool = key(
        False, "Divide the gradient of a cbow window by its number of words; word2vec does not."
    )
    epochs: int = key(5, "Passes over the text.", ge=1, le=100_000)
    learning_rate: float | None = key(None, "Peak learning rate; by default 0.025 for skipgram, 0.05 for cbow.", gt=0.0)
    min_count: int = key(5, "Drop words that occur less often than this.", ge=1, le=2**31)
    tokenize: Literal["words", "spaces"] = key(
        "words", "words: lower-cased, without punctuation; spaces: split at white space, otherwise unchanged."
    )
    cased: bool = key(False, "Keep case with --tokenize words.")
    phrases: int = key(0, "Passes that join pairs of words into phrases, such as new_york.", ge=0, le=10)
    phrase_threshold: float = key(100.0, "Minimum score of a phrase.", gt=0.0)
    workers: int = key(1, "Number of training threads.", ge=1, le=256)
    deterministic: bool = key(False, "Give the same vectors every time with several workers; takes more memory.")
    seed: int = key(0, "Random seed.", ge=0, lt=2**32)

    @model_validator(mode="after")
    def _sample_has_an_inverse(self) -> Self:
        if 0 < self.sample < 1e-12:
            raise ValueError(f"sample = {self.sample:g}: it must be 0 or at least 1e-12")
        return self

    @property
    def peak_rate(self) -> float:
        """The learning rate at the start."""
        return self.learning_rate or (0.05 if self.model == "cbow" else 0.025)
