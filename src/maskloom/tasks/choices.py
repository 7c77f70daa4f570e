"""Reads multiple-choice files: SWAG's CSV, HellaSwag's JSONL, and any CSV or JSONL with choices.

Five data sets are read as distributed if their format is given. CODAH has tab-separated category, prompt, choices and
label, without a header. ARC (Clark et al. 2018) and CommonsenseQA (Talmor et al. 2019) have a `question` with `stem`
and labelled `choices`, and an `answerKey`; ARC also comes with `choices` as lists of texts and labels. COPA (Roemmele
et al. 2011, SuperGLUE's JSONL) has `premise`, `choice1`, `choice2` and asks for the cause or the effect. RACE (Lai et
al. 2017) is a folder of files, each an object with an `article` and lists of `questions`, `options` and `answers`; a
.jsonl file has one such object per line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

from maskloom.errors import DataError
from maskloom.system.foreign_files import file_inside
from maskloom.tasks import tables
from maskloom.tasks.catalog import catalog_row
from maskloom.tasks.examples import ReadExamples, ReadingReport, checked_parts, checked_text, kept_examples
from maskloom.tasks.reading import label_name
from maskloom.tasks.tables import BLANK, BadRowError, Columns, ReadingOptions, Row, UsualNames, row_text

_CONTEXTS = ("sent1", "ctx_a", "ctx", "context", "startphrase", "premise", "passage", "article", "prompt", "text")
_STEMS = ("sent2", "ctx_b", "stem", "question")
_QUESTIONS = ("question", "query", "sentence", "sentence1")
_USUAL = UsualNames(
    pairs=tuple(product(_CONTEXTS, _STEMS)),
    texts=(*_CONTEXTS, *_QUESTIONS),
    labels=("label", "labels", "gold_label", "answer_key", "answerkey", "correct", "answer", "gold"),
)
_LISTS = ("choices", "endings", "answers", "options", "candidates")
_IDENTIFIERS = ("id", "ind", "index", "")
_CHOICE = re.compile(r"(choice|ending|answer|option|alternative|sol|hypothesis)[_ -]?([0-9]{1,2}|[a-z])", re.IGNORECASE)


# Converts a row to examples, each with the keys context, stem, choices, label and id; their values are checked later.
Form = Callable[[Row], list[dict[str, Any]]]


def _choices(names: Sequence[str], lists: Sequence[str], place: str) -> tuple[str, ...]:
    """Return the keys of the choices in order, or the only key, which holds them as a list."""
    found = next((name for wanted in _LISTS for name in names if name.lower() == wanted and name in lists), None)
    if found is not None:
        return (found,)
    stems: dict[str, dict[int, str]] = {}
    for name in names:
        if match := _CHOICE.fullmatch(name):
            number = int(match[2]) if match[2].isdigit() else ord(match[2].lower()) - ord("a")
            stems.setdefault(match[1].lower(), {})[number] = name
    whole = [numbered for numbered in stems.values() if len(numbered) > 1]
    if not whole:
        raise DataError(
            f"{place}: no choice columns (ending0, choice0, answer0 …, or a list {' or '.join(_LISTS)}) among "
            f"{tables.listed(names)}"
        )
    numbered = max(whole, key=len)
    numbers = sorted(numbered)
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))) or numbers[0] not in (0, 1):
        raise DataError(f"{place}: the choice columns {tables.listed([numbered[n] for n in numbers])} leave one out")
    return tuple(numbered[number] for number in numbers)


# The conjunction between a premise and its cause or effect.
_JOINTS = {"cause": "because", "effect": "so"}
# RACE separates the texts from high schools and from middle schools.
_LEVELS = ("high", "middle")


def race_files(folder: Path) -> list[Path]:
    """Return the .txt files of RACE's train, dev or test folder, or of one of its levels, sorted by name in each level.

    Raises DataError if there are none, for anything that is not a regular file, and for links that lead out of the
    folder.
    """
    levels = [folder / level for level in _LEVELS if (folder / level).is_dir()] or [folder]
    for level in levels:
        if not level.resolve().is_relative_to(folder.resolve()):
            raise DataError(f"{level}: is a link to {level.resolve()}, outside the folder; replace it with a copy")
    found = [path for level in levels for path in sorted(level.glob("*.txt")) if file_inside(level, path.name)]
    if not found:
        raise DataError(f"{folder}: no .txt file in it, its high/ or middle/; give train/, dev/ or test/ of RACE")
    return found


def _by_columns(columns: Columns, choices: Sequence[str], identifier: str, row: Row) -> list[dict[str, Any]]:
    """Convert a row; a single column of choices holds all of them as a list."""
    values = [row.value(name) for name in choices]
    label = None if columns.label is None else row.value(columns.label)
    stem = "" if columns.pair is None else row.value(columns.pair)
    texts = values[0] if len(values) == 1 else values
    return [_plain(row.by_name().get(identifier), row.value(columns.text), stem, texts, label)]


def _arc(row: Row) -> list[dict[str, Any]]:
    fields = row.by_name()
    question, choices = fields.get("question"), fields.get("choices")
    if isinstance(question, dict):
        question, choices = question.get("stem"), question.get("choices")
    if isinstance(choices, dict):
        texts, labels = choices.get("text"), choices.get("label")
    elif isinstance(choices, list) and all(isinstance(choice, dict) for choice in choices):
        texts, labels = ([choice.get(key) for choice in choices] for key in ("text", "label"))
    else:
        raise BadRowError("choices are not a list", f"{choices!r:.60}")
    if not isinstance(texts, list) or not isinstance(labels, list) or len(texts) != len(labels):
        raise BadRowError("texts and labels of choices are not lists of equal length", f"{choices!r:.60}")
    return [_plain(fields.get("id"), question, "", texts, _place(fields.get("answerKey"), labels))]


def _copa(row: Row) -> list[dict[str, Any]]:
    fields = row.by_name()
    asked, texts = fields.get("question"), [fields.get("choice1"), fields.get("choice2")]
    if not isinstance(asked, str) or asked not in _JOINTS:
        raise BadRowError("the question is neither cause nor effect", repr(asked))
    return [_plain(fields.get("idx"), fields.get("premise"), _JOINTS[asked], texts, fields.get("label"))]


def _race(row: Row) -> list[dict[str, Any]]:
    fields = row.by_name()
    columns: list[Any] = [fields.get(name) for name in ("questions", "options", "answers")]
    if columns[2] is None and isinstance(columns[0], list):
        columns[2] = [None] * len(columns[0])
    if not all(isinstance(column, list) for column in columns) or len({*map(len, columns)}) > 1:
        raise BadRowError("questions, options and answers differ in number")
    name, rows = fields.get("id"), []
    for number, (question, texts, answer) in enumerate(zip(*columns, strict=True), start=1):
        if not isinstance(question, str) or not isinstance(texts, list):
            raise BadRowError("a question is not a string with a list of options", f"question {number}")
        stem = question
        if "_" in question and all(isinstance(text, str) for text in texts):
            # a cloze question: each option fills the gap
            stem, texts = "", [question.replace("_", text) for text in texts]
        rows.append(_plain(None if name is None else f"{name}-{number}", fields.get("article"), stem, texts, answer))
    return rows


def _plain(identifier: Any, context: Any, stem: Any, choices: Any, label: Any) -> dict[str, Any]:
    return {"id": identifier, "context": context, "stem": stem, "choices": choices, "label": label}


def _place(key: Any, labels: list[Any]) -> int | None:
    """Return the index of the choice that `key` labels (with a letter, or a number from 1), or None without a key."""
    if key is None or key == "":
        return None
    if str(key) not in map(str, labels):
        shown = ", ".join(f"{label!s:.20}" for label in labels[:10])
        raise BadRowError("label is none of the choices", f"{key!r:.60}, expected one of {shown}")
    return [str(label) for label in labels].index(str(key))


_PUBLISHED: dict[str, Form] = {"arc": _arc, "commonsenseqa": _arc, "copa": _copa, "race": _race}
"""The forms of data sets by their names in the catalog."""


@dataclass(frozen=True)
class ChoiceExample:
    """One record: the context, the stem that starts the second text, the choices that complete it, and the right one.

    `stem` is empty if each choice is the whole second text; `label` is the index of the right choice, from 0, or None
    if the file has none. `identifier` is the record's own id, if any.
    """

    context: str
    stem: str
    choices: tuple[str, ...]
    label: int | None
    line: int
    identifier: str | None = None

    def pairs(self) -> list[tuple[str, str]]:
        """Return the pair of texts that a model reads for each choice."""
        return [(self.context, f"{self.stem} {choice}" if self.stem else choice) for choice in self.choices]

    def inputs(self) -> tuple[str, str, tuple[str, ...]]:
        """Return the model's input: context, stem and choices."""
        return self.context, self.stem, self.choices

    def as_row(self) -> dict[str, str]:
        """Return the texts as shown in a row of predictions."""
        row = {"context": self.context} | ({"stem": self.stem} if self.stem else {})
        if self.identifier is not None:
            row = {"id": self.identifier} | row
        return row | {f"choice{number}": choice for number, choice in enumerate(self.choices)}


