"""The kinds single, pair, regression and multilabel as the rest of the package is told of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from maskloom.tasks.catalog import Kind
from maskloom.tasks.examples import text_example
from maskloom.tasks.kind import TaskKind, Verdict
from maskloom.tasks.labels import check_alike, encode_labels, names_of_task
from maskloom.tasks.reading import iterate_examples
from maskloom.tasks.settings import ClassificationSettings

if TYPE_CHECKING:
    from maskloom.tasks.task import Task


def classification_kind(kind: Kind) -> TaskKind:
    """Return one of the kinds single, pair, regression and multilabel."""
    return TaskKind(
        name=kind,
        iterate=lambda path, options, _, **how: iterate_examples(path, kind, options, **how),
        label_names=lambda train, options, _: names_of_task(kind, train, options),
        label_ids=lambda data, names: encode_labels(data, kind, names),
        check=partial(check_alike, kind),
        make=partial(_make, kind),
        example_of=text_example,
        takes="pairs of sentences" if kind == "pair" else "sentences",
        settings=ClassificationSettings,
        names_labels=kind != "regression",
        softmax_over="labels" if kind in ("single", "pair") else None,
        judge={"regression": _judge_score, "multilabel": _judge_labels}.get(kind, _judge_class),
        with_pairs="pair" if kind == "single" else None,
        has_both_orders=kind in ("pair", "regression"),
    )


def _make(kind: Kind, labels: tuple[str, ...], primary: str | None, settings: ClassificationSettings) -> Task:
    from maskloom.tasks.classification import classification_task  # torch

    return classification_task(kind, labels, primary, settings)


def _judge_class(_: Any, prediction: dict[str, Any], target: Any, labels: tuple[str, ...]) -> Verdict:
    truth, answer = labels[int(target)], prediction["label"]
    return Verdict(truth, answer, float(truth != answer), prediction["probabilities"][answer])


def _judge_labels(_: Any, prediction: dict[str, Any], target: Any, labels: tuple[str, ...]) -> Verdict:
    truth = [name for name, is_true in zip(labels, target, strict=True) if is_true]
    answer = prediction["labels"]
    probability = min((prediction["probabilities"][name] for name in answer), default=None)
    return Verdict(", ".join(truth), ", ".join(answer), float(set(truth) != set(answer)), probability)


def _judge_score(_: Any, prediction: dict[str, Any], target: Any, labels: tuple[str, ...]) -> Verdict:
    score = prediction["score"]
    return Verdict(f"{float(target):.3g}", f"{score:.3g}", abs(score - float(target)))
