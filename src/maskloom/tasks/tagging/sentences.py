"""A sentence as words with tags, and where its words stand in a text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class TaggedSentence:
    """One sentence of a file: its words, and their tags where the file has them, in the scheme asked for.

    `line` is the file line of the first word and `number` counts sentences from 1; `document` counts documents of the
    file from 0. `columns` holds the fields of each word of a file in columns, as they stand there with `separator`
    between, and `opening` those of the -DOCSTART- line right before it. `source_text` and `source_spans` are the text
    that raw words were cut from and the characters (start, end) of each; without a text, words count as joined by
    single spaces.
    Raises ValueError where words and tags, columns or spans differ in number.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    line: int
    number: int
    document: int
    columns: tuple[tuple[str, ...], ...] | None = None
    separator: str = " "
    opening: tuple[str, ...] | None = None
    source_text: str | None = None
    source_spans: tuple[tuple[int, int], ...] | None = None

    def __post_init__(self) -> None:
        """Check that everything that belongs to words is there once a word."""
        for name in ("tags", "columns", "source_spans"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.words):
                raise ValueError(f"line {self.line}: {len(self.words)} words and {len(values)} {name}")

    @classmethod
    def of_text(
        cls, text: str, spans: Iterable[tuple[int, int]], line: int, number: int, document: int
    ) -> TaggedSentence:
        """Return the sentence whose words are those characters (start, end) of a text."""
        spans = tuple(spans)
        words = tuple(text[start:end] for start, end in spans)
        return cls(words, None, line, number, document, source_text=text, source_spans=spans)

    @cached_property
    def text(self) -> str:
        """The text of the sentence: the line it was cut from, or its words with a space between."""
        return " ".join(self.words) if self.source_text is None else self.source_text

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The characters of `text`, (start, end), that each word stands on."""
        if self.source_spans is not None:
            return self.source_spans
        found, start = [], 0
        for word in self.words:
            found.append((start, start + len(word)))
            start += len(word) + 1
        return tuple(found)

    def inputs(self) -> tuple[str, ...]:
        """Return what a model sees of the sentence."""
        return self.words

    def as_row(self) -> dict[str, str]:
        """Return the text as a row of predictions shows it."""
        return {"text": self.text}

    def line_of(self, word: int) -> int:
        """Return the file line of a word: every word has its own where the file is in columns."""
        return self.line + word if self.columns is not None else self.line
