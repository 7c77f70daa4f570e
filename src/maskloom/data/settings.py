"""The recipe section [data] of pre-training."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from maskloom.sections import Count, Length, Rate, Section, about


class PretrainingData(Section):
    """Sampling and masking of pre-training instances (paper 3.3.1, 3.3.2)."""

    max_length: Annotated[Length, Field(ge=5), about("Maximum tokens per sequence, special ones included.")] = 128
    short_seq_prob: Annotated[Rate, about("Fraction of documents that are cut to a random shorter length.")] = 0.1
    next_sentence: Annotated[
        bool, about("Train next-sentence prediction on pairs of texts; false uses single segments.")
    ] = True
    sentence_order: Annotated[
        bool, about("Of a pair, tell swapped texts apart (ALBERT) instead of random ones; needs next_sentence.")
    ] = False
    masked_lm_prob: Annotated[
        float, Field(gt=0.0, lt=1.0), about("Fraction of a sequence's tokens that are predicted.")
    ] = 0.15
    max_predictions_per_seq: Annotated[
        Count | None, about("Most predictions per max_length tokens; absent, masked_lm_prob alone decides.")
    ] = None
    mask_prob: Annotated[Rate, about("Fraction of predicted tokens that become [MASK].")] = 0.8
    keep_prob: Annotated[Rate, about("Fraction of predicted tokens that stay; the rest become random tokens.")] = 0.1
    whole_word_masking: Annotated[bool, about("Predict either all pieces of a word or none.")] = False
    static_masks: Annotated[bool, about("Use the same instances and masks in every epoch.")] = False
    held_out_fraction: Annotated[
        float, Field(ge=0.0, lt=1.0), about("Fraction of documents held out from training to measure the loss.")
    ] = 0.02

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.mask_prob + self.keep_prob > 1.0 + 1e-9:
            raise ValueError(f"mask_prob + keep_prob = {self.mask_prob + self.keep_prob}: it may not exceed 1")
        if self.sentence_order and not self.next_sentence:
            raise ValueError("sentence_order = true needs pairs: next_sentence = true")
        return self

    @property
    def pair_task(self) -> str | None:
        """What is told of a pair of texts: "nsp", "sop" for their order, or None for single segments."""
        return ("sop" if self.sentence_order else "nsp") if self.next_sentence else None

    @property
    def num_text_tokens(self) -> int:
        """The number of tokens left for text beside [CLS] and one or two [SEP]."""
        return self.max_length - (3 if self.next_sentence else 2)

    def resolved_max_predictions(self) -> int:
        """Return the cap on predictions of one sequence, `max_predictions_per_seq` unless absent.

        The default grows with length and rate, so it never cuts: 20 at length 128 and 80 at 512 for 0.15, as published.
        """
        return self.max_predictions_per_seq or max(1, round(0.15625 * self.max_length * (self.masked_lm_prob / 0.15)))
