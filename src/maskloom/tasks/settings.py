"""The settings of tasks: the recipe sections of fine-tuning, and what is stored with a model."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from maskloom.sections import Length, Positive, Rate, Section, key


class FinetuningData(Section):
    """How examples of a task are encoded."""

    max_length: Length = key(128, "Maximum tokens; longer texts are truncated, contexts and sentences windowed.", ge=3)


class MixSection(Section):
    """How a learned mix of layers is made, an ELMo's or that of [features] (Peters et al. 2018, 3.2)."""

    layer_norm: bool = key(False, "Bring each layer to mean 0 and variance 1 before they are mixed.")
    l2: float = key(0.0, "Weight of the sum of squares of the mix's weights in the loss.", ge=0.0, le=1e6)
    dropout: float = key(0.0, "Dropout of an ELMo's mix; [features] has its own.", ge=0.0, lt=1.0)

    @property
    def of_encoder(self) -> dict[str, Any]:
        """The keys of an encoder's configuration that differ from the defaults."""
        return {f"mix_{name}": value for name, value in self if name != "l2" and value}


class PairSection(Section):
    """Pairs of texts, with one label or a score."""

    both_orders: bool = key(
        False, "Read A B and B A and add their vectors, as GPT does where neither text comes first."
    )


class KindSettings(Section):
    """The settings of a kind of task, stored with its models; keys of later releases are ignored.

    A kind has its own: the keys of its recipe section, what the training data says, and what is fitted afterwards.
    """

    model_config = ConfigDict(extra="ignore")

    # logits of fp32 divided by less may be infinite, and their probabilities no numbers
    temperature: float = key(1.0, "What logits are divided by before they become probabilities.", ge=1e-6, le=1e6)

    def as_stored(self) -> dict[str, Any]:
        """Return what was given, as plain values."""
        return self.model_dump(include=self.model_fields_set)


class ClassificationSettings(PairSection, KindSettings):
    """Settings of the kinds on one vector per text or pair.

    `class_weights` are by id (of positives, where there are several labels); `thresholds` are the least probability at
    which each of several labels is chosen, 0.5 without.
    """

    class_weights: list[Positive] | None = None
    thresholds: list[Rate] | None = None
