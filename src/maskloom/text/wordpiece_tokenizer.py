"""WordPiece: turns a text, or a pair of texts, into input for a BERT-like encoder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

import tokenizers
from tokenizers import AddedToken, decoders, models

from maskloom.errors import ConfigError
from maskloom.text.normalization import is_agreed, words_with_sources
from maskloom.text.templates import BERT_TEXTS
from maskloom.text.tokenizer import LONGEST_PART, Pieces, Tokenizer, library_of
from maskloom.text.tokenizer_files import MAX_WORD_LENGTHS, SETTINGS_FILES, Added
from maskloom.text.vocabulary import CONTINUATION_PREFIX, SURROGATE, longest_pieces, vocabulary_sha256

Compatibility = Literal["google", "hf"]


@dataclass(frozen=True)
class WordPieceTokenizer(Tokenizer):
    """WordPiece tokenizer of a BERT-like model (paper 3.2), with Google's or Hugging Face's rules.

    `compatibility="google"` splits words of up to 200 characters and treats "[MASK]" in a text as plain text; "hf"
    matches the `tokenizers` library: words of up to 100 characters, and special tokens in a text are recognised.
    Only there are there `added` tokens, whatever surrounds them; words are split into the first `num_pieces` tokens of
    the vocabulary, or all. Raises ConfigError for a `max_length` below 3, an unknown compatibility, and added tokens
    with Google's rules.
    """

    _: KW_ONLY
    compatibility: Compatibility = "google"
    added: tuple[Added, ...] = ()
    num_pieces: int | None = None

    files: ClassVar[tuple[str, ...]] = ("vocab.txt", *SETTINGS_FILES)
    task_marks: ClassVar[str] = BERT_TEXTS
    text_marks: ClassVar[str] = BERT_TEXTS
    has_segments: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compatibility not in MAX_WORD_LENGTHS:
            raise ConfigError(f"compatibility = {self.compatibility!r}: it must be one of 'google', 'hf'")
        if self.added and self.compatibility == "google":
            raise ConfigError("compatibility = 'google': Google's rules have no added tokens, but this vocabulary does")

    def _save_vocabulary(self, folder: Path, library: tokenizers.Tokenizer) -> tuple[dict[str, Any], dict[str, Any]]:
        replace(self.vocabulary, tokens=self.vocabulary.tokens[: self.num_pieces]).save(folder / "vocab.txt")
        library.decoder = decoders.WordPiece(prefix="##")  # pyright: ignore[reportAttributeAccessIssue]
        library.post_processor = self.template.processor(self.vocabulary)  # pyright: ignore[reportAttributeAccessIssue]
        rules = {"tokenizer_class": "BertTokenizer", "do_lower_case": self.lowercase, "strip_accents": None}
        return {**rules, "tokenize_chinese_chars": True}, {"maskloom_compatibility": self.compatibility}

    def identity(self) -> dict[str, Any]:
        """Return the vocabulary's hash and size, the rules, and added tokens if there are any."""
        rules: dict[str, Any] = {"lowercase": self.lowercase, "compatibility": self.compatibility}
        if self.added:
            rules |= {"num_pieces": self.num_pieces, "added": [list(token) for token in self.added]}
        sha256, size = vocabulary_sha256(self.vocabulary), len(self.vocabulary)
        return {"vocabulary_sha256": sha256, "vocabulary_size": size, **rules}

    def word_ids(self, words: Iterable[str]) -> Iterator[list[int]]:
        """Return the id of each word that is a single piece, or the ids of its pieces."""
        if self.added:
            return iter(self.token_ids_batch([*words]))
        whole, cut = self.vocabulary.ids, self._library.model.tokenize
        return ([whole[word]] if word in whole else [piece.id for piece in cut(word)] for word in words)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Append `##` pieces to the preceding text, and join words with spaces."""
        vocabulary, text = self.vocabulary, ""
        for index in ids:
            if not (skip_special_tokens and index in vocabulary.special_ids):
                token, is_inside = vocabulary.tokens[index], vocabulary.is_continuation[index]
                text += token[len(CONTINUATION_PREFIX) :] if is_inside else " " * bool(text) + token
        return text

    def _build_library(self) -> tokenizers.Tokenizer:
        longest = MAX_WORD_LENGTHS[self.compatibility]
        pieces = dict(islice(self.vocabulary.ids.items(), self.num_pieces))
        model = models.WordPiece(pieces, unk_token="[UNK]", max_input_chars_per_word=longest)
        library = library_of(model, lowercase=self.lowercase)
        library.add_tokens([AddedToken(**token._asdict()) for token in self.added])
        return library

    def _as_text(self, text: str) -> str:
        return text  # to the rules, half of a surrogate pair is a character like others

    @property
    def reads_special_tokens(self) -> bool:
        """Whether the rules are Hugging Face's."""
        return self.compatibility == "hf"

    @property
    def reads_whole_chunks(self) -> bool:
        """Whether there are added tokens, which may have any characters but white space."""
        return bool(self.added)

    def _pieces(self, texts: Sequence[str], parse_special_tokens: bool) -> list[Pieces]:
        if not self.added:
            return super()._pieces(texts, parse_special_tokens)
        return self._library_pieces([SURROGATE.sub("\ufffd", text) for text in texts])

    def _is_for_library(self, text: str) -> bool:
        if self.compatibility == "google":
            return is_agreed(text)
        # a lone surrogate cannot be passed on as UTF-8
        return text.isascii() or SURROGATE.search(text) is None

    def _pieces_alone(self, text: str) -> Pieces:
        return super()._pieces_alone(text) if self._is_for_library(text) else self._pieces_by_rules(text)

    def _pieces_of_part(self, part: str) -> Pieces:
        # without a place to cut, a part may be as long as the text
        is_long = len(part) > 2 * LONGEST_PART
        return self._pieces_by_rules(part) if is_long and is_agreed(part) else super()._pieces_of_part(part)

    def _pieces_by_rules(self, text: str) -> Pieces:
        pieces = Pieces([], [], [])
        limit, ids = MAX_WORD_LENGTHS[self.compatibility], self.vocabulary.ids
        unknown = self.vocabulary.tokens[self.vocabulary.unk_id]
        for number, (word, sources) in enumerate(words_with_sources(text, lowercase=self.lowercase)):
            cut = longest_pieces(word, ids) if len(word) <= limit else None
            for piece, start, end in [(unknown, 0, len(word))] if cut is None else cut:
                pieces.ids.append(ids[piece])
                pieces.words.append(number)
                pieces.offsets.append((sources[start], sources[end - 1] + 1))
        return pieces
