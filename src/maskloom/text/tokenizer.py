"""The tokenizer base class: turns a text, or a pair of texts, into model input."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, astuple, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast

import tokenizers
from tokenizers import AddedToken, normalizers, pre_tokenizers

from maskloom.errors import ConfigError, amount
from maskloom.system.files import write_json
from maskloom.text.templates import BART_TEXTS, ONE_TEXT, SequenceTemplate
from maskloom.text.tokenizer_files import ROLES, kind_of_tokenizer, read_byte_pairs, read_unigram, read_wordpiece
from maskloom.text.vocabulary import SURROGATE, Vocabulary

TOKEN_FILES = ("vocab.txt", "vocab.json", "tokenizer.json")
"""A folder with a tokenizer has at least one of these files."""
TARGETS = "targets"
LONGEST_PART = 16_384
"""In characters; longer text is split where possible: the library needs hundreds of bytes per character."""
# White space, punctuation and Chinese characters, which end a word, so that a text may be cut before them.
_WORD_ENDS = re.compile("[ \t\n\r!-/:-@\\[-`{-~\u4e00-\u9fff]")


@dataclass(frozen=True)
class Encoding:
    """One sequence of model input (paper figure 2); every list has the length of the sequence.

    For each token, `words` holds the index of its word and `offsets` its character span, both in the token's own text;
    added special tokens have None and (0, 0). `num_truncated` tokens did not fit.
    """

    ids: list[int]
    segments: list[int]
    words: list[int | None]
    offsets: list[tuple[int, int]]
    num_truncated: int


@dataclass(frozen=True)
class Pieces:
    """The tokens of one text, untruncated and without added special tokens."""

    ids: list[int]
    words: list[int]
    offsets: list[tuple[int, int]]

    def extend(self, part: Pieces, position: int, num_words: int) -> int:
        """Append the tokens of a part at character `position`, after `num_words` words; return the new word count."""
        self.ids.extend(part.ids)
        self.words.extend(num_words + word for word in part.words)
        self.offsets.extend((position + start, position + end) for start, end in part.offsets)
        return num_words + part.words[-1] + 1 if part.words else num_words


@dataclass(frozen=True)
class Tokenizer(ABC):
    """The interface of every tokenizer; `load` opens any folder, recognising the kind by its files.

    `template` holds the marks around the texts of a task, `running_text` the marks for language modelling. `lowercase`
    also strips accents. `max_length` is the model's limit in tokens; a limit too small for the marks raises
    ConfigError. `targets` is the tokenizer of a decoder's output if that has its own vocabulary; it is stored in the
    subfolder `TARGETS`.
    """

    vocabulary: Vocabulary
    _: KW_ONLY
    lowercase: bool = True
    max_length: int = 512
    targets: Tokenizer | None = None

    files: ClassVar[tuple[str, ...]]
    """The names of the files that `save` writes."""
    task_marks: ClassVar[str]
    text_marks: ClassVar[str]
    has_segments: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.max_length < 3:
            raise ConfigError(f"max_length = {self.max_length}: it must be at least 3, special tokens included")

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Open a folder written by `save` or in Hugging Face layout.

        Raises DataError for missing or damaged files, and for files that ask for rules other than the model's.
        """
        from maskloom.text.byte_pair_tokenizer import BytePairTokenizer
        from maskloom.text.spelled_tokenizer import SpelledTokenizer
        from maskloom.text.unigram_tokenizer import UnigramTokenizer
        from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

        kinds: dict[str, Callable[[Path], Tokenizer]] = {
            "wordpiece": lambda path: WordPieceTokenizer(**read_wordpiece(path)),
            "byte-pair": lambda path: BytePairTokenizer(**read_byte_pairs(path)),
            "unigram": lambda path: UnigramTokenizer(**read_unigram(path)),
            "spelled": SpelledTokenizer.open,
        }
        folder, targets = Path(folder), Path(folder) / TARGETS
        tokenizer = kinds[kind_of_tokenizer(folder)](folder)
        return replace(tokenizer, targets=kinds[kind_of_tokenizer(targets)](targets)) if targets.is_dir() else tokenizer

    @property
    def of_targets(self) -> Tokenizer:
        """The tokenizer of a decoder's output: `targets` if set, otherwise this one."""
        return self.targets or self

    def save(self, folder: str | Path, *, num_segments: int = 2) -> None:
        """Write `files`, each atomically; transformers' AutoTokenizer opens the folder.

        For a model with fewer than two segments, AutoTokenizer then returns none, which some models would misread.
        """
        if self.targets is not None:
            self.targets.save(Path(folder) / TARGETS)
        folder, library, special = Path(folder), self._build_library(), self.vocabulary.special
        folder.mkdir(parents=True, exist_ok=True)
        rules, own = self._save_vocabulary(folder, library)
        spaced, known = self._spaced_mask, {token.content for token in library.get_added_tokens_decoder().values()}
        marks = [name for name in special.tokens if name not in known]
        added = [AddedToken(name, special=True, normalized=False, lstrip=name == spaced) for name in marks]
        library.add_special_tokens(added)
        named = {name: token for name, token in zip(ROLES, astuple(special), strict=True) if token is not None}
        if num_segments < 2:
            own["model_input_names"] = ["input_ids", "attention_mask"]
        write_json(folder / "tokenizer.json", self._content(library))
        write_json(folder / "tokenizer_config.json", {**rules, "model_max_length": self.max_length, **named, **own})
        write_json(folder / "special_tokens_map.json", named)

    def _content(self, library: tokenizers.Tokenizer) -> dict[str, Any]:
        return json.loads(library.to_str())

    @abstractmethod
    def _save_vocabulary(self, folder: Path, library: tokenizers.Tokenizer) -> tuple[dict[str, Any], dict[str, Any]]:
        """Write the vocabulary, complete `library` in place, and return transformers' settings and our own."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return, as plain values, everything that determines the ids of a text; a corpus stores it."""

    def with_task_tokens(self) -> Tokenizer:
        """Return a tokenizer that has the marks for fine-tuning; existing ids do not change."""
        return self

    @cached_property
    def template(self) -> SequenceTemplate:
        """The marks around the texts of a task; none if the vocabulary has no token that represents a whole text."""
        special, marks = self.vocabulary.special, self.task_marks
        if "classify" in marks and special.classify is None:
            marks = ONE_TEXT
        elif "classify" in marks and special.classify == special.begin:
            marks = BART_TEXTS
        return SequenceTemplate.of(marks, self.vocabulary, has_segments=self.has_segments)

    @cached_property
    def running_text(self) -> SequenceTemplate:
        """The marks around a text for language modelling."""
        return SequenceTemplate.of(self.text_marks, self.vocabulary)

    def encode(
        self, text: str, pair: str | None = None, *, max_length: int | None = None, parse_special_tokens: bool = False
    ) -> Encoding:
        """Encode one or two texts with the marks of `template`, [CLS] A [SEP] B [SEP] for BERT.

        A `pair` without tokens, or with none left after truncation, counts as absent. Truncation removes single tokens
        from the end of the strictly longer text, or of B on a tie. With `parse_special_tokens`, "[MASK]" and the like
        in a text become those tokens. Raises ConfigError when `max_length` is above the model's limit or too small for
        the special tokens.
        """
        return self.encode_batch([(text, pair)], max_length=max_length, parse_special_tokens=parse_special_tokens)[0]

    def encode_batch(
        self,
        texts: Sequence[tuple[str, str | None]],
        *,
        max_length: int | None = None,
        parse_special_tokens: bool = False,
    ) -> list[Encoding]:
        """Encode (text, pair) tuples: faster than one by one, with the same results."""
        limit = self._checked_limit(max_length, num_texts=2 if any(pair for _, pair in texts) else 1)
        pairs = [pair for _, pair in texts if pair]
        pieces = self._pieces([text for text, _ in texts], parse_special_tokens)
        seconds = iter(self._pieces(pairs, parse_special_tokens))
        return [
            self._assemble(first, next(seconds) if pair else Pieces([], [], []), limit)
            for first, (_, pair) in zip(pieces, texts, strict=True)
        ]

    def sequences(
        self, texts: Sequence[tuple[str, str | None]], *, max_length: int | None = None
    ) -> Iterator[tuple[list[int], int, int]]:
        """Yield for each (text, pair) the ids of `encode_batch`, how many are in segment 0 and how many did not fit."""
        limit = self._checked_limit(max_length, num_texts=2 if any(pair for _, pair in texts) else 1)
        firsts = self.token_ids_batch([text for text, _ in texts])
        seconds = iter(self.token_ids_batch([pair for _, pair in texts if pair]))
        for first, (_, pair) in zip(firsts, texts, strict=True):
            second = next(seconds) if pair else []
            ids, num_a, kept = self._assembled(first, second, limit)
            num_own = num_a if self.template.has_segments else len(ids)
            yield ids, num_own, len(first) + len(second) - sum(kept)

    def token_ids(self, text: str) -> list[int]:
        """Return the ids of a text, untruncated and without special tokens."""
        return self.token_ids_batch([text])[0]

    def token_ids_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of many texts, untruncated and without special tokens; faster than one by one.

        If `cuts_at_white_space`, the ids of a text are the concatenated ids of its white-space-delimited chunks, as
        found by `maskloom.text.normalization.split_chunks`, so a caller can cache the ids of chunks that recur.
        """
        if self.reads_special_tokens:
            return [pieces.ids for pieces in self._pieces(texts, parse_special_tokens=False)]
        plain = [self._as_text(text) for text in texts]
        return _by_kind(plain, self._are_whole(plain), self._library_ids, lambda text: self._pieces_alone(text).ids)

    def chunk_ids_batch(self, chunks: Sequence[str]) -> list[list[int]]:
        """Return the ids of each chunk, as they are in a text where white space precedes the chunk."""
        return self.token_ids_batch(chunks if self.cuts_at_white_space else [f" {chunk}" for chunk in chunks])

    @abstractmethod
    def word_ids(self, words: Iterable[str]) -> Iterator[list[int]]:
        """Return the ids of each normalised word."""

    def tokens(self, text: str) -> list[str]:
        """Return the tokens of a text as strings, untruncated and without special tokens."""
        return [self.vocabulary.tokens[index] for index in self.token_ids(text)]

    @abstractmethod
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Join tokens into readable text.

        Case, accents and white space of the source are lost if the ids do not record them. Encoding the decoded text
        gives the ids of that text again: without special tokens (including the unknown token) if they are skipped here,
        and with them if they are kept here and encoded with `parse_special_tokens`. An unknown character in a word is
        an exception for byte pairs with a suffix.
        """

    def _as_text(self, text: str) -> str:
        """Return a text that UTF-8 can encode: halves of surrogate pairs are replaced."""
        return text if text.isascii() else SURROGATE.sub("\ufffd", text)

    def _plain_pieces(self, texts: list[str]) -> list[Pieces]:
        """Return the tokens of texts, treating special tokens as plain text."""
        return _by_kind(texts, self._are_whole(texts), self._library_pieces, self._pieces_alone)

    def _are_whole(self, texts: list[str]) -> list[bool]:
        return [len(text) <= LONGEST_PART and self._is_for_library(text) for text in texts]

    def _is_for_library(self, text: str) -> bool:
        return True

    @abstractmethod
    def _build_library(self) -> tokenizers.Tokenizer:
        """Build the library's tokenizer without registering special tokens, so that raw text cannot contain any."""

    @cached_property
    def _library(self) -> tokenizers.Tokenizer:
        return self._build_library()

    def _library_ids(self, texts: list[str]) -> list[list[int]]:
        return [found.ids for found in self._library.encode_batch_fast(texts, add_special_tokens=False)]

    def _library_pieces(self, texts: list[str]) -> list[Pieces]:
        # no special tokens were added, so every token has a word
        return [
            Pieces(found.ids, cast("list[int]", found.word_ids), found.offsets)
            for found in self._library.encode_batch(texts, add_special_tokens=False)
        ]

    def _pieces_alone(self, text: str) -> Pieces:
        """Return the tokens of a long text, part by part, unless only the library knows where words end."""
        pieces, num_words = Pieces([], [], []), 0
        for position, part in parts_of(text) if self.cuts_at_white_space else [(0, text)]:
            num_words = pieces.extend(self._pieces_of_part(part), position, num_words)
        return pieces

    def _pieces_of_part(self, part: str) -> Pieces:
        return self._library_pieces([part])[0]

    @property
    def reads_special_tokens(self) -> bool:
        """Whether special tokens in a text are always recognised."""
        return False

    @property
    def cuts_at_white_space(self) -> bool:
        """Whether the ids of a text are the concatenated ids of its words."""
        return True

    @property
    def reads_whole_chunks(self) -> bool:
        """Whether the ids of a word may depend on everything between it and the next white space."""
        return not self.cuts_at_white_space

    @property
    def _spaced_mask(self) -> str | None:
        """The mask token if, like the piece that it replaces, it includes the white space before it in a text."""
        return None if self.cuts_at_white_space else self.vocabulary.special.mask

    @cached_property
    def _special_token(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self.vocabulary.special.tokens)) or "(?!)")

    def _checked_limit(self, max_length: int | None, *, num_texts: int) -> int:
        limit, num_marks = self.max_length if max_length is None else max_length, self.template.num_marks(num_texts)
        if limit > self.max_length:
            raise ConfigError(f"max_length = {limit}: the model's limit is {self.max_length} tokens")
        if limit < num_marks:
            raise ConfigError(f"max_length = {limit}: special tokens for {amount(num_texts, 'text')} take {num_marks}")
        return limit

    def _pieces(self, texts: Sequence[str], parse_special_tokens: bool) -> list[Pieces]:
        plain = [self._as_text(text) for text in texts]
        if not (parse_special_tokens or self.reads_special_tokens):
            return self._plain_pieces(plain)
        has_none = [self._special_token.search(text) is None for text in plain]
        return _by_kind(plain, has_none, self._plain_pieces, self._pieces_with_specials)

    def _pieces_with_specials(self, text: str) -> Pieces:
        """Split a text at special tokens; each of them counts as a word."""
        pieces, num_words, position = Pieces([], [], []), 0, 0
        for match in [*self._special_token.finditer(text), None]:
            plain = text[position : match.start() if match else len(text)]
            if match and match.group() == self._spaced_mask:
                plain = plain.rstrip()
            num_words = pieces.extend(self._plain_pieces([plain])[0], position, num_words)
            if match:
                mark = Pieces([self.vocabulary.ids[match.group()]], [0], [(0, len(match.group()))])
                num_words, position = pieces.extend(mark, match.start(), num_words), match.end()
        return pieces

    def _assemble(self, first: Pieces, second: Pieces, limit: int) -> Encoding:
        ids, num_a, kept = self._assembled(first.ids, second.ids, limit)
        segments = [0] * num_a + [int(self.template.has_segments)] * (len(ids) - num_a)
        words: list[int | None] = [None] * len(ids)
        offsets = [(0, 0)] * len(ids)
        for text, start, number in zip((first, second), (len(self.template.begin), num_a), kept, strict=True):
            words[start : start + number] = text.words[:number]
            offsets[start : start + number] = text.offsets[:number]
        return Encoding(ids, segments, words, offsets, len(first.ids) + len(second.ids) - sum(kept))

    def _assembled(self, first: list[int], second: list[int], limit: int) -> tuple[list[int], int, tuple[int, int]]:
        """Return the ids of a sequence, how many precede the second text, and how many are kept of each text."""
        template, num_first, num_second = self.template, len(first), len(second)
        room = limit - template.num_marks(2 if second else 1)
        # tokens are removed one by one from the strictly longer text, from B on a tie
        kept_first = min(num_first, max(room - num_second, (room + 1) // 2))
        kept_second = min(num_second, room - kept_first)
        # Google's code checks only after truncation whether there is a second text
        middle, end = (template.middle, template.end) if kept_second else (template.end, ())
        ids = [*template.begin, *first[:kept_first], *middle, *second[:kept_second], *end]
        return ids, len(template.begin) + kept_first + len(middle), (kept_first, kept_second)


def parts_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield the parts of a text with their positions, cut before the first of `_WORD_ENDS` after `LONGEST_PART`."""
    start = 0
    while start < len(text):
        cut = _WORD_ENDS.search(text, start + LONGEST_PART)
        end = cut.start() if cut else len(text)
        yield start, text[start:end]
        start = end


def library_of(model: Any, *, lowercase: bool) -> tokenizers.Tokenizer:
    """Return a library tokenizer that splits text into words by BERT's rules before `model` splits the words."""
    library = tokenizers.Tokenizer(model)
    library.normalizer = normalizers.BertNormalizer(  # pyright: ignore[reportAttributeAccessIssue]
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    return library


def _by_kind(
    texts: list[str], fits: list[bool], in_batch: Callable[[list[str]], list[Any]], alone: Callable[[str], Any]
) -> list[Any]:
    """Apply `in_batch` to the texts that fit and `alone` to each other text; the results are in the texts' order."""
    found = iter(in_batch([text for text, does in zip(texts, fits, strict=True) if does]))
    return [next(found) if does else alone(text) for text, does in zip(texts, fits, strict=True)]
