"""Reads tagged sentences from CoNLL columns and from JSONL with tokens and tags, and raw text to be tagged."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from maskloom.errors import ConfigError, DataError, amount
from maskloom.metrics.entities import entities_of, is_tag
from maskloom.tasks import tables
from maskloom.tasks.catalog import CATALOG, catalog_row
from maskloom.tasks.examples import ReadingReport, checked_text, kept_examples
from maskloom.tasks.labels import as_ids, read_label_names
from maskloom.tasks.settings import TaggingSettings
from maskloom.tasks.tables import BLANK, BadRowError, ReadingOptions, Row, row_text
from maskloom.tasks.tagging.schemes import (
    ENTITY_RULE,
    PLAIN,
    TRAINED_SCHEME,
    UNKNOWN_FORM,
    FormFinder,
    TagForm,
    breach_of,
    tags_of,
)
from maskloom.tasks.tagging.splitting import UNKNOWN_TRAINING, Span, WordSplitter, blank_spans


@dataclass(frozen=True)
class TaggedSentence:
    """One sentence of a file: its words and, if the file has them, their tags in the requested scheme.

    `line` is the file line of the first word; `document` counts the documents of the file from 0. For a file in
    columns, `lines` has the line of each word, `columns` its fields as written, with `separator` between them, and
    `opening` the fields of a -DOCSTART- line right before the sentence. `source_text` and `source_spans` are the text
    that raw words were split from and the characters (start, end) of each word; without a text, words are joined by
    single spaces.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    line: int
    document: int = 0
    columns: tuple[tuple[str, ...], ...] | None = None
    separator: str = " "
    opening: tuple[str, ...] | None = None
    source_text: str | None = None
    source_spans: tuple[Span, ...] | None = None
    lines: tuple[int, ...] | None = None

    @classmethod
    def of_text(cls, text: str, spans: Sequence[Span], line: int, document: int = 0) -> TaggedSentence:
        """Return the sentence whose words are the given spans (start, end) of a text."""
        words = tuple(text[start:end] for start, end in spans)
        return cls(words, None, line, document, source_text=text, source_spans=tuple(spans))

    @cached_property
    def text(self) -> str:
        """The text of the sentence: the line it was split from, or its words joined by spaces."""
        return " ".join(self.words) if self.source_text is None else self.source_text

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """The characters of each word in `text`, (start, end)."""
        ends = zip(self.words, accumulate(len(word) + 1 for word in self.words), strict=True)
        return self.source_spans or tuple((end - 1 - len(word), end - 1) for word, end in ends)

    def inputs(self) -> tuple[str, ...]:
        """Return the model's input: the words."""
        return self.words

    def as_row(self) -> dict[str, str]:
        """Return the text as shown in a row of predictions."""
        return {"text": self.text}

    def line_of(self, word: int) -> int:
        """Return the file line of a word; in a file in columns, every word has its own line."""
        return self.line if self.lines is None else self.lines[word]


Layout = Literal["columns", "jsonl", "csv", "text"]
DOCUMENT_START = "-DOCSTART-"
SPACES = re.compile("[ \t]+")

# Lines of CoNLL-U that are not words: comments, numbers of words written as one ("2-3"), and words left out ("8.1").
_NO_WORD = re.compile(r"#|[0-9]+[-.][0-9]+\t")
_NEW_DOCUMENT = re.compile(r"^# *newdoc\b")
_FORMATS: dict[str, Layout] = {"conll": "columns", "jsonl": "jsonl", "text": "text"}
# Placeholders for unknown tags in files to be tagged.
_PLACEHOLDERS = frozenset({"?", "_", "-", "-1", "*"})
_FEW_LINES = 3
# How many lines are inspected to tell a .txt file in columns from raw text.
SNIFFED_LINES = 200


