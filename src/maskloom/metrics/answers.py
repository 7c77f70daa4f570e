"""Exact match and F1 of answers to questions by the rules of SQuAD v1.1 and v2.0, in percent."""

from __future__ import annotations

import math
import re
import string
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from maskloom.metrics.metric import checked_primary
from maskloom.metrics.texts import TEXT_SCORES

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SHOWN_IDS = 10
# What is stored of a question; `odds` are -inf without a prediction, "v1" and "v2" exact match and F1 by those rules.
_ROW = np.dtype([("has_answer", bool), ("is_empty", bool), ("odds", float), ("v1", float, 2), ("v2", float, 2)])


def normalize_answer(text: str) -> str:
    """Lower-case, remove ASCII punctuation and the articles a, an and the, and collapse white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def token_f1(prediction: str, gold: str, *, has_unanswerable: bool) -> float:
    """Return the F1 over normalised words as multisets (0 to 1).

    If either side has no words, v2.0 (`has_unanswerable`) gives 1 if neither has any, else 0; v1.1 always gives 0.
    """
    words, gold_words = normalize_answer(prediction).split(), normalize_answer(gold).split()
    if has_unanswerable and not (words and gold_words):
        return float(words == gold_words)
    num_same = sum((Counter(words) & Counter(gold_words)).values())
    if num_same == 0:
        return 0.0
    precision, recall = num_same / len(words), num_same / len(gold_words)
    return 2 * precision * recall / (precision + recall)


def is_percent(name: str, scores: Collection[str]) -> bool:
    """Return whether a score is in percent, as scores of answers (with F1 and exact match) and of texts are."""
    if "bleu" in scores:
        return name in TEXT_SCORES
    return {"f1", "exact_match"} <= set(scores) and name.endswith(("f1", "exact", "exact_match"))


def _percent(values: np.ndarray) -> float:
    return 100.0 * float(values.mean())


def answer_scores(prediction: str, golds: Sequence[str], *, has_unanswerable: bool) -> tuple[float, float]:
    """Return exact match and F1 (0 to 1), each the best over the gold answers.

    v2.0 ignores gold answers without words; if none are left, the right answer is the empty text. v1.1 needs a gold
    answer.
    """
    if has_unanswerable:
        golds = [gold for gold in golds if normalize_answer(gold)] or [""]
    exact = float(normalize_answer(prediction) in map(normalize_answer, golds))
    return exact, max(token_f1(prediction, gold, has_unanswerable=has_unanswerable) for gold in golds)


def best_threshold(
    scores: np.ndarray, is_empty: np.ndarray, null_odds: np.ndarray, has_answer: np.ndarray
) -> tuple[float, float]:
    """Return the best mean score (0 to 1) that a threshold on the null odds can reach, and that threshold.

    All arrays are (questions,): the score of the given answer, whether it is empty, by how much the null answer
    outscores it, and whether the question has an answer. As in the official script, the search starts from calling
    every question unanswerable and accepts answers in order of rising odds; only a strict gain moves the threshold.
    """
    gains = np.where(has_answer, scores, np.where(is_empty, 0.0, -1.0))
    order = np.argsort(null_odds, kind="stable")
    totals = np.cumsum(np.concatenate([[float(np.count_nonzero(~has_answer))], gains[order]]))
    best = int(totals.argmax())
    threshold = 0.0 if best == 0 else float(null_odds[order[best - 1]])
    return float(totals[best]) / max(len(scores), 1), threshold


def fitted_threshold(scores: np.ndarray, null_odds: np.ndarray, has_answer: np.ndarray) -> float:
    """Return a threshold on the null odds with the best mean score, for answers that are not empty; all (questions,).

    Differs from the published sweep, whose threshold may fall within equal odds, and is 0 for calling every question
    unanswerable, whatever the odds: applying this one reproduces its score. It lies halfway between odds, or 1 beyond
    them; it is 0 if no threshold beats 0.
    """
    order = np.argsort(null_odds, kind="stable")
    odds, gains = null_odds[order], np.where(has_answer, scores, -1.0)[order]
    totals = np.concatenate([[0.0], np.cumsum(gains)])
    can_part = np.concatenate([[True], odds[1:] > odds[:-1], [True]])
    at_zero = totals[np.searchsorted(odds, 0.0, side="right")]
    best = int(np.where(can_part, totals, -np.inf).argmax())
    if totals[best] <= at_zero + 1e-9:
        return 0.0
    below = odds[best - 1] if best else odds[0] - 2.0
    above = odds[best] if best < len(odds) else odds[-1] + 2.0
    return float((below + above) / 2.0)


def _check_odds(value: float, owner: str) -> None:
    if not abs(value) <= sys.float_info.max:
        raise ValueError(f"the null odds of {owner} are {value!s:.40}; expected a finite number")


class AnswerMetric:
    """Exact match and F1 over questions; stores a few numbers per question, but no texts.

    The rules are v2.0's if some question has no gold answer, else v1.1's. v2.0's add the scores of answerable
    (`HasAns_`) and unanswerable (`NoAns_`) questions and, if null odds are given, the best scores that a threshold on
    them can reach. With `null_threshold`, an answer whose null odds exceed it counts as empty; otherwise texts count as
    given.
    """

    def __init__(self, *, primary: str = "f1", null_threshold: float | None = None) -> None:
        if null_threshold is not None and math.isnan(null_threshold):
            raise ValueError("the null threshold is nan; expected a number")
        self.primary = checked_primary(primary, ("f1", "exact_match"), "answers")
        self.null_threshold = null_threshold
        self._parts: list[np.ndarray] = []
        # at most two distinct answers, enough to see that they differ
        self._texts: set[str] = set()

    def update(self, predictions: Sequence[tuple[str, float | None]], targets: Sequence[Sequence[str]]) -> None:
        """Add (text, null odds or None) and gold answers of questions, in the same order.

        Raises ValueError for null odds that are not finite.
        """
        if len(predictions) != len(targets):
            raise ValueError(f"{len(predictions)} predictions, {len(targets)} targets; they must agree")
        rows = np.empty(len(predictions), _ROW)
        for number, ((text, odds), golds) in enumerate(zip(predictions, targets, strict=True)):
            if odds is not None:
                _check_odds(odds, f"question {number}")
            old = answer_scores(text, golds, has_unanswerable=False) if golds else (0.0, 0.0)
            new = answer_scores(text, golds, has_unanswerable=True)
            rows[number] = bool(golds), not text, np.nan if odds is None else odds, old, new
            if len(self._texts) < 2:
                is_null = self.null_threshold is not None and odds is not None and odds > self.null_threshold
                self._texts.add("" if is_null else text)
        self._parts.append(rows)

    def add_missing(self, has_answer: Sequence[bool]) -> None:
        """Count questions without a prediction, given whether each has an answer; all count as wrong."""
        self._parts.append(np.array([(known, False, -np.inf, (0, 0), (0, 0)) for known in has_answer], _ROW))

    def compute(self) -> dict[str, float]:
        """Return the scores in percent. Raises ValueError if there are no questions."""
        rows, is_v2, (exact, f1) = self._rows()
        has_answer, odds, final = rows["has_answer"], rows["odds"], {"exact": exact, "f1": f1}
        if self.null_threshold is not None:
            # an empty answer is right for an unanswerable question
            final = {name: np.where(odds > self.null_threshold, ~has_answer, values) for name, values in final.items()}
        scores = {"exact_match": _percent(final["exact"]), "f1": _percent(final["f1"])}
        if not is_v2:
            return scores
        for prefix, chosen in (("HasAns", has_answer), ("NoAns", ~has_answer)):
            if chosen.any():
                scores |= {f"{prefix}_{name}": _percent(values[chosen]) for name, values in final.items()}
        said = np.isfinite(odds)  # missing predictions cannot gain anything
        if said.any() and not np.isnan(odds).any():
            for name, values in (("exact", exact), ("f1", f1)):
                best, threshold = best_threshold(values[said], rows["is_empty"][said], odds[said], has_answer[said])
                scores |= {f"best_{name}": 100.0 * (best * float(said.mean())), f"best_{name}_thresh": threshold}
        return scores

    def best_null_threshold(self) -> float:
        """Return the null-odds threshold with the best primary score; raises ValueError for a question without odds."""
        rows, _, (exact, f1) = self._rows()
        if np.isnan(rows["odds"]).any():
            raise ValueError("a threshold on null odds needs the null odds of every question")
        return fitted_threshold(f1 if self.primary == "f1" else exact, rows["odds"], rows["has_answer"])

    def reference(self) -> float | None:
        """Return the score of calling every question unanswerable, or None if every question has an answer."""
        rows, is_v2, _ = self._rows()
        return _percent(~rows["has_answer"]) if is_v2 else None

    def degeneracy(self) -> str | None:
        """Report that all answers are the same, or return None."""
        if len(self._texts) != 1 or sum(map(len, self._parts)) < 2:
            return None
        (text,) = self._texts
        return f"every answer is {text[:60]!r}" if text else "every question is called unanswerable"

    def _rows(self) -> tuple[np.ndarray, bool, np.ndarray]:
        """Return the stored rows, whether v2.0's rules apply, and exact match and F1 by the rules, (2, questions)."""
        rows = np.concatenate([np.empty(0, _ROW), *self._parts])
        if not len(rows):
            raise ValueError("answers: no questions were given, so there is no score")
        is_v2 = not rows["has_answer"].all()
        return rows, is_v2, rows["v2" if is_v2 else "v1"].T


