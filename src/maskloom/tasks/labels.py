"""Label names and their ids: found in the training data, or given by a catalog row or a file."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from maskloom.errors import ConfigError, DataError, amount
from maskloom.system.foreign_files import read_bytes
from maskloom.tasks.catalog import Kind, catalog_row
from maskloom.tasks.examples import Example, ReadExamples
from maskloom.tasks.reading import NUMBER
from maskloom.tasks.tables import ReadingOptions

_MOST_LABEL_BYTES = 16 << 20
# A label is compared with labels this many times as frequent; among many, the rarest with the most frequent.
_MORE_FREQUENT, _COMPARED = 10, 200
# What SNLI and the datasets library write for rows without a label.
_NO_LABELS = ("-", "-1")


class UnknownLabelError(DataError):
    """Raised for a label that the task does not have."""


def read_label_names(path: str | Path) -> tuple[str, ...]:
    """Read label names from a file, one per line in id order; raises DataError for an empty file, blanks or repeats."""
    try:
        text = read_bytes(path, limit=_MOST_LABEL_BYTES).decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start + 1} is not UTF-8") from None
    names = [line.strip() for line in StringIO(text.rstrip(), newline=None)]
    seen: set[str] = set()
    for number, name in enumerate(names, start=1):
        if not name:
            raise DataError(f"{path}: line {number}: a label name is empty")
        if name in seen:
            raise DataError(f"{path}: line {number}: the label {name!r:.80} appears twice")
        seen.add(name)
    if not names:
        raise DataError(f"{path}: no label names")
    return tuple(names)


def labels_config(names: Sequence[str]) -> dict[str, Any]:
    """Return the keys of config.json that name the outputs of a model."""
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }


def names_of_task(kind: Kind, train: ReadExamples, options: ReadingOptions) -> tuple[str, ...]:
    """Return the label names of the format or of the class list, or else those in the training data.

    The latter are sorted by value if all are whole numbers, else by code point.
    """
    if options.format is not None and (names := catalog_row(options.format).labels):
        return names
    if kind == "regression":
        return ()
    if options.labels is not None:
        names = read_label_names(options.labels)
        if len(names) == 1 and kind != "multilabel":
            raise ConfigError(f"{options.labels}: the only label is {names[0]!r:.80}; a classifier needs at least two")
        return names
    found = {name for example in train.examples for name in _names(example)}
    if all(len(name) < 1000 and name.removeprefix("-").isdecimal() for name in found):  # int() refuses 5,000 digits
        return tuple(sorted(found, key=lambda name: (int(name), name)))
    return tuple(sorted(found))


def with_hint(error: UnknownLabelError, options: ReadingOptions) -> DataError:
    """Return the error for an unknown dev label, with a hint on how to add labels if no class list was given."""
    hint = "" if options.labels else "; labels missing from the training data can be listed in a file (--labels FILE)"
    return DataError(f"{error}{hint}")


def check_alike(kind: Kind, train: ReadExamples, dev: ReadExamples) -> None:
    """Raise DataError if nothing can be learned from the training data, or if only one file has a second text."""
    path, found = train.report.path, {example.label for example in train.examples}
    if found == {()}:
        raise DataError(f"{path}: no row has any label")
    if len(found) == 1 and kind != "multilabel":
        (label,) = found
        why = f"label {label!r:.80}; a classifier needs at least two"
        why = f"score {label}; there is nothing to fit" if isinstance(label, float) else why
        raise DataError(f"{path}: all {len(train.examples)} rows have the {why}")
    takes_pairs = train.examples[0].pair is not None
    if takes_pairs != (dev.examples[0].pair is not None):
        has, lacks = (train, dev) if takes_pairs else (dev, train)
        raise DataError(f"{lacks.report.path}: has no second text, but {has.report.path} has one; they must agree")


def encode_labels(data: ReadExamples, kind: Kind, names: tuple[str, ...]) -> np.ndarray | None:
    """Return labels as an array: ids (examples,) int64, scores (examples,) float32, or 0/1 (examples, labels) float32.

    Returns None if examples lack a label. Raises DataError, with the line, for a name that is not in `names`. If all
    labels are whole numbers and no name is numeric, the labels are ids, and a note says so; for a file that is read in
    pieces, the first piece with labels decides.
    """
    examples, path = data.examples, data.report.path
    if any(example.label is None for example in examples):
        return None
    if kind == "regression":
        return np.array([example.label for example in examples], dtype=np.float32)
    ids = {name: number for number, name in enumerate(names)}
    found = {name for example in examples for name in _names(example)}
    if found and data.report.labels_are_ids is None:
        are_ids = all(map(str.isdecimal, found)) and not any(map(NUMBER.fullmatch, names))
        data.report.labels_are_ids = are_ids
        if are_ids:
            data.report.notes.append(f"labels are numbers, {as_ids(names)}")
    if data.report.labels_are_ids:
        ids = {str(number): number for number in range(len(names))}
    if kind != "multilabel":
        return np.array([_id_of(example.label, ids, names, path, example.line) for example in examples], np.int64)
    labels = np.zeros((len(examples), len(names)), dtype=np.float32)
    for index, example in enumerate(examples):
        for name in _names(example):
            labels[index, _id_of(name, ids, names, path, example.line)] = 1.0
    return labels


def as_ids(names: Sequence[str]) -> str:
    """Return the part of a note that says which ids stand for which names."""
    told = [f"{number} is {name!r:.80}" for number, name in enumerate(names)]
    shown = told if len(told) <= 4 else [*told[:3], "...", told[-1]]
    return f"read as ids: {', '.join(shown)}"


def label_counts(labels: np.ndarray, num_labels: int) -> np.ndarray:
    """Return the count of each label, (labels,), in ids (examples,) or in 0/1 labels (examples, labels)."""
    return labels.sum(axis=0).astype(np.int64) if labels.ndim == 2 else np.bincount(labels, minlength=num_labels)


def doubtful_labels(names: Sequence[str], train: Sequence[int], dev: Sequence[int]) -> list[str]:
    """Describe suspicious labels, rarest first: one in train, none in dev, like a more frequent name, or rare marks."""
    found, order = [], [int(index) for index in np.argsort(train, kind="stable") if train[index]]
    for place, index in enumerate(order):
        name, count, near = names[index], train[index], ""
        if place < _COMPARED:
            others = [(names[other], train[other]) for other in order[-_COMPARED:] if other != index]
            by_case = [other for other, n in others if n >= count and other.casefold() == name.casefold()]
            frequent = [other for other, n in others if n >= count * _MORE_FREQUENT]
            near = did_you_mean(name, by_case or frequent)
            if name in _NO_LABELS and len(frequent) == len(others):
                near = "; does it mark rows without a label?"
        if count == 1 or not dev[index] or near:
            found.append(f"{name!r:.80}: {count} in train, {dev[index] or 'none'} in dev{near}")
    return found


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return a hint with the most similar known name, or "" if none is similar or the name has digits."""
    folded = {} if any(map(str.isdigit, name)) else {other.casefold(): other for other in known if other != name}
    near = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.75)
    return f"; did you mean {folded[near[0]]!r:.80}?" if near else ""