_MOST_LETTERS = 26
_MOST_DIGITS = 9
_ANSWERS = ("answerKey", "answers", "label")


def iterate_choices(
    path: str | Path, options: ReadingOptions, *, needs_label: bool, report: ReadingReport
) -> Iterator[ChoiceExample]:
    """Yield the examples one by one, in file order.

    Unless the format says otherwise, the columns of a table or the keys of JSONL are found by name: the choices as
    ending0, choice_1, answerA, or a list, the others as `tables.choose_names` does. A label is a number from 0 or a
    letter from A. Raises DataError, with file and line, for missing or repeated columns and for a row that breaks a
    rule, unless `options.on_bad_rows` is "skip", which counts it; ConfigError for the format of another kind and for
    columns used twice.
    """
    path = Path(path)
    row = None if options.format is None else catalog_row(options.format, kinds=("choice",))
    form = None if row is None or options.text_column is not None else _PUBLISHED.get(row.name)
    if form is not None and form is _race and path.is_dir():
        files = enumerate(race_files(path), start=1)  # the line of an article is the number of its file
        rows = (tables.read_json_row(one, line)._replace(place=str(one.relative_to(path))) for line, one in files)
    else:
        layout = tables.layout_of(path)
        if layout == "text":
            raise DataError(f"{path}: a .txt file has no columns; multiple choice is read from .csv, .tsv or .jsonl")
        rows = tables.read_rows(path, layout)
        if form is None or layout != "jsonl":
            form, rows = _find_form(path, rows, options, needs_label=needs_label)
    # in test sets, published answers are often placeholders
    unread = () if needs_label or isinstance(form, partial) else _ANSWERS
    records = (record for row in rows for record in _records(row, form, unread))
    make = partial(_example, needs_label, {})
    yield from kept_examples(records, make, report, skips=options.on_bad_rows == "skip")


