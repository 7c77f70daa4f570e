"""The multiple-choice task (BERT paper 4.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from maskloom.data.batch import ChoiceBatch
from maskloom.metrics.calibration import softmax
from maskloom.metrics.labels import ChoiceMetric
from maskloom.objectives.classification import MultipleChoice
from maskloom.tasks.choice.reading import ChoiceExample
from maskloom.tasks.encoding import EncodedGroups, encoded_texts
from maskloom.tasks.settings import KindSettings
from maskloom.tasks.task import Outputs, Task
from maskloom.tasks.tuning import fitted, tune_classes
from maskloom.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class EncodedChoices(EncodedGroups):
    """Token ids, one sequence per choice; `labels` (examples,) are indices of the right choices, from 0, or None."""

    examples: Sequence[ChoiceExample]

    _batch: ClassVar = ChoiceBatch

    def account(self) -> dict[str, Any]:
        """Return the total number of choices and the truncation counts, as plain values."""
        return {**super().account(), "num_choices": int(self.first[-1])}


def encode_choices(examples: Sequence[ChoiceExample], tokenizer: Tokenizer, *, max_length: int) -> EncodedChoices:
    """Encode examples in order, pairing each choice with the context; they may have different numbers of choices."""
    first = np.cumsum([0, *(len(example.choices) for example in examples)], dtype=np.int64)
    fields = encoded_texts((pair for example in examples for pair in example.pairs()), first, tokenizer, max_length)
    labels = [example.label for example in examples]
    known = None if None in labels else np.array(labels, dtype=np.int64)
    return EncodedChoices(**fields, labels=known, examples=examples)


# Still finite when divided by the smallest temperature.
_NO_CHOICE = -1e30


def choice_task(labels: tuple[str, ...], primary: str | None, settings: KindSettings) -> Task:
    """Return the multiple-choice task, which has no label names; raises ValueError for any score but accuracy."""
    metric = partial(ChoiceMetric, primary=primary or "accuracy")
    return Task(
        kind="choice",
        labels=(),
        primary=metric().primary,  # raises for an unknown score now, not after training
        heads=("choice",),
        objective=MultipleChoice(),
        encode=lambda data, tokenizer, max_length, **_: encode_choices(data.examples, tokenizer, max_length=max_length),
        # ties go to the first choice
        decide=lambda encoded, outputs: choice_scores(encoded, outputs).argmax(axis=1),
        decode=partial(_decode, settings.temperature),  # pyright: ignore[reportArgumentType]
        metric=metric,
        settings=settings,
        tune=fitted(tune_classes, choice_scores),
        scored_logits=choice_scores,
    )


def choice_scores(_: Any, outputs: Outputs) -> np.ndarray:
    """Return the scores of all examples, (examples, most choices), padded with scores of probability 0."""
    scores = np.full((len(outputs), max(map(len, outputs), default=1)), _NO_CHOICE, dtype=np.float32)
    for row, found in zip(scores, outputs, strict=True):
        row[: len(found)] = found[:, 0]
    return scores


def _decode(temperature: float, encoded: EncodedChoices, outputs: Outputs) -> list[dict[str, Any]]:
    scores = choice_scores(encoded, outputs)
    return [
        {
            "choice": best,
            "choice_text": example.choices[best],
            "probabilities": {str(number): float(row[number]) for number in range(len(example.choices))},
        }
        for example, best, row in zip(
            encoded.examples, scores.argmax(axis=1).tolist(), softmax(scores / temperature), strict=True
        )
    ]
