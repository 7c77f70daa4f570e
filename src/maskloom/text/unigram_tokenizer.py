"""Unigram pieces (Kudo 2018), the tokenizer of the published T5, read from a tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import tokenizers
from tokenizers import AddedToken, decoders

from maskloom.errors import DataError
from maskloom.text.templates import RUNNING_TEXT
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.tokenizer_files import SETTINGS_FILES
from maskloom.text.vocabulary import SENTINEL, vocabulary_sha256


@dataclass(frozen=True)
class UnigramTokenizer(Tokenizer):
    """Splits words into the pieces whose `scores` (log-probabilities) have the highest sum.

    `rules` is the rest of a tokenizer.json, as JSON: how text is normalised, split into words and decoded. Ids match
    the `tokenizers` library, and thus transformers, except that special tokens and sentinels in a text are plain text.
    """

    scores: tuple[float, ...] = field(repr=False)
    rules: str = field(repr=False)

    files: ClassVar[tuple[str, ...]] = SETTINGS_FILES
    task_marks: ClassVar[str] = "A end B end"
    text_marks: ClassVar[str] = RUNNING_TEXT

    def _save_vocabulary(self, folder: Path, library: tokenizers.Tokenizer) -> tuple[dict[str, Any], dict[str, Any]]:
        vocabulary = self.vocabulary
        library.model = self._described(vocabulary.tokens).model
        sentinels = filter(SENTINEL.fullmatch, vocabulary.tokens)
        library.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in sentinels])
        library.post_processor = self.template.processor(vocabulary)  # pyright: ignore[reportAttributeAccessIssue]
        return {"tokenizer_class": "PreTrainedTokenizerFast"}, {}

    def _content(self, library: tokenizers.Tokenizer) -> dict[str, Any]:
        content = super()._content(library)
        content["model"]["vocab"] = self._pieces_of(self.vocabulary.tokens)  # the library rounds what it reads
        return content

    def identity(self) -> dict[str, Any]:
        """Return the kind of tokenizer, the hash of its tokens, scores and rules, and the vocabulary size."""
        return {
            "tokenizer": "unigram",
            "vocabulary_sha256": vocabulary_sha256(self.vocabulary, self.rules, *map(repr, self.scores)),
            "vocabulary_size": len(self.vocabulary),
        }

    def word_ids(self, words: Iterable[str]) -> Iterator[list[int]]:
        """Return the piece ids of each word."""
        return (self.token_ids(word) for word in words)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Join pieces, which mark where words begin; sentinels are separated by spaces."""
        tokens, special = self.vocabulary.tokens, self.vocabulary.special_ids
        kept = [tokens[index] for index in ids if not (skip_special_tokens and index in special)]
        decoder = self._library.decoder or decoders.Metaspace()
        groups = groupby(kept, key=lambda token: SENTINEL.fullmatch(token) is not None)
        return " ".join(" ".join(part) if is_mark else decoder.decode([*part]) for is_mark, part in groups)

    @property
    def cuts_at_white_space(self) -> bool:
        """False, because the rules do not specify it."""
        return False

    def _build_library(self) -> tokenizers.Tokenizer:
        # a piece that begins with a space matches no text, because spaces are replaced with another character
        hidden = set(self.vocabulary.special.tokens)
        plain = [f" {name}" if name in hidden or SENTINEL.fullmatch(name) else name for name in self.vocabulary.tokens]
        return self._described(plain)

    def _pieces_of(self, tokens: Sequence[str]) -> list[tuple[str, float]]:
        return [*zip(tokens, self.scores, strict=False)]

    def _described(self, tokens: Sequence[str]) -> tokenizers.Tokenizer:
        rules = json.loads(self.rules)
        rules["model"]["vocab"] = self._pieces_of(tokens)
        try:
            return tokenizers.Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], **rules}))
        except Exception as error:  # the library raises nothing narrower
            raise DataError(f"tokenizer.json: {error}") from None