def score_answers(
    golds: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    *,
    null_odds: Mapping[str, float] | None = None,
    null_threshold: float | None = None,
) -> dict[str, Any]:
    """Score predictions by id against gold answers by id, under the names of the official scripts.

    The rules are those of v2.0 if any question has no gold answer, else of v1.1. A question without a prediction counts
    as wrong in both, as in v1.1's script; v2.0's leaves it out of the mean. `first_missing` lists the first of these
    ids; `num_unknown` predictions belong to no question. Raises ValueError for missing or infinite `null_odds`.
    """
    missing = [name for name in golds if name not in predictions]
    found = [name for name in golds if name in predictions]
    metric = AnswerMetric(null_threshold=null_threshold)
    if null_odds is not None and (without := [name for name in found if name not in null_odds]):
        raise ValueError(f"{len(without)} questions have a prediction but no null odds, the first is {without[0]!r}")
    odds: Mapping[str, float | None] = null_odds or dict.fromkeys(found)
    for name in found:
        if (value := odds[name]) is not None:
            _check_odds(value, f"{name!r:.80}")
    metric.update([(predictions[name], odds[name]) for name in found], [golds[name] for name in found])
    metric.add_missing([bool(golds[name]) for name in missing])
    report: dict[str, Any] = {**metric.compute(), "total": len(golds)}
    num_answerable = sum(map(bool, golds.values()))
    if num_answerable < len(golds):
        report = {"exact" if name == "exact_match" else name: value for name, value in report.items()}
        report |= {"HasAns_total": num_answerable, "NoAns_total": len(golds) - num_answerable}
    if predictions and not found:
        report["note"] = "no prediction has the id of a question: these are predictions for another file"
    num_unknown = sum(name not in golds for name in predictions)
    return {**report, "num_missing": len(missing), "first_missing": missing[:_SHOWN_IDS], "num_unknown": num_unknown}
