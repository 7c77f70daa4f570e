"""Entities in tag sequences, and their F1 as in the CoNLL-2003 shared task (conlleval)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from maskloom.metrics.metric import checked_primary

Scheme = Literal["io", "iob1", "iob2", "bioes", "bilou"]

# BILOU's L and U are the E and S of BIOES.
_CODES = {"O": 0, "B": 1, "I": 2, "E": 3, "S": 4, "L": 3, "U": 4}
_O, _B, _I, _E, _S = range(5)
_TAG = re.compile(r"(?:O|[BIESLU]-.+)", re.DOTALL)


class Entity(NamedTuple):
    """An entity of a sentence: its type and its words, from `start` (from 0) up to but excluding `end`."""

    type: str
    start: int
    end: int


@lru_cache(maxsize=4096)
def is_tag(text: str) -> bool:
    """Return whether a text is `O`, or one of B, I, E, S, L, U, a hyphen and a type, which may contain hyphens."""
    return _TAG.fullmatch(text) is not None


def entities_of(tags: Sequence[str], *, strict: Scheme | None = None) -> list[Entity]:
    """Return the entities of one sentence in order, as conlleval finds them in tags of any scheme, even ill-formed.

    An entity starts at B- or S-, and at any other tag but O that follows O, another type, E- or S-. With `strict`, only
    entities that are well-formed in that scheme are kept. Raises ValueError for a text that is not a tag.
    """
    table = TagTable.of(sorted(set(tags)))
    ids = {label: number for number, label in enumerate(table.labels)}
    marks = table.marks(np.array([ids[tag] for tag in tags], dtype=np.int64), np.array([len(tags)]), strict=strict)
    rows = zip(marks.types.tolist(), marks.starts.tolist(), marks.ends.tolist(), strict=True)
    return [Entity(table.types[kind], start, end) for kind, start, end in rows]


@dataclass(frozen=True)
class Marks:
    """Entities of many sentences, in order: positions (entities,) in the concatenated words, and type ids."""

    starts: np.ndarray
    ends: np.ndarray
    types: np.ndarray

    def in_common(self, other: Marks) -> np.ndarray:
        """Return the types of the entities on both sides: same words and same type."""
        _, mine, others = np.intersect1d(self.starts, other.starts, assume_unique=True, return_indices=True)
        is_same = (self.ends[mine] == other.ends[others]) & (self.types[mine] == other.types[others])
        return self.types[mine[is_same]]


@dataclass(frozen=True)
class TagTable:
    """Parsed labels by id: `codes` (labels,) of the prefixes and `type_ids` (labels,), -1 for O."""

    labels: tuple[str, ...]
    types: tuple[str, ...]
    codes: np.ndarray
    type_ids: np.ndarray

    @classmethod
    def of(cls, labels: Sequence[str]) -> TagTable:
        """Parse labels; raises ValueError for a text that is not a tag."""
        for label in labels:
            if not is_tag(label):
                raise ValueError(f"the tag {label!r} is neither O nor one of B, I, E, S, L, U with a hyphen and a type")
        types = tuple(sorted({label[2:] for label in labels if label != "O"}))
        numbers = {name: number for number, name in enumerate(types)}
        return cls(
            labels=tuple(labels),
            types=types,
            codes=np.array([_CODES[label[0]] for label in labels], dtype=np.int8),
            type_ids=np.array([numbers[label[2:]] if label != "O" else -1 for label in labels], dtype=np.int64),
        )

    def scheme(self) -> Scheme:
        """Return the scheme that the labels imply: BILOU with L or U, BIOES with E or S, IO without B.

        If only some types have B, it is IOB1, where B only separates; otherwise IOB2.
        """
        kinds = ({label[2:] for label in self.labels if label[0] in prefixes} for prefixes in ("B", "I", "ES", "LU"))
        begun, inside, ended, last = kinds
        if last or ended:
            return "bilou" if last else "bioes"
        return "io" if not begun else "iob2" if inside <= begun else "iob1"

    def marks(self, ids: np.ndarray, lengths: np.ndarray, *, strict: Scheme | None = None) -> Marks:
        """Return the entities of concatenated sentences; no entity crosses the end of a sentence.

        `ids` (words,) are label ids and `lengths` (sentences,) numbers of words. With `strict`, an entity in IOB2 must
        start with B-; one in BIOES or BILOU is a single S-, or runs from B- over I- to E-. IO and IOB1 keep all.
        """
        codes, types = self.codes[ids], self.type_ids[ids]
        inside = codes != _O
        # A break before word i: words i - 1 and i are not in the same entity. Both ends of the text are breaks.
        breaks = np.zeros(len(ids) + 1, dtype=bool)
        breaks[np.concatenate([[0], np.cumsum(lengths)])] = True
        before, after = codes[:-1], codes[1:]
        breaks[1:-1] |= (after == _B) | (after == _S) | (before == _E) | (before == _S) | (types[1:] != types[:-1])
        starts = np.flatnonzero(breaks[:-1] & inside)
        ends = np.flatnonzero(breaks[1:] & inside) + 1
        first, last = codes[starts], codes[ends - 1]
        if strict == "iob2":
            kept = first == _B
        elif strict in ("bioes", "bilou"):
            kept = (first == _S) | ((first == _B) & (last == _E))
        else:
            return Marks(starts, ends, types[starts])
        return Marks(starts[kept], ends[kept], types[starts[kept]])


class EntityMetric:
    """F1 of entities by conlleval's rules, overall and by type, strict F1, and the accuracy of tags.

    `labels` are the tags by id, in any scheme that conlleval reads (IO, IOB1, IOB2) or in BIOES or BILOU. F1 is
    micro-averaged: an entity is right if its words and its type are. For `strict_f1` an entity counts only if its tags
    are well-formed in the labels' scheme, which is inferred unless `scheme` is given. Only sums are kept, whatever the
    number of sentences. A ratio with divisor 0 is 0, as in conlleval.
    """

    def __init__(self, labels: Sequence[str], *, primary: str = "f1", scheme: Scheme | None = None) -> None:
        self.primary = checked_primary(primary, ["f1", "strict_f1", "accuracy"], "tagging")
        self.table = TagTable.of(labels)
        self.scheme: Scheme = scheme or self.table.scheme()
        # Rows: entities in common, predicted, true.
        self._counts, self._strict = np.zeros((2, 3, len(self.table.types)), dtype=np.int64)
        self._true_labels, self._predicted_labels = np.zeros((2, len(labels)), dtype=np.int64)
        self._num_right = 0

    def update(self, predictions: Sequence[np.ndarray], targets: np.ndarray) -> None:
        """Add label ids: predictions (words,) per sentence, targets of all words; raises ValueError if sizes differ."""
        lengths = np.array([len(part) for part in predictions], dtype=np.int64)
        if lengths.sum() != len(targets):
            raise ValueError(f"entities: {lengths.sum()} words predicted, {len(targets)} true; they must agree")
        if not len(targets):
            return
        predicted, true = np.concatenate(predictions), targets
        for what, ids in (("prediction", predicted), ("target", true)):
            if not (ids.min() >= 0 and ids.max() < len(self.table.labels)):
                raise ValueError(f"entities: a {what} lies outside the labels 0 to {len(self.table.labels) - 1}")
        predicted, true = predicted.astype(np.int64), true.astype(np.int64)
        self._num_right += int((predicted == true).sum())
        self._true_labels += np.bincount(true, minlength=len(self._true_labels))
        self._predicted_labels += np.bincount(predicted, minlength=len(self._true_labels))
        num_types = len(self.table.types)
        ways: tuple[tuple[np.ndarray, Scheme | None], ...] = ((self._counts, None), (self._strict, self.scheme))
        for sums, strict in ways:
            found, wanted = (self.table.marks(ids, lengths, strict=strict) for ids in (predicted, true))
            parts = found.in_common(wanted), found.types, wanted.types
            sums += [np.bincount(types, minlength=num_types) for types in parts]

    def compute(self) -> dict[str, float]:
        """Return fractions in 0..1: f1, precision and recall, also as strict_f1 ... and f1_TYPE ..., and accuracy."""
        num_words = int(self._true_labels.sum())
        if num_words == 0:
            raise ValueError("entities: no words were given, so there is no score")
        scores = _ratios(*self._counts.sum(axis=1).tolist())
        scores |= {f"strict_{name}": value for name, value in _ratios(*self._strict.sum(axis=1).tolist()).items()}
        scores["accuracy"] = self._num_right / num_words
        for kind, counts in zip(self.table.types, self._counts.T.tolist(), strict=True):
            scores |= {f"{name}_{kind}": value for name, value in _ratios(*counts).items()}
        return scores

    def reference(self) -> float | None:
        """Return the primary score of one tag for every word: 0, or for accuracy that of the most common tag."""
        if self.primary == "accuracy":
            return float(self._true_labels.max() / max(self._true_labels.sum(), 1))
        return 0.0

    def degeneracy(self) -> str | None:
        """Report that no entity is predicted although some exist, or that all tags are the same, or return None."""
        if self._counts[2].sum() and not self._counts[1].sum():
            return "no entity is ever predicted: train longer, or with a higher learning rate"
        used = np.flatnonzero(self._predicted_labels)
        if len(used) == 1 and np.count_nonzero(self._true_labels) > 1:
            return f"every word gets the tag {self.table.labels[used[0]]}"
        return None


def _ratios(num_right: int, num_predicted: int, num_true: int) -> dict[str, float]:
    total = num_predicted + num_true
    return {
        "f1": 2 * num_right / total if total else 0.0,
        "precision": num_right / num_predicted if num_predicted else 0.0,
        "recall": num_right / num_true if num_true else 0.0,
    }