def layout_of_sentences(path: str | Path, options: ReadingOptions | None = None, *, needs_label: bool = True) -> Layout:
    """Return the layout of a file, from `options.format`, from its suffix, or from the lines of a .txt file.

    If labels are not needed, a .csv file is a table of texts, and a .txt file is raw text unless its first lines have
    equal numbers of columns that end in a tag. Raises ConfigError for another task's format or a pair column.
    """
    path, options = Path(path), options or ReadingOptions()
    if options.pair_column is not None:
        raise ConfigError(f"pair column {options.pair_column!r:.80}: a tagging task takes one text; leave it out")
    if options.format in _FORMATS:
        return _FORMATS[options.format]
    if options.format is not None:
        try:
            catalog_row(options.format, kinds=("tagging",))
        except ConfigError as error:
            ours = [*_FORMATS, *(row.name for row in CATALOG.values() if row.kind == "tagging")]
            raise ConfigError(f"{error}; tagging formats: {', '.join(ours)}") from None
        return "columns"  # as for every tagging row of the catalog
    suffix = tables.suffix_of(path)
    if tables.LAYOUTS.get(suffix) == "jsonl":
        return "jsonl"
    if suffix == ".csv" and not needs_label:
        return "csv"
    return "text" if suffix == ".txt" and not needs_label and not _is_in_columns(path) else "columns"


def _is_in_columns(path: Path) -> bool:
    widths, has_blank = set[int](), False
    ends: list[str] = []
    for _, line in islice(tables.read_lines(path), SNIFFED_LINES + 1):
        fields = SPACES.split(line.strip(" \t"))
        if fields[0] == DOCUMENT_START:
            return True
        has_blank |= fields == [""]
        if fields != [""]:
            if len(fields) < 2 or not (is_tag(fields[-1]) or fields[-1] in _PLACEHOLDERS):
                return False
            widths.add(len(fields))
            ends.append(fields[-1])
    # questions that end in " ?" are not columns; sentences in columns have blank lines between them
    return len(widths) == 1 and ((has_blank and len(ends) > _FEW_LINES) or all(map(is_tag, ends)))


_WORD_KEYS = ("tokens", "words")
_TAG_KEYS = ("tags", "ner_tags", "labels")
_TEXT_KEYS = ("text", "sentence")
_DOCUMENT_KEYS = ("document", "document_id", "doc_id")
# Words that the training data's splitter would split again are rare in data that was split the same way.
_MOST_JOINED = 0.03
_NO_WORDS = "a sentence without words"
# Returns the spans of the words in a text.
_Split = Callable[[str], list[Span]]
# Returns the tags of a JSONL row by name.
_Naming = Callable[[list[Any]], list[Any]]
# A sentence as read from a file, or the first rule that it breaks.
_Found = TaggedSentence | BadRowError
_Fields = tuple[str, ...]


def iterate_sentences(
    path: str | Path, options: ReadingOptions, settings: TaggingSettings, *, needs_label: bool, report: ReadingReport
) -> Iterator[TaggedSentence]:
    """Yield the sentences of a file one by one, with their tags checked and converted to the model's scheme.

    Plain tags are unchanged: the tags of a file without entity tags, and all tags if the model's scheme is "plain".

    A file in columns has one word per line and a blank line between sentences; the word is the first column and the tag
    the last (in a .conllu file, the second and the fourth) unless `options` gives other numbers; -DOCSTART- starts a
    document, as `# newdoc` does in .conllu. JSONL has `tokens` with `tags`, or a `text` still to be split into words;
    tags that are numbers are ids of the model's tags or of those that `options` lists, which the report notes. For
    prediction only, a .txt file without columns has one raw sentence per line, and a .csv file is a table with such a
    column. The report also notes how raw text is split, and words that are unlike those of the training data. The
    scheme "auto" requires an extra pass over the file. Raises DataError, with file and line, for a sentence that breaks
    a rule, unless `options.on_bad_rows` is "skip", which counts it, and for a file that cannot be read.
    """
    path = Path(path)
    names = settings.labels or (read_label_names(options.labels) if options.labels and needs_label else ())
    scheme, target = cast(tuple[TagForm, TagForm], (settings.scheme, settings.trained_scheme or TRAINED_SCHEME))
    if target == PLAIN or not needs_label:
        scheme = PLAIN
    elif scheme == "auto":
        scheme = find_scheme(path, options, names)
    if scheme not in (PLAIN, target):
        report.notes.append(f"its {scheme.upper()} tags are read as {target.upper()}, the scheme of the model's tags")
    splitter, layout = settings.words, layout_of_sentences(path, options, needs_label=needs_label)
    split = _splitter(path, layout, splitter, report)
    name = partial(_names_of, _by_id(names), report.notes)
    found = _find_sentences(path, layout, options, split, name, needs_label=needs_label)
    make = partial(_converted, scheme, target)
    counts = Counter[str]()
    for sentence in kept_examples(found, make, report, skips=options.on_bad_rows == "skip"):
        if not sentence.words:
            report.blank(sentence.line)
        if splitter is not None:
            counts.update(splitter.differences(sentence.words))
        yield sentence
    if counts["joined"] > _MOST_JOINED * counts["words"]:
        report.notes.append(
            f"{counts['joined']:,} of {counts['words']:,} words contain punctuation that is a separate word in the "
            "training data, such as the full stop of a sentence; the model has not seen such words"
        )
    if counts["parted"] > max(1, counts["whole"]):
        report.notes.append(
            f"{counts['parted']:,} punctuation marks are separate words, but parts of words in the training data, "
            "such as the full stops of U.N.; the model has not seen words split there"
        )


