"""Which columns of a table of multiple choice hold the context, the stem, the choices and the label."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from maskloom.errors import ConfigError, DataError
from maskloom.tasks.columns import ReadingOptions, check_given, check_single, is_column_number, listed, no_labels

_CONTEXTS = ("sent1", "ctx_a", "ctx", "context", "startphrase", "premise", "passage", "article", "prompt", "text")
_STEMS = ("sent2", "ctx_b", "stem", "question")
_QUESTIONS = ("question", "query", "sentence", "sentence1")
_LABELS = ("label", "labels", "gold_label", "answer_key", "answerkey", "correct", "answer", "gold")
_LISTS = ("choices", "endings", "answers", "options", "candidates")
_IDENTIFIERS = ("id", "ind", "index", "example_id", "example-id", "")
_CHOICE = re.compile(r"(choice|ending|answer|option|alternative|sol|hypothesis)[_ -]?([0-9]{1,2}|[a-z])", re.IGNORECASE)


@dataclass(frozen=True)
class ChoiceColumns:
    """Names of the columns; `choices` has one where they form a list."""

    context: str
    stem: str | None
    choices: tuple[str, ...]
    label: str | None
    identifier: str | None
    choices_are_list: bool = False


def choose_columns(
    names: Sequence[str], options: ReadingOptions, *, place: str, lists: Sequence[str] = (), needs_label: bool
) -> ChoiceColumns:
    """Find the columns among the names of a header or the keys of an object; `lists` are keys whose values are lists.

    `options` may name the context (text column), the stem (pair column) and the label; choices are found by their
    names: ending0, choice_1, answerA and so on. Raises DataError for what is not there, ConfigError for a column given
    by number.
    """
    lower = {name.lower(): name for name in reversed(names)}
    given = (options.text_column, options.pair_column, options.label_column)
    for wanted in given:
        if wanted is not None and wanted not in names and is_column_number(wanted):
            raise ConfigError(f"column {wanted!r}: columns of multiple choice are given by the names of a header")
    check_given(given, names, place)
    choices, are_list = _choices(names, lists, place)
    taken = set(choices)

    def first(wanted: Sequence[str], *others: str | None) -> str | None:
        free = (lower[name] for name in wanted if name in lower)
        return next((name for name in free if name not in taken and name not in others), None)

    label = options.label_column or first(_LABELS)
    context = options.text_column or first(_CONTEXTS, options.pair_column, label)
    stem = options.pair_column or (first(_STEMS, context, label) if options.text_column is None else None)
    if context is None:
        context, stem = first(_QUESTIONS, options.pair_column, label), options.pair_column
    if context is None:
        raise DataError(
            f"{place}: no column of contexts ({', '.join((*_CONTEXTS, *_QUESTIONS))}) among {listed(names)}; "
            "name it with --text-column"
        )
    if needs_label and label is None:
        raise no_labels(place, _LABELS, names)
    used = [name for name in (context, stem, label, *choices) if name is not None]
    if len(set(used)) != len(used):
        raise ConfigError(f"{place}: one column is used twice: context {context!r}, stem {stem!r}, label {label!r}")
    check_single(used, names, place)
    return ChoiceColumns(context, stem, choices, label, first(_IDENTIFIERS, context, stem, label), are_list)


def _choices(names: Sequence[str], lists: Sequence[str], place: str) -> tuple[tuple[str, ...], bool]:
    """Return the keys of the choices in their order, and whether it is one key that holds a list."""
    found = next((name for wanted in _LISTS for name in names if name.lower() == wanted and name in lists), None)
    if found is not None:
        return (found,), True
    stems: dict[str, dict[int, str]] = {}
    for name in names:
        match = _CHOICE.fullmatch(name)
        if match:
            stems.setdefault(match[1].lower(), {})[_number(match[2])] = name
    whole = [numbered for numbered in stems.values() if len(numbered) > 1]
    if not whole:
        raise DataError(
            f"{place}: no columns of choices (ending0, choice0, answer0 …, or a list {' or '.join(_LISTS)}) among "
            f"{listed(names)}"
        )
    numbered = max(whole, key=len)
    numbers = sorted(numbered)
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))) or numbers[0] not in (0, 1):
        raise DataError(f"{place}: the columns of choices {listed([numbered[n] for n in numbers])} leave one out")
    return tuple(numbered[number] for number in numbers), False


def _number(text: str) -> int:
    return int(text) if text.isdigit() else ord(text.lower()) - ord("a")