def balanced_weights(labels: np.ndarray, num_labels: int) -> list[float]:
    """Return weights that give every class equal influence: n / (K n_c) for each class c of K.

    For 0/1 labels (examples, labels), they are weights of positives, (n - n_c) / n_c: each label's positives count as
    much as its negatives. A label that never occurs gets 1, as does a 0/1 label that always occurs.
    """
    n, counts = len(labels), label_counts(labels, num_labels).tolist()
    if labels.ndim == 2:
        return [(n - count) / count if 0 < count < n else 1.0 for count in counts]
    return [n / (num_labels * count) if count else 1.0 for count in counts]


def checked_weights(weights: Any, labels: tuple[str, ...]) -> tuple[float, ...] | None:
    """Return the class weights, one per label, or None; raises ValueError for any other number of weights."""
    if weights is not None and len(weights) != len(labels):
        raise ValueError(f"class_weights: {amount(len(weights), 'weight')} for {amount(len(labels), 'label')}")
    return None if weights is None else tuple(weights)


def weights_by_name(weights: dict[str, float], names: tuple[str, ...]) -> list[float]:
    """Return weights in id order, 1 for names left out. Raises ConfigError for unknown names."""
    for name in weights:
        if name not in names:
            raise ConfigError(f"class_weights: there is no label {name!r:.80}; the labels are {', '.join(names)}")
    return [float(weights.get(name, 1.0)) for name in names]


def _names(example: Example) -> tuple[str, ...]:
    if isinstance(example.label, tuple):
        return example.label
    return () if example.label is None else (str(example.label),)


def _id_of(label: object, ids: dict[str, int], names: tuple[str, ...], path: Path, line: int) -> int:
    if label not in ids:
        raise unknown_label(str(label), names, f"{path}: line {line}")
    return ids[str(label)]


def unknown_label(label: str, names: Sequence[str], place: str) -> UnknownLabelError:
    """Return the error for a label that is not among the names of the task's labels."""
    shown = ", ".join(f"{name!r:.80}" for name in names[:20]) + (" ..." if len(names) > 20 else "")
    hint = did_you_mean(label, names)
    return UnknownLabelError(f"{place}: the label {label!r:.80} is not one of the task's labels: {shown}{hint}")
