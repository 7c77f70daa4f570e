"""The SQuAD scores by the rules of its two official scripts, question by question, independent of our code."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence


def words_of(text: str) -> list[str]:
    """Return the words that count: lower case, without ASCII punctuation and articles."""
    bare = "".join(character for character in text.lower() if character not in set(string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def _scores(text: str, gold: str, *, has_unanswerable: bool) -> tuple[float, float]:
    found, wanted = words_of(text), words_of(gold)
    exact = float(found == wanted)
    if has_unanswerable and (not found or not wanted):
        return exact, exact
    same = sum((Counter(found) & Counter(wanted)).values())
    if not same:
        return exact, 0.0
    precision, recall = same / len(found), same / len(wanted)
    return exact, 2 * precision * recall / (precision + recall)


def scores_v1(golds: Mapping[str, Sequence[str]], texts: Mapping[str, str]) -> dict[str, float]:
    """Return exact match and F1 of v1.1 in percent; a question without a prediction counts as 0."""
    exact = f1 = 0.0
    for name, answers in golds.items():
        if name in texts:
            pairs = [_scores(texts[name], answer, has_unanswerable=False) for answer in answers]
            exact += max(pair[0] for pair in pairs)
            f1 += max(pair[1] for pair in pairs)
    return {"exact_match": 100 * exact / len(golds), "f1": 100 * f1 / len(golds)}


def scores_v2(
    golds: Mapping[str, Sequence[str]],
    texts: Mapping[str, str],
    odds: Mapping[str, float] | None = None,
    threshold: float = float("inf"),
) -> dict[str, float]:
    """Return the output of the v2.0 script, in percent, except the totals; every question needs a prediction.

    A question whose `odds` exceed the threshold counts as unanswered; the best thresholds are also searched in `odds`.
    """
    raw = {}
    for name, answers in golds.items():
        right = [answer for answer in answers if words_of(answer)] or [""]
        pairs = [_scores(texts[name], answer, has_unanswerable=True) for answer in right]
        raw[name] = {"exact": max(pair[0] for pair in pairs), "f1": max(pair[1] for pair in pairs)}
    final = {
        name: {kind: float(not golds[name]) for kind in scores} if odds and odds[name] > threshold else scores
        for name, scores in raw.items()
    }
    parts = {"": list(golds), "HasAns_": [n for n in golds if golds[n]], "NoAns_": [n for n in golds if not golds[n]]}
    found = {
        f"{prefix}{kind}": 100 * sum(final[name][kind] for name in names) / len(names)
        for prefix, names in parts.items()
        if names
        for kind in ("exact", "f1")
    }
    for kind in ("exact", "f1") if odds else ():
        best, threshold = _best(kind, golds, texts, raw, odds or {})
        found |= {f"best_{kind}": 100 * best / len(golds), f"best_{kind}_thresh": threshold}
    return found


def _best(
    kind: str,
    golds: Mapping[str, Sequence[str]],
    texts: Mapping[str, str],
    raw: Mapping[str, Mapping[str, float]],
    odds: Mapping[str, float],
) -> tuple[float, float]:
    """Accept answers by ascending odds, starting with none; only a strict gain moves the threshold."""
    total = best = float(sum(not answers for answers in golds.values()))
    threshold = 0.0
    for name in sorted(odds, key=lambda name: odds[name]):
        total += raw[name][kind] if golds[name] else -float(bool(texts[name]))
        if total > best:
            best, threshold = total, odds[name]
    return best, threshold
