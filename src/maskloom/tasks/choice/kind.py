"""Multiple choice as the rest of the package is told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maskloom.errors import DataError
from maskloom.tasks.choice.reading import ChoiceExample, iterate_choices
from maskloom.tasks.examples import ReadExamples, checked_parts, checked_text
from maskloom.tasks.kind import TaskKind, Verdict
from maskloom.tasks.settings import KindSettings

if TYPE_CHECKING:
    from maskloom.tasks.task import Task


def _make(labels: tuple[str, ...], primary: str | None, settings: KindSettings) -> Task:
    from maskloom.tasks.choice.task import choice_task  # torch

    return choice_task(labels, primary, settings)


def _check(train: ReadExamples, dev: ReadExamples) -> None:
    """Refuse training data in which one place is always right."""
    labels = {example.label for example in train.examples}
    if len(labels) == 1:
        raise DataError(
            f"{train.report.path}: every one of {len(train.examples)} rows has choice {labels.pop()} as the right one; "
            "there is nothing to learn"
        )


def _example_of(item: Any, number: int) -> ChoiceExample:
    """Return the example of (context, choices)."""
    context, choices = checked_parts(item, number, "(context, choices)")
    if not isinstance(choices, tuple | list) or len(choices) < 2:
        raise DataError(f"input {number}: the choices are a list of at least two texts")
    texts = tuple(checked_text(choice, number, may_be_blank=False) for choice in choices)
    return ChoiceExample(checked_text(context, number, may_be_blank=False), "", texts, None, number + 1)


def _judge(example: Any, prediction: dict[str, Any], target: Any, labels: tuple[str, ...]) -> Verdict:
    best, truth = prediction["choice"], int(target)
    right, chosen = (f"{number}: {example.choices[number]}" for number in (truth, best))
    return Verdict(right, chosen, float(best != truth), prediction["probabilities"][str(best)])


CHOICE = TaskKind(
    name="choice",
    iterate=lambda path, options, _, **how: iterate_choices(path, options, **how),
    check=_check,
    make=_make,
    example_of=_example_of,
    takes="questions with their choices",
    pipeline_tag="multiple-choice",
    names_labels=False,
    softmax_over="rows",
    judge=_judge,
    reads_folders=True,
    known_by="choice",
)