def _splitter(path: Path, layout: Layout, learned: WordSplitter | None, report: ReadingReport) -> _Split:
    """Return the function that splits raw text into words: only at blanks if most lines are already split."""
    splitter = learned or UNKNOWN_TRAINING
    if layout != "text":
        return splitter.spans
    if splitter.are_cut(line for _, line in islice(tables.read_lines(path), SNIFFED_LINES)):
        report.notes.append("its lines are already split into words, and are split only at blanks")
        return blank_spans
    if learned is None:
        report.notes.append(
            "the model does not record how its training data was split into words; this text is split like CoNLL-2003's"
        )
    return splitter.spans


def find_scheme(path: str | Path, options: ReadingOptions | None = None, names: Sequence[str] = ()) -> TagForm:
    """Return what `FormFinder` finds in a file, which may have tags of both forms if bad rows are skipped.

    `names` are the tags that numbers in JSONL stand for.
    """
    path, options = Path(path), options or ReadingOptions()
    forms = FormFinder(path, allows_both=options.on_bad_rows == "skip")
    layout, name = layout_of_sentences(path, options), partial(_names_of, _by_id(names), [])
    for found in _find_sentences(path, layout, options, blank_spans, name, needs_label=True):
        if isinstance(found, TaggedSentence):
            forms.add(found.tags or (), found.line_of)
    return forms.form()


def watch_forms(
    sentences: Iterable[TaggedSentence], path: Path, options: ReadingOptions, settings: TaggingSettings
) -> Iterator[TaggedSentence]:
    """Yield the sentences; after the last, raise as `FormFinder` does if the scheme in `settings` is "auto"."""
    forms = FormFinder(path, allows_both=options.on_bad_rows == "skip")
    for sentence in sentences:
        forms.add(sentence.tags or (), sentence.line_of)
        yield sentence
    if settings.scheme == "auto":
        forms.form()


def _find_sentences(
    path: Path, layout: Layout, options: ReadingOptions, split: _Split, name: _Naming, *, needs_label: bool
) -> Iterator[_Found]:
    if layout == "columns":
        return _column_sentences(path, options, needs_label=needs_label)
    if layout == "text" and needs_label:
        raise DataError(f"{path}: raw text has no tags; give columns or JSONL with tokens and tags")
    rows = tables.read_rows(path, layout)
    if layout == "text":
        return _record_sentences(rows, partial(_text_record, split))
    if layout == "csv":
        rows = tables.by_name(rows, [name.strip() for name in next(rows).fields])
    return _record_sentences(rows, partial(_json_record, split, options, name, needs_label))


def _converted(scheme: TagForm, target: TagForm, found: _Found) -> TaggedSentence:
    """Return a sentence with checked tags in the target scheme; plain tags are unchanged, a broken rule is raised."""
    if isinstance(found, BadRowError):
        raise found
    if scheme == PLAIN:
        return found
    assert target != PLAIN
    tags = found.tags or ()
    for place, tag in enumerate(tags):
        if not is_tag(tag):
            raise BadRowError(UNKNOWN_FORM, f"{tag!r:.80} is {ENTITY_RULE}", found.line_of(place))
    if breach := breach_of(tags, scheme):
        place, rule = breach
        where = "" if found.columns is not None else f"word {place + 1}: "
        raise BadRowError("tag not allowed by the scheme", f"{where}{rule}", found.line_of(place))
    return found if scheme == target else replace(found, tags=tuple(tags_of(entities_of(tags), len(tags), target)))


