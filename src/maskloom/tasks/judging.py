"""Compares predictions with the truth for display: one function per form of prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from maskloom.metrics.answers import answer_scores
from maskloom.metrics.entities import entities_of


class Verdict(NamedTuple):
    """The truth and the model's answer for an example; `error` is 0 if they agree, `probability` is the answer's.

    `text` is the example, where it is shown.
    """

    truth: str
    answer: str
    error: float
    probability: float | None = None
    text: str = ""


def judge_text(_: Any, prediction: dict[str, Any], target: Any, labels: tuple[str, ...]) -> Verdict:
    """Judge a text: right if it is one of the targets."""
    answer = prediction["text"]
    return Verdict(" | ".join(target), answer, float(answer not in target))


def judge_class(_: Any, prediction: dict[str, Any], target: Any, labels: tuple[str, ...]) -> Verdict:
    """Judge the label of an example."""
    truth, answer = labels[int(target)], prediction["label"]
    return Verdict(truth, answer, float(truth != answer), prediction["probabilities"][answer])


def judge_labels(_: Any, prediction: dict[str, Any], target: Any, labels: tuple[str, ...]) -> Verdict:
    """Judge the labels of an example."""
    truth = [name for name, is_true in zip(labels, target, strict=True) if is_true]
    answer = prediction["labels"]
    probability = min((prediction["probabilities"][name] for name in answer), default=None)
    return Verdict(", ".join(truth), ", ".join(answer), float(set(truth) != set(answer)), probability)


def judge_score(_: Any, prediction: dict[str, Any], target: Any, labels: tuple[str, ...]) -> Verdict:
    """Judge a score by its absolute error."""
    score = prediction["score"]
    return Verdict(f"{float(target):.3g}", f"{score:.3g}", abs(score - float(target)))


def judge_choice(example: Any, prediction: dict[str, Any], target: Any, labels: tuple[str, ...]) -> Verdict:
    """Judge a choice by its number."""
    best, truth = prediction["choice"], int(target)
    right, chosen = (f"{number}: {example.choices[number]}" for number in (truth, best))
    return Verdict(right, chosen, float(best != truth), prediction["probabilities"][str(best)])


def judge_answer(question: Any, prediction: dict[str, Any], target: Any, labels: tuple[str, ...]) -> Verdict:
    """Judge an answer by exact match."""
    exact, _f1 = answer_scores(prediction["answer"], target, has_unanswerable=not target)
    truth = " | ".join(dict.fromkeys(target)) or "no answer"
    return Verdict(truth, prediction["answer"] or "no answer", 1.0 - exact, prediction["probability"])


def judge_tags(sentence: Any, prediction: dict[str, Any], target: Any, labels: tuple[str, ...]) -> Verdict:
    """Judge the tags of a sentence, shown as entities or as the words that differ, or all words if none differ."""
    true_tags, tags = [labels[number] for number in target.tolist()], prediction["tags"]
    if "entities" in prediction:
        truth, answer = (_entities(sentence.words, found) for found in (true_tags, tags))
        probability = min((entity["probability"] for entity in prediction["entities"]), default=None)
    else:
        sides = list(zip(sentence.words, true_tags, tags, strict=True))
        sides = [side for side in sides if side[1] != side[2]] or sides
        truth = ", ".join(f"{word} {tag}" for word, tag, _ in sides)
        answer = ", ".join(f"{word} {other}" for word, _, other in sides)
        probability = min(prediction["tag_probabilities"], default=None)
    return Verdict(truth, answer, float(true_tags != tags), probability)


def _entities(words: Sequence[str], tags: list[str]) -> str:
    return ", ".join(f"{' '.join(words[first:end])} {kind}" for kind, first, end in entities_of(tags)) or "none"