def _records(row: Row, form: Form, unread: Sequence[str]) -> Iterator[Row]:
    """Yield a row for each example in a row without the keys `unread`, or one with the `problem` of an invalid row."""
    try:
        for fields in form(row._replace(fields={k: v for k, v in row.by_name().items() if k not in unread})):
            yield row._replace(fields=fields)
    except BadRowError as problem:
        yield row._replace(problem=str(problem))


def _find_form(
    path: Path, rows: Iterator[Row], options: ReadingOptions, *, needs_label: bool
) -> tuple[Form, Iterator[Row]]:
    """Find the form of the data rows from the first rows; return both, the rows keyed by column name."""
    seen = tables.up_to_first(rows)
    first = seen[-1]
    if first.problem:
        problem = next((row.problem for row in seen if row.problem != BLANK), "all lines are blank")
        raise DataError(f"{path}: no row can be read: {problem}")
    lists: list[str] = []
    if isinstance(first.fields, dict):
        names, rows = list(first.fields), chain(seen, rows)
        lists = [key for key, value in first.fields.items() if isinstance(value, list)]
    else:
        names = [field.strip() for field in first.fields]
        if (options.format or "").lower() == "codah" and len(names) >= 5 and not any(options.columns):
            _, context, *choices, label = names = [str(number) for number in range(len(names))]
            columns = Columns(context, None, label if needs_label else None)
            return partial(_by_columns, columns, choices, ""), tables.by_name(chain(seen, rows), names)
        rows = tables.by_name(chain(seen[:-1], rows), names)
    place = f"{path}: line {first.line}"
    choices = _choices(names, lists, place)
    tables.check_single(choices, names, place)
    others = [name for name in names if name not in choices]
    found = tables.choose_names(others, options, _USUAL, place=place, takes_pair=None, needs_label=needs_label)
    free = {name.lower(): name for name in reversed(others) if name not in found}
    identifier = next((free[name] for name in _IDENTIFIERS if name in free), "")
    return partial(_by_columns, found if needs_label else found._replace(label=None), choices, identifier), rows