class _Columns(NamedTuple):
    """The layout of a file in columns: numbers of the word's and the tag's column, from 1, width and separator."""

    word: int
    tag: int
    width: int
    separator: str
    needs_label: bool

    @classmethod
    def of(cls, first: str, options: ReadingOptions, place: str, *, needs_label: bool) -> _Columns:
        """Return the layout that the line of a file's first word, at `place`, shows."""
        # if tags are not needed, the first word's tag may be blank
        separator = "\t" if "\t" in (first.strip(" \t") if needs_label else first) else " "
        width = len(cls(1, 0, 0, separator, needs_label).fields(first))
        word, tag = _column_number(options.text_column, "word", 1), _column_number(options.label_column, "tag", width)
        for what, number in (("word", word), *([("tag", tag)] if needs_label else [])):
            if number > width:
                raise DataError(f"{place}: column {number} was requested as the {what}, but the row has {width}")
        if needs_label and width < 2:
            raise DataError(f"{place}: only one column; expected a word and its tag, separated by a space or tab")
        return cls(word, tag, width, separator, needs_label)

    def fields(self, line: str) -> _Fields:
        """Return the fields of a line; a missing last field is a tag that is not needed."""
        # Other white space, such as a no-break space, may be part of a word.
        found = line.split("\t") if self.separator == "\t" else [*filter(None, line.replace("\t", " ").split(" "))]
        if not self.needs_label and len(found) == self.width - 1 and self.tag == self.width:
            found.append("-")
        return tuple(found)

    def sentence(self, words: list[tuple[int, str]], document: int, opening: _Fields | None) -> _Found:
        """Return the sentence in the numbered lines of its words, or the first rule that one of them breaks."""
        lines = tuple(number for number, _ in words)
        rows = tuple(self.fields(text) for _, text in words)
        for number, row in zip(lines, rows, strict=True):
            if len(row) != self.width:
                between = "tabs" if self.separator == "\t" else "spaces"
                detail = f"{len(row)} between {between}, expected {self.width} as in the first row"
                return BadRowError("wrong number of columns", detail, number)
            if not row[self.word - 1].strip():
                return BadRowError("empty word", line=number)
            if self.needs_label and not row[self.tag - 1].strip():
                return BadRowError("missing tag", line=number)
        found = tuple(row[self.word - 1] for row in rows)
        tags = tuple(row[self.tag - 1].strip() for row in rows) if self.needs_label else None
        return TaggedSentence(found, tags, lines[0], document, rows, self.separator, opening, lines=lines)


def _column_sentences(path: Path, options: ReadingOptions, *, needs_label: bool) -> Iterator[_Found]:
    """Yield the sentences between blank lines, each with its lines and document."""
    words, columns, opening = list[tuple[int, str]](), None, None
    document, is_document_open, found = 0, False, tables.read_lines(path)
    is_conllu = tables.suffix_of(path) == ".conllu"
    if is_conllu:
        options = replace(options, text_column=options.text_column or "2", label_column=options.label_column or "4")
        found = ((line, _NEW_DOCUMENT.sub(DOCUMENT_START, text)) for line, text in found)
        found = ((line, text) for line, text in found if not _NO_WORD.match(text))
    # a final blank line ends the last sentence
    for line, text in chain(found, [(0, "")]):
        bare = text.strip(" \t")
        start = SPACES.split(bare) if bare.startswith(DOCUMENT_START) else [""]
        if bare and start[0] != DOCUMENT_START:
            columns = columns or _Columns.of(text, options, f"{path}: line {line}", needs_label=needs_label)
            words.append((line, text))
            continue
        if columns and words:
            is_document_open = True
            yield columns.sentence(words, document, opening)
            words, opening = [], None
        if bare:
            document += is_document_open
            is_document_open, opening = True, None if is_conllu else tuple(start)


def _column_number(column: str | None, what: str, default: int) -> int:
    if column is None:
        return default
    if not tables.is_column_number(column) or int(column) < 1:
        raise ConfigError(f"{what} column {column!r:.80}: columns of such a file are given by number, from 1")
    return int(column)


