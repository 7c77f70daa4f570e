"""Settings of tasks: the recipe sections for fine-tuning, and the settings stored with a model."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Strict

from maskloom.sections import Count, Length, Positive, Rate, Section, key


class FinetuningData(Section):
    """How examples of a task are encoded."""

    max_length: Length = key(
        128, "Maximum tokens; longer texts are truncated, contexts and sentences split into windows.", ge=3
    )


class MixSection(Section):
    """How a learned mix of layers is computed, in an ELMo or in [features] (Peters et al. 2018, 3.2)."""

    layer_norm: bool = key(
        False,
        "Normalise each layer to mean 0 and variance 1 over a batch before mixing; results then depend on the batch.",
    )
    l2: float = key(0.0, "Weight of an L2 penalty on the mix's weights: the sum of their squares.", ge=0.0, le=1e6)
    dropout: float = key(0.0, "Dropout on an ELMo's mix; [features] has its own.", ge=0.0, lt=1.0)

    @property
    def of_encoder(self) -> dict[str, Any]:
        """The keys of an encoder's configuration that differ from the defaults."""
        return {f"mix_{name}": value for name, value in self if name != "l2" and value}


class PairSection(Section):
    """Pairs of texts, with one label or a score."""

    both_orders: bool = key(
        False, "Read each pair in both orders and add the vectors, as GPT does if the order has no meaning."
    )


class DocumentSection(Section):
    """Labels of documents by title-guided attention (Dong et al. 2019): the inputs and the two regularisers."""

    max_sentences: Count = key(10, "Maximum sentences read per document; the others are dropped and counted.")
    language: str = key("en", "Language code for splitting texts into sentences.")
    title: bool = key(True, "Include the title's vector in the vector of the document.")
    guided: bool = key(True, "Include attention over the sentences with the title as the query.")
    own: bool = key(True, "Include attention over the sentences with a learned query.")
    similarity: float = key(
        0.0, "Weight of the penalty on unequal probabilities of labels that co-occur in train.", ge=0, le=1e6
    )
    implication: float = key(
        0.0, "Weight of the penalty on labels predicted without the labels they imply.", ge=0, le=1e6
    )
    implied_from: float = key(
        0.8, "A label implies a more common one if at least this fraction of its documents has both.", gt=0, le=1
    )


class KindSettings(Section):
    """Settings of a kind of task, stored with its models; keys of later releases are ignored.

    Each kind adds the keys of its recipe section, settings from the training data, and settings fitted after training.
    """

    model_config = ConfigDict(extra="ignore")

    # fp32 logits divided by less may become infinite, and their probabilities NaN
    temperature: float = key(1.0, "Divisor of the logits before they become probabilities.", ge=1e-6, le=1e6)

    def as_stored(self) -> dict[str, Any]:
        """Return the settings that were set explicitly, as plain values."""
        return self.model_dump(include=self.model_fields_set)


class ClassificationSettings(PairSection, KindSettings):
    """Settings of the kinds with one vector per text or pair.

    `class_weights` are in id order (weights of positives if there are several labels); `thresholds` are the minimum
    probabilities at which each of several labels is chosen, 0.5 by default.
    """

    class_weights: list[Positive] | None = None
    thresholds: list[Rate] | None = None


class DocumentSettings(DocumentSection, ClassificationSettings):
    """Settings of document labels, with the label relations that the regularisers read.

    `similar` has pairs of label ids with the cosine of their columns in train, `implied` pairs (label, implied label).
    """

    similar: Annotated[tuple[Annotated[tuple[int, int, float], Strict(False)], ...], Strict(False)] = ()
    implied: Annotated[tuple[Annotated[tuple[int, int], Strict(False)], ...], Strict(False)] = ()