def _example(needs_label: bool, lines: dict[str, int], row: Row) -> ChoiceExample:
    """Convert a row to an example; `lines` maps the identifiers read so far to their lines, and is updated."""
    fields = row.by_name()
    choices = fields["choices"]
    if not isinstance(choices, list):
        raise BadRowError("choices are not a list", f"{choices!r:.60}")
    if len(choices) < 2:
        raise BadRowError("fewer than two choices", str(len(choices)))
    texts = [row_text(choice, f"choice {number}", empty="empty choice") for number, choice in enumerate(choices)]
    return ChoiceExample(
        context=row_text(fields["context"], "context").strip(),
        stem=row_text(fields["stem"], "stem", empty=None).strip(),
        choices=tuple(text.strip() for text in texts),
        label=_label(fields["label"], len(choices)) if needs_label else None,
        line=row.line,
        identifier=_identifier(fields["id"], lines, row.line),
    )


def _identifier(value: Any, lines: dict[str, int], line: int) -> str | None:
    if value is None or value == "":
        return None
    name = label_name(value, "the id")
    if name in lines:
        raise BadRowError("an id appears twice", f"{name!r:.80}, first at line {lines[name]}")
    lines[name] = line
    return name


def _label(value: Any, num_choices: int) -> int:
    """Return the index of the right choice, from 0, given as a number or a letter."""
    if value is None or value == "":
        raise BadRowError("missing label")
    text = "" if isinstance(value, bool | float | list | dict) else str(value).strip()
    label = -1
    if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:
        label = int(text)
    elif len(text) == 1 and text.isascii() and text.isalpha() and num_choices <= _MOST_LETTERS:
        label = ord(text.upper()) - ord("A")
    if not 0 <= label < num_choices:
        last = f"0 to {num_choices - 1}"
        letters = f", or A to {chr(ord('A') + num_choices - 1)}" if num_choices <= _MOST_LETTERS else ""
        raise BadRowError("label is none of the choices", f"{value!r:.80}, expected {last}{letters}")
    return label


def check_choices(train: ReadExamples, dev: ReadExamples) -> None:
    """Raise DataError if the same choice is right in every training example."""
    labels, path = {example.label for example in train.examples}, train.report.path
    if len(labels) == 1:
        raise DataError(f"{path}: choice {labels.pop()} is right in all {len(train.examples)} rows; nothing to learn")


def choice_example(item: Any, number: int) -> ChoiceExample:
    """Return the example for a (context, choices) pair."""
    context, choices = checked_parts(item, number, "(context, choices)")
    if not isinstance(choices, tuple | list) or len(choices) < 2:
        raise DataError(f"input {number}: the choices must be a list of at least two texts")
    texts = tuple(checked_text(choice, number, may_be_blank=False) for choice in choices)
    return ChoiceExample(checked_text(context, number, may_be_blank=False), "", texts, None, number + 1)