def _record_sentences(rows: Iterator[Row], parse: Callable[[Row], TaggedSentence]) -> Iterator[_Found]:
    """Yield one sentence per record; consecutive records with the same document name are one document."""
    document, previous = -1, object()
    for row in rows:
        if row.problem == BLANK:
            continue
        try:
            fields = row.by_name() if isinstance(row.fields, dict) else {}
            name = next((str(fields[key]) for key in _DOCUMENT_KEYS if key in fields), None)
            document += name != previous
            previous = name
            yield replace(parse(row), document=document)
        except BadRowError as problem:
            problem.line = row.line
            yield problem


def _text_record(split: _Split, row: Row) -> TaggedSentence:
    text = str(next(iter(row.fields)))
    return TaggedSentence.of_text(text, split(text), row.line)


def _json_record(split: _Split, options: ReadingOptions, name: _Naming, needs_label: bool, row: Row) -> TaggedSentence:
    fields, named = row.by_name(), options.text_column
    key, value = _find(fields, named, _WORD_KEYS if needs_label else (*_WORD_KEYS, *_TEXT_KEYS), "words")
    if not needs_label and (isinstance(value, str) or (key in _TEXT_KEYS and not named)):
        text = row_text(value, "the text", empty=None)
        sentence = TaggedSentence.of_text(text, split(text), row.line)
        if not sentence.words:
            raise BadRowError(_NO_WORDS)
        return sentence
    words, tags = _strings(value, "word"), None
    if not words:
        raise BadRowError(_NO_WORDS)
    if needs_label:
        given = _find(fields, options.label_column, _TAG_KEYS, "tags")[1]
        tags = _strings(name(given) if isinstance(given, list) else given, "tag")
        if len(tags) != len(words):
            raise BadRowError("words and tags differ in number", f"{len(words)} words, {len(tags)} tags")
    return TaggedSentence(words, tags, row.line)


def _by_id(names: Sequence[str]) -> dict[str, str]:
    """Return names by their ids as texts, or {} if a name is itself a number."""
    return {} if any(map(str.isdecimal, names)) else {str(number): name for number, name in enumerate(names)}


def _names_of(known: Mapping[str, str], notes: list[str], tags: list[Any]) -> list[Any]:
    """Return tags with names in place of ids, which a note reports; raises BadRowError for an id without a name."""
    named = [known.get(str(tag), tag) if type(tag) in (int, str) else tag for tag in tags]
    if place := next((place for place, tag in enumerate(named, start=1) if isinstance(tag, int)), None):
        hint = "write the names of tags, not their numbers, or list them by number in a file (--labels FILE)"
        hint = f"{amount(len(known), 'name')} of tags are known, numbered from 0" if known else hint
        raise BadRowError("a tag is not a string", f"tag {place} is {tags[place - 1]!r:.60}; {hint}")
    if named != tags and (note := f"tags are numbers, {as_ids([*known.values()])}") not in notes:
        notes.append(note)
    return named


def _find(fields: dict[str, Any], named: str | None, known: tuple[str, ...], what: str) -> tuple[str, Any]:
    """Return the given key, or else the first known one that is present, with its value."""
    wanted = (named,) if named else known
    for key in wanted:
        if key in fields:
            return key, fields[key]
    found = ", ".join(map(repr, list(fields)[:12])) or "none"
    raise BadRowError(f"no list of {what}", f"expected the key {' or '.join(wanted)!r:.80}, found {found}")


def _strings(values: Any, what: str) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise BadRowError(f"{what}s are not a list", f"{values!r:.60} is a {type(values).__name__}")
    for place, value in enumerate(values, start=1):
        if not isinstance(value, str):
            raise BadRowError(f"a {what} is not a string", f"{what} {place} is {value!r:.60}")
        row_text(value, f"{what} {place}", empty=f"empty {what}")
    return tuple(values)


def sentence_example(splitter: WordSplitter, item: Any, number: int) -> TaggedSentence:
    """Return the sentence for a text or a list of words, as a document of its own."""
    if isinstance(item, list):
        words = tuple(checked_text(word, number, may_be_blank=False) for word in item)
        sentence = TaggedSentence(words, None, number + 1, number)
    else:
        text = checked_text(item, number, may_be_blank=False)
        sentence = TaggedSentence.of_text(text, splitter.spans(text), number + 1, number)
    if not sentence.words:
        raise DataError(f"input {number}: a sentence without words")
    return sentence
