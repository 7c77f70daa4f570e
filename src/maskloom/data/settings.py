"""The recipe section [data] of pre-training."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from maskloom.sections import Count, Length, Rate, Section, key


class PretrainingData(Section):
    """Sampling and masking of pre-training instances (paper 3.3.1, 3.3.2)."""

    max_length: Length = key(128, "Maximum tokens per sequence, special ones included.", ge=5)
    short_seq_prob: Rate = key(0.1, "Fraction of documents cut into sequences of a random shorter length.")
    next_sentence: bool = key(True, "Train next-sentence prediction on pairs of texts; false uses single segments.")
    next_sentence_loss: bool = key(True, "Learn whether B follows A; false still reads pairs but predicts only tokens.")
    sentence_order: bool = key(
        False, "Detect pairs in swapped order (ALBERT) instead of random pairs; requires next_sentence."
    )
    masked_lm_prob: float = key(0.15, "Fraction of a sequence's tokens that are predicted.", gt=0.0, lt=1.0)
    max_predictions_per_seq: Count | None = key(
        None, "Maximum predictions in a sequence of max_length tokens; by default, masked_lm_prob decides alone."
    )
    mask_prob: Rate = key(0.8, "Fraction of predicted tokens that become [MASK].")
    keep_prob: Rate = key(0.1, "Fraction of predicted tokens that stay unchanged; the rest become random tokens.")
    whole_word_masking: bool = key(False, "Predict all pieces of a word or none.")
    static_masks: bool = key(False, "Use the same sequences and masks in every epoch.")
    held_out_fraction: float = key(
        0.02, "Fraction of documents held out from training to measure the loss.", ge=0.0, lt=1.0
    )

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        if self.mask_prob + self.keep_prob > 1.0 + 1e-9:
            raise ValueError(f"mask_prob + keep_prob = {self.mask_prob + self.keep_prob}: it may not exceed 1")
        if self.sentence_order and not self.next_sentence:
            raise ValueError("sentence_order = true needs pairs: next_sentence = true")
        if not self.next_sentence_loss and (self.sentence_order or not self.next_sentence):
            raise ValueError("next_sentence_loss = false needs pairs: next_sentence = true, and no sentence_order")
        return self

    @property
    def pairs(self) -> str | None:
        """The kind of text pairs, a key of `PAIR_TASKS`: "nsp", "sop" (sentence order), or None without pairs."""
        return ("sop" if self.sentence_order else "nsp") if self.next_sentence else None

    @property
    def pair_task(self) -> str | None:
        """The task learned on pairs of texts, or None."""
        return self.pairs if self.next_sentence_loss else None

    def resolved_max_predictions(self) -> int:
        """Return the cap on predictions per sequence: `max_predictions_per_seq`, or a default if it is absent.

        The default grows with length and rate and never cuts: 20 at length 128 and 80 at 512 for 0.15, as published.
        """
        return self.max_predictions_per_seq or max(1, round(0.15625 * self.max_length * (self.masked_lm_prob / 0.15)))


class RestoringData(PretrainingData):
    """The keys of [data], and `decoder_start`, the token that the model's decoder reads before all targets, if any."""

    decoder_start: int | None = None


class DenoisingSection(Section):
    """Noise in texts that are to be restored (Lewis et al. 2019, 2.2); the defaults are those of the released BART."""

    permute_sentences: Rate = key(1.0, "Fraction of a sequence's sentences that are shuffled.")
    mask_rate: Rate = key(0.0, "Fraction of tokens that become [MASK].")
    delete_rate: Rate = key(0.0, "Fraction of tokens that are deleted.")
    infill_rate: Rate = key(0.3, "Fraction of tokens in spans of random length, each replaced by one [MASK].")
    span_length: float = key(3.5, "Mean length of infilled spans (Poisson's lambda); 3 in the paper.", ge=1.0, le=50.0)
    random_rate: Rate = key(0.1, "Fraction of [MASK] tokens that are replaced by random tokens.")
    insert_rate: Rate = key(0.0, "Number of [MASK] tokens inserted, as a fraction of the tokens.")
    rotate_rate: Rate = key(0.0, "Probability of rotating a sequence to begin at a random token.")

    @model_validator(mode="after")
    def _rates_fit(self) -> Self:
        if (total := self.mask_rate + self.delete_rate + self.infill_rate) > 1.0 + 1e-9:
            raise ValueError(f"mask_rate + delete_rate + infill_rate = {total:g}: it may not exceed 1")
        return self


class DenoisingData(DenoisingSection, RestoringData):
    """The keys of `DenoisingSection` and of [data]."""


class SpanCorruptionSection(Section):
    """Spans that are removed from a text and are to be generated (Raffel et al. 2020, 3.1.4 and 3.3.4)."""

    noise_density: float = key(0.15, "Fraction of tokens removed in spans.", gt=0.0, lt=1.0)
    mean_span_length: float = key(3.0, "Mean length of a missing span in tokens.", ge=1.0, le=1000.0)


class SpanCorruptionData(SpanCorruptionSection, RestoringData):
    """The keys of `SpanCorruptionSection` and of [data]."""
