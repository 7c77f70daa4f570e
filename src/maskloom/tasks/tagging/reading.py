"""Tagged sentences from files: CoNLL columns, JSONL with tokens and tags, and raw text to be tagged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from maskloom.config import ConfigError, DataError
from maskloom.foreign_files import is_utf8
from maskloom.metrics.entities import is_tag
from maskloom.tasks.columns import ReadingOptions, is_column_number
from maskloom.tasks.examples import ReadingReport
from maskloom.tasks.tables import Row, read_rows
from maskloom.tasks.tagging.layout import DOCUMENT_START, SNIFFED_LINES, SPACES, layout_of_sentences
from maskloom.tasks.tagging.schemes import PLAIN, SchemeFinder, TagForm, breach_of, convert_tags
from maskloom.tasks.tagging.sentences import TaggedSentence
from maskloom.tasks.tagging.splitting import UNKNOWN_TRAINING, Span, WordSplitter, blank_spans

_WORD_KEYS = ("tokens", "words")
_TAG_KEYS = ("tags", "ner_tags", "labels")
_TEXT_KEYS = ("text", "sentence")
_DOCUMENT_KEYS = ("document", "document_id", "doc_id")
# Words that the splitter of the training data would cut again are rare in data that was cut as that was.
_MOST_PARTED = 0.03
_UNKNOWN = "unknown form of tag"
_ENTITY_RULE = "neither O nor a prefix (B, I, E, S, L, U) with a hyphen and a type"


@dataclass(frozen=True)
class TaggedSentences:
    """The sentences of one file in its order, the account of the reading, and what the tags of the file are."""

    examples: list[TaggedSentence]
    report: ReadingReport
    scheme: TagForm | None


@dataclass
class _BadSentenceError(Exception):
    """A sentence breaks a rule; `reason` is the rule in the form that is counted, `line` where it is broken."""

    reason: str
    line: int
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason}{': ' if self.detail else ''}{self.detail:.300}"


@dataclass
class _Found:
    """A sentence as it stands in a file, with the first rule that it breaks."""

    sentence: TaggedSentence
    problem: _BadSentenceError | None = None


def read_sentences(
    path: str | Path,
    options: ReadingOptions | None = None,
    *,
    scheme: TagForm | Literal["auto"] = "auto",
    target: TagForm = "iob2",
    needs_label: bool = True,
) -> TaggedSentences:
    """Read a whole file as `iterate_sentences` does; raises DataError also when no sentence is usable."""
    report = ReadingReport(Path(path))
    looks = needs_label and scheme == "auto" and target != PLAIN
    found = find_scheme(path, options) if looks else PLAIN if target == PLAIN else scheme
    examples = list(
        iterate_sentences(path, options, scheme=found, target=target, needs_label=needs_label, report=report)
    )
    if report.num_blank:
        raise DataError(f"{path}: line {report.first_blank_line}: a sentence without words")
    if not examples:
        raise DataError(f"{path}: no usable sentences: {report.num_rows} read, dropped: {report.dropped or 'none'}")
    return TaggedSentences(examples, report, None if found == "auto" else found)


def iterate_sentences(
    path: str | Path,
    options: ReadingOptions | None = None,
    *,
    scheme: TagForm | Literal["auto"] = "auto",
    target: TagForm = "iob2",
    needs_label: bool = True,
    report: ReadingReport | None = None,
    splitter: WordSplitter | None = None,
) -> Iterator[TaggedSentence]:
    """Yield the sentences of a file one by one, their tags checked against `scheme` and written in `target`.

    Plain tags stay as they are: those of a file that has no entity tags, and all where `target` is "plain".

    A file in columns has one word a line and a blank line between sentences; the word is the first column and the tag
    the last unless `options` names others by number; -DOCSTART- opens a document. JSONL has `tokens` with `tags`, or
    `text` that is still to be cut into words. A .txt file without columns is one raw sentence a line, for prediction
    only. `splitter`, learnt from the training data, cuts raw text into words; lines that were cut into words before are
    cut at blanks alone, and the report says so, as where words given are not such as those of training. A file without
    marks of documents counts as one document. `scheme="auto"` reads the file once more to detect it. Raises DataError,
    with file and line, for a sentence that breaks a rule, unless `options.on_bad_rows` is "skip", which counts it, and
    for a file that cannot be read.
    """
    path, options = Path(path), options or ReadingOptions()
    report = report or ReadingReport(path)
    if target == PLAIN:
        scheme = PLAIN
    if needs_label and scheme == "auto":
        scheme = find_scheme(path, options)
    num_words = num_parted = 0
    for found in _find_sentences(
        path,
        options,
        needs_label=needs_label,
        splitter=_splitter(path, options, splitter, report, needs_label=needs_label),
    ):
        report.num_rows += 1
        try:
            if found.problem is not None:
                raise found.problem
            sentence = _converted(found.sentence, scheme, target) if needs_label else found.sentence
        except _BadSentenceError as problem:
            if options.on_bad_rows == "error":
                raise DataError(f"{path}: line {problem.line}: {problem}") from None
            report.drop(problem.reason, problem.line)
            continue
        report.num_kept += 1
        if not sentence.words:
            report.blank(sentence.line)
        if splitter is not None and sentence.source_text is None:
            num_words += len(sentence.words)
            num_parted += sum(len(splitter.cut(word)) > 1 for word in sentence.words)
        yield sentence
    if num_parted > _MOST_PARTED * num_words:
        report.notes.append(
            f"{num_parted:,} of {num_words:,} words hold marks that training data has as words of their own, such as "
            "the full stop of a sentence; the model has not seen such words"
        )


def _splitter(
    path: Path, options: ReadingOptions, learnt: WordSplitter | None, report: ReadingReport, *, needs_label: bool
) -> Callable[[str], list[Span]]:
    """Return what cuts raw text into words: blanks alone for a file of lines most of which were cut before."""
    splitter = learnt or UNKNOWN_TRAINING
    if layout_of_sentences(path, options, needs_label=needs_label) != "text":
        return splitter.spans
    lines = islice((str(next(iter(row.fields))) for row in read_rows(path, "text")), SNIFFED_LINES)
    if splitter.are_cut(lines):
        report.notes.append("its lines were cut into words before, and are cut at blanks alone")
        return blank_spans
    if learnt is None:
        report.notes.append(
            "the model does not say how the words of its training data were cut; these are cut as English in CoNLL-2003"
        )
    return splitter.spans


def find_scheme(path: str | Path, options: ReadingOptions | None = None) -> TagForm:
    """Return the scheme that the tags of a file are written in; where there are mistakes, the one with fewest.

    It is "plain" where no tag is an entity tag. Raises DataError, with both lines, for a file that has tags of either
    form, unless `options.on_bad_rows` is "skip": its entity tags then count.
    """
    finder, options = SchemeFinder(), options or ReadingOptions()
    first: dict[bool, tuple[int, str]] = {}
    for found in _find_sentences(Path(path), options, needs_label=True, splitter=blank_spans):
        if found.problem is not None:
            continue
        tags = found.sentence.tags or ()
        for place, tag in enumerate(tags):
            if (is_entity := is_tag(tag)) not in first:
                first[is_entity] = (found.sentence.line_of(place), tag)
        if all(map(is_tag, tags)):
            finder.add(tags)
    if True not in first and False in first:
        return PLAIN
    if False in first and options.on_bad_rows == "error":
        (line, plain), (entity_line, entity) = first[False], first[True]
        raise DataError(
            f"{path}: line {line}: {_UNKNOWN}: {plain!r:.60} is {_ENTITY_RULE}, while {entity!r:.60} in line "
            f'{entity_line} is such a tag; tags are entity tags throughout, or any at all with tagging.scheme = "plain"'
        )
    return finder.scheme()


def _find_sentences(
    path: Path, options: ReadingOptions, *, needs_label: bool, splitter: Callable[[str], list[Span]]
) -> Iterator[_Found]:
    layout = layout_of_sentences(path, options, needs_label=needs_label)
    if layout == "columns":
        return _Columns(path, options, needs_label=needs_label).sentences()
    if layout == "text" and needs_label:
        raise DataError(f"{path}: raw text has no tags; give columns or JSONL with tokens and tags")
    parse = partial(_text_record if layout == "text" else _json_record, splitter)
    return _record_sentences(path, "text" if layout == "text" else "jsonl", parse, options, needs_label=needs_label)


def _converted(sentence: TaggedSentence, scheme: TagForm | Literal["auto"], target: TagForm) -> TaggedSentence:
    """Check the tags and write them in the target scheme; plain tags stay."""
    if scheme == PLAIN:
        return sentence
    tags = sentence.tags or ()
    for place, tag in enumerate(tags):
        if not is_tag(tag):
            detail = f"{tag!r:.80} is {_ENTITY_RULE}"
            raise _BadSentenceError(_UNKNOWN, sentence.line_of(place), detail)
    assert scheme != "auto"
    assert target != PLAIN
    breach = breach_of(tags, scheme)
    if breach:
        place, rule = breach
        where = "" if sentence.columns is not None else f"word {place + 1}: "
        raise _BadSentenceError("tag not allowed by the scheme", sentence.line_of(place), f"{where}{rule}")
    return replace(sentence, tags=tuple(convert_tags(tags, scheme, target)))


class _Columns:
    """Reads a file in columns; the width and the separator are those of its first word."""

    def __init__(self, path: Path, options: ReadingOptions, *, needs_label: bool) -> None:
        self._path = path
        self._needs_label = needs_label
        self._word = _column_number(options.text_column, "word") or 1
        self._tag = _column_number(options.label_column, "tag")
        self._width: int | None = None
        self._is_tabbed = False

    def sentences(self) -> Iterator[_Found]:
        """Yield the sentences between blank lines, with the place of each."""
        rows: list[tuple[str, ...]] = []
        problem: _BadSentenceError | None = None
        opening: tuple[str, ...] | None = None
        first_line = number = document = 0
        is_document_open = False
        for line, text in self._lines_and_end():
            fields = () if text is None else self._fields(text)
            is_opening = fields[:1] == (DOCUMENT_START,)
            if fields and not is_opening:
                first_line = first_line or line
                rows.append(fields)
                problem = problem or self._problem(fields, line)
                continue
            if rows:
                number += 1
                is_document_open = True
                yield self._found(rows, problem, first_line, number, document, opening)
                rows, problem, opening, first_line = [], None, None, 0
            if is_opening:
                document += is_document_open
                is_document_open, opening = True, fields

    def _lines_and_end(self) -> Iterator[tuple[int, str | None]]:
        line = 0
        for row in read_rows(self._path, "text"):
            line = row.line
            yield line, str(next(iter(row.fields)))
        yield line + 1, None

    def _fields(self, text: str) -> tuple[str, ...]:
        bare = text.strip(" \t")
        if not bare:
            return ()
        if bare.startswith(DOCUMENT_START):
            return tuple(SPACES.split(bare))
        if self._width is None:
            # where tags are not needed, that of the first word may be blank
            self._is_tabbed = "\t" in (bare if self._needs_label else text)
        # Other white space, such as a no-break space, may be part of a word.
        return tuple(text.split("\t")) if self._is_tabbed else tuple(SPACES.split(bare))

    def _problem(self, fields: tuple[str, ...], line: int) -> _BadSentenceError | None:
        if self._width is None:
            self._width = len(fields)
            self._check_width(line)
        if len(fields) != self._width:
            separator = "tabs" if self._is_tabbed else "spaces"
            detail = f"{len(fields)} between {separator}, expected {self._width} as in the first row"
            return _BadSentenceError("wrong number of columns", line, detail)
        if not fields[self._word - 1].strip():
            return _BadSentenceError("empty word", line)
        if self._needs_label and not fields[(self._tag or self._width) - 1].strip():
            return _BadSentenceError("missing tag", line)
        return None

    def _check_width(self, line: int) -> None:
        assert self._width is not None
        for what, number in (("word", self._word), ("tag", self._tag if self._needs_label else None)):
            if number is not None and number > self._width:
                raise DataError(
                    f"{self._path}: line {line}: column {number} was asked for as the {what}, the row has {self._width}"
                )
        if self._needs_label and self._width < 2:
            raise DataError(
                f"{self._path}: line {line}: one column; a word and its tag are expected, with a space or a tab between"
            )

    def _found(
        self,
        rows: list[tuple[str, ...]],
        problem: _BadSentenceError | None,
        line: int,
        number: int,
        document: int,
        opening: tuple[str, ...] | None,
    ) -> _Found:
        if problem is not None:
            return _Found(TaggedSentence((), None, line, number, document), problem)
        tag = (self._tag or len(rows[0])) - 1
        return _Found(
            TaggedSentence(
                words=tuple(row[self._word - 1] for row in rows),
                tags=tuple(row[tag].strip() for row in rows) if self._needs_label else None,
                line=line,
                number=number,
                document=document,
                columns=tuple(rows),
                separator="\t" if self._is_tabbed else " ",
                opening=opening,
            )
        )


def _column_number(column: str | None, what: str) -> int | None:
    if column is None:
        return None
    if not is_column_number(column) or int(column) < 1:
        raise ConfigError(f"column {column!r:.80} of the {what}: columns of such a file are given by number, from 1")
    return int(column)


def _record_sentences(
    path: Path, layout: str, parse: Callable[..., TaggedSentence], options: ReadingOptions, *, needs_label: bool
) -> Iterator[_Found]:
    """Yield one sentence a record; records with equal names of documents that follow each other are one document."""
    number = document = 0
    previous: Any = None
    for row in read_rows(path, layout):
        if row.problem == "blank line":
            continue
        number += 1
        try:
            if row.problem:
                raise _BadSentenceError(row.problem, row.line)
            name = _document_name(row)
            if number > 1 and name != previous:
                document += 1
            previous = name
            yield _Found(parse(row, options, number, document, needs_label=needs_label))
        except _BadSentenceError as problem:
            yield _Found(TaggedSentence((), None, row.line, number, document), problem)


def _document_name(row: Row) -> Any:
    if not isinstance(row.fields, dict):
        return None
    return next((str(row.fields[key]) for key in _DOCUMENT_KEYS if key in row.fields), None)


def _text_record(
    splitter: Callable[[str], list[Span]],
    row: Row,
    options: ReadingOptions,
    number: int,
    document: int,
    *,
    needs_label: bool,
) -> TaggedSentence:
    return _sentence_of_text(splitter, str(next(iter(row.fields))), row.line, number, document, may_be_blank=True)


def _sentence_of_text(
    splitter: Callable[[str], list[Span]],
    text: Any,
    line: int,
    number: int,
    document: int,
    *,
    may_be_blank: bool = False,
) -> TaggedSentence:
    if not isinstance(text, str):
        raise _BadSentenceError("text is not a string", line, type(text).__name__)
    _check_unicode(text, line)
    sentence = TaggedSentence.of_text(text, splitter(text), line, number, document)
    if not sentence.words and not may_be_blank:
        raise _BadSentenceError("a sentence without words", line)
    return sentence


def _json_record(
    splitter: Callable[[str], list[Span]],
    row: Row,
    options: ReadingOptions,
    number: int,
    document: int,
    *,
    needs_label: bool,
) -> TaggedSentence:
    assert isinstance(row.fields, dict)
    fields, line = row.fields, row.line
    named = options.text_column
    key = named if named in fields else next((key for key in _WORD_KEYS if key in fields and not named), None)
    text_key = next((key for key in _TEXT_KEYS if key in fields), None)
    if key is None and not named and text_key is not None and not needs_label:
        return _sentence_of_text(splitter, fields[text_key], line, number, document)
    if key is None:
        keys = ", ".join(map(repr, list(fields)[:12])) or "none"
        raise _BadSentenceError(
            "no list of words", line, f"expected the key {named or ' or '.join(_WORD_KEYS)!r:.80}, found {keys}"
        )
    if isinstance(fields[key], str) and not needs_label:
        return _sentence_of_text(splitter, fields[key], line, number, document)
    words = _strings(fields[key], line, "word")
    if not words:
        raise _BadSentenceError("a sentence without words", line)
    tags = _json_tags(fields, options, line, len(words)) if needs_label else None
    return TaggedSentence(words, tags, line, number, document)


def _json_tags(fields: dict[str, Any], options: ReadingOptions, line: int, num_words: int) -> tuple[str, ...]:
    named = options.label_column
    key = named if named in fields else next((key for key in _TAG_KEYS if key in fields and not named), None)
    if key is None:
        keys = ", ".join(map(repr, list(fields)[:12]))
        raise _BadSentenceError(
            "no list of tags", line, f"expected the key {named or ' or '.join(_TAG_KEYS)!r:.80}, found {keys}"
        )
    tags = _strings(fields[key], line, "tag")
    if len(tags) != num_words:
        raise _BadSentenceError("words and tags differ in number", line, f"{num_words} words, {len(tags)} tags")
    return tags


def _strings(values: Any, line: int, what: str) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise _BadSentenceError(f"{what}s are not a list", line, f"{values!r:.60} is a {type(values).__name__}")
    for place, value in enumerate(values, start=1):
        if not isinstance(value, str):
            raise _BadSentenceError(f"a {what} is not a string", line, f"{what} {place} is {value!r:.60}")
        if not value.strip():
            raise _BadSentenceError(f"empty {what}", line, f"{what} {place} is {value!r:.80}")
        _check_unicode(value, line)
    return tuple(values)


def _check_unicode(text: str, line: int) -> None:
    if not is_utf8(text):
        raise _BadSentenceError("text holds half of a surrogate pair", line, "it is not valid Unicode")
