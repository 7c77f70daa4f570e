"""The tokenizer: text, or a pair of texts, into what a BERT-like encoder reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, cast

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from maskloom.errors import ConfigError
from maskloom.text import tokenizer_files
from maskloom.text.agreed_characters import is_agreed
from maskloom.text.long_texts import LONGEST_PART, parts_of
from maskloom.text.normalization import words_with_sources
from maskloom.text.vocabulary import CONTINUATION_PREFIX, SPECIAL_TOKENS, Vocabulary, wordpiece_spans

Compatibility = Literal["google", "hf"]
MAX_WORD_LENGTHS: dict[str, int] = {"google": 200, "hf": 100}
_SPECIAL_TOKEN = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Encoding:
    """One sequence, ready for a model (paper figure 2), each list as long as the sequence.

    `words` holds the place of the token's word in its own text and `offsets` the characters of that text that the token
    was made from; special tokens that were added have None and (0, 0). `num_truncated` tokens did not fit.
    """

    ids: list[int]
    segments: list[int]
    words: list[int | None]
    offsets: list[tuple[int, int]]
    num_truncated: int


@dataclass(frozen=True)
class _Pieces:
    """The tokens of one text, without added special tokens and uncut."""

    ids: list[int]
    words: list[int]
    offsets: list[tuple[int, int]]

    def extend(self, part: _Pieces, position: int, num_words: int) -> int:
        """Add the tokens of what stands at a position, behind so many words, and return how many words there are."""
        self.ids.extend(part.ids)
        self.words.extend(num_words + word for word in part.words)
        self.offsets.extend((position + start, position + end) for start, end in part.offsets)
        return num_words + part.words[-1] + 1 if part.words else num_words


@dataclass(frozen=True)
class Tokenizer:
    """WordPiece tokenizer of a BERT-like model (paper 3.2), with Google's rules or those of Hugging Face.

    `compatibility="google"` reads words of up to 200 characters and takes "[MASK]" in a text for plain text;
    "hf" gives what the `tokenizers` library gives: up to 100 characters, special tokens in a text kept.
    `lowercase` also strips accents. `max_length` is the model's limit in tokens.
    Raises ConfigError for a limit under three tokens or an unknown compatibility.
    """

    vocabulary: Vocabulary
    _: KW_ONLY
    lowercase: bool = True
    max_length: int = 512
    compatibility: Compatibility = "google"

    def __post_init__(self) -> None:
        """Check the settings; the library's tokenizer is built at its first use."""
        if self.compatibility not in MAX_WORD_LENGTHS:
            raise ConfigError(f"compatibility = {self.compatibility!r}: it must be one of 'google', 'hf'")
        if self.max_length < 3:
            raise ConfigError(f"max_length = {self.max_length}: [CLS] and two [SEP] alone need 3 tokens")

    @classmethod
    def load(
        cls, folder: str | Path, *, compatibility: Compatibility | None = None, max_length: int | None = None
    ) -> Tokenizer:
        """Open a folder of ours or in Hugging Face layout; what is given here wins over what the folder says.

        Raises DataError where files are missing, damaged, or ask for rules that are not BERT's.
        """
        given = {"max_length": max_length, "compatibility": compatibility}
        settings = tokenizer_files.read_settings(folder) | {name: value for name, value in given.items() if value}
        return cls(Vocabulary.load(folder), **settings)

    def save(self, folder: str | Path) -> None:
        """Write vocab.txt, tokenizer.json, tokenizer_config.json and special_tokens_map.json, each whole or not at all.

        The folder opens in transformers' AutoTokenizer.
        """
        tokenizer_files.write_tokenizer(folder, self, self._build_library_tokenizer())

    def encode(
        self,
        text: str | bytes,
        pair: str | bytes | None = None,
        *,
        max_length: int | None = None,
        parse_special_tokens: bool = False,
    ) -> Encoding:
        """Encode one text as [CLS] A [SEP], or two as [CLS] A [SEP] B [SEP] with segment 1 for B and its [SEP].

        A pair without tokens, or with none left, counts as none. What does not fit goes from the end, token by token,
        from the strictly longer text, from B at a tie. `parse_special_tokens` reads "[MASK]" and its like in the text
        as that token.
        Raises ConfigError when `max_length` is above the model's limit or too small for the special tokens.
        """
        return self.encode_batch([(text, pair)], max_length=max_length, parse_special_tokens=parse_special_tokens)[0]

    def encode_batch(
        self,
        texts: Sequence[tuple[str | bytes, str | bytes | None]],
        *,
        max_length: int | None = None,
        parse_special_tokens: bool = False,
    ) -> list[Encoding]:
        """Encode (text, pair) tuples, faster than one by one, with equal results."""
        limit = self._checked_limit(max_length, num_texts=2 if any(pair for _, pair in texts) else 1)
        pairs = [pair for _, pair in texts if pair]
        pieces = self._pieces([text for text, _ in texts], parse_special_tokens)
        seconds = iter(self._pieces(pairs, parse_special_tokens))
        return [
            self._assemble(first, next(seconds) if pair else None, limit)
            for first, (_, pair) in zip(pieces, texts, strict=True)
        ]

    def token_ids(self, text: str | bytes) -> list[int]:
        """Return the ids of a text, without special tokens and uncut."""
        return self.token_ids_batch([text])[0]

    def token_ids_batch(self, texts: Sequence[str | bytes]) -> list[list[int]]:
        """Return the ids of many texts, without special tokens and uncut; faster than one by one.

        The ids of a text are those of its chunks between white space, as `maskloom.text.normalization.split_chunks`
        finds them, joined in order, so that a caller can keep the ids of chunks that come again and again.
        """
        if self.compatibility == "hf":
            return [pieces.ids for pieces in self._pieces(texts, parse_special_tokens=False)]
        plain = [_as_text(text) for text in texts]
        is_fast = [is_agreed(text) for text in plain]
        batch = [text for text, ok in zip(plain, is_fast, strict=True) if ok and len(text) <= LONGEST_PART]
        fast = iter(self._library_ids(batch) if batch else [])
        return [
            self._pieces_by_rules(text).ids if not ok
            else next(fast) if len(text) <= LONGEST_PART
            else [index for part in parts_of(text, self._library_words) for index in self._library_ids([part.text])[0]]
            for text, ok in zip(plain, is_fast, strict=True)
        ]  # fmt: skip

    def tokens(self, text: str | bytes) -> list[str]:
        """Return the tokens of a text as strings, without special tokens and uncut."""
        return [self.vocabulary.tokens[index] for index in self.token_ids(text)]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Join tokens into readable text: `##` pieces glued to what stands before, a space between words.

        Case, accents and the white space of the source are not in the ids, so they do not come back. The ids of a text
        do, when what they are decoded to is encoded: without special tokens ([UNK] too) where these are skipped, with
        them where they are kept here and `parse_special_tokens` reads them there.
        """
        special_ids = self.vocabulary.special_ids
        text = ""
        for index in ids:
            if skip_special_tokens and index in special_ids:
                continue
            token = self.vocabulary.tokens[index]
            if text and self.vocabulary.is_continuation[index]:
                text += token[len(CONTINUATION_PREFIX) :]
            else:
                text += f" {token}" if text else token
        return text

    @cached_property
    def _library(self) -> tokenizers.Tokenizer:
        return self._build_library_tokenizer()

    def _build_library_tokenizer(self) -> tokenizers.Tokenizer:
        """Build the library's tokenizer without registering special tokens, so that raw text cannot hold any."""
        model = models.WordPiece(
            dict(self.vocabulary.ids),
            unk_token="[UNK]",
            max_input_chars_per_word=MAX_WORD_LENGTHS[self.compatibility],
        )
        library = tokenizers.Tokenizer(model)
        library.normalizer = normalizers.BertNormalizer(  # pyright: ignore[reportAttributeAccessIssue]
            clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=self.lowercase
        )
        library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
        return library

    def _checked_limit(self, max_length: int | None, *, num_texts: int) -> int:
        limit = self.max_length if max_length is None else max_length
        if limit > self.max_length:
            raise ConfigError(f"max_length = {limit}: the model's limit is {self.max_length} tokens")
        if limit < num_texts + 1:
            raise ConfigError(f"max_length = {limit}: the special tokens of {num_texts} texts need {num_texts + 1}")
        return limit

    def _is_for_library(self, text: str) -> bool:
        if self.compatibility == "google":
            return is_agreed(text)
        # a lone surrogate cannot be handed over as UTF-8
        return text.isascii() or _SURROGATE.search(text) is None

    def _library_ids(self, texts: list[str]) -> list[list[int]]:
        return [found.ids for found in self._library.encode_batch_fast(texts, add_special_tokens=False)]

    def _pieces(self, texts: Sequence[str | bytes], parse_special_tokens: bool) -> list[_Pieces]:
        plain = [_as_text(text) for text in texts]
        if not (parse_special_tokens or self.compatibility == "hf"):
            return self._plain_pieces(plain)
        has_specials = [_SPECIAL_TOKEN.search(text) is not None for text in plain]
        without = iter(self._plain_pieces([t for t, has in zip(plain, has_specials, strict=True) if not has]))
        return [
            self._pieces_with_specials(text) if has else next(without)
            for text, has in zip(plain, has_specials, strict=True)
        ]

    def _plain_pieces(self, texts: list[str]) -> list[_Pieces]:
        is_fast = [self._is_for_library(text) for text in texts]
        batch = [text for text, ok in zip(texts, is_fast, strict=True) if ok and len(text) <= LONGEST_PART]
        fast = iter(self._library_pieces(batch) if batch else [])
        return [
            self._pieces_by_rules(text) if not ok
            else next(fast) if len(text) <= LONGEST_PART
            else self._long_pieces(text)
            for text, ok in zip(texts, is_fast, strict=True)
        ]  # fmt: skip

    def _library_pieces(self, texts: list[str]) -> list[_Pieces]:
        # nothing was added to the texts, so every token has a word
        return [
            _Pieces(found.ids, cast("list[int]", found.word_ids), found.offsets)
            for found in self._library.encode_batch(texts, add_special_tokens=False)
        ]

    def _long_pieces(self, text: str) -> _Pieces:
        pieces, num_words = _Pieces([], [], []), 0
        for part in parts_of(text, self._library_words):
            found, position = self._library_pieces([part.text])[0], part.position
            if part.gaps:
                offsets = [(part.place_in_text(start), part.place_in_text(end)) for start, end in found.offsets]
                found, position = replace(found, offsets=offsets), 0
            num_words = pieces.extend(found, position, num_words)
        return pieces

    def _library_words(self, text: str) -> list[str]:
        normal = self._library.normalizer.normalize_str(text)  # pyright: ignore[reportOptionalMemberAccess]
        return [word for word, _ in self._library.pre_tokenizer.pre_tokenize_str(normal)]  # pyright: ignore[reportOptionalMemberAccess]

    def _pieces_with_specials(self, text: str) -> _Pieces:
        """Cut a text at special tokens; each counts as a word of its own."""
        pieces = _Pieces([], [], [])
        num_words = 0
        position = 0
        for match in [*_SPECIAL_TOKEN.finditer(text), None]:
            part = self._plain_pieces([text[position : match.start() if match else len(text)]])[0]
            num_words = pieces.extend(part, position, num_words)
            if match:
                pieces.ids.append(self.vocabulary.ids[match.group()])
                pieces.words.append(num_words)
                pieces.offsets.append(match.span())
                num_words += 1
                position = match.end()
        return pieces

    def _pieces_by_rules(self, text: str) -> _Pieces:
        pieces = _Pieces([], [], [])
        limit = MAX_WORD_LENGTHS[self.compatibility]
        for number, (word, sources) in enumerate(words_with_sources(text, lowercase=self.lowercase)):
            spans = wordpiece_spans(word, self.vocabulary, max_word_length=limit)
            for index, start, end in [(self.vocabulary.unk_id, 0, len(word))] if spans is None else spans:
                pieces.ids.append(index)
                pieces.words.append(number)
                pieces.offsets.append((sources[start], sources[end - 1] + 1))
        return pieces

    def _assemble(self, first: _Pieces, second: _Pieces | None, limit: int) -> Encoding:
        vocabulary = self.vocabulary
        second = second if second and second.ids else None
        num_first, num_second = len(first.ids), len(second.ids) if second else 0
        kept_first, kept_second = _kept_lengths(num_first, num_second, limit - (3 if second else 2))
        if not kept_second:
            # Google's code asks after cutting whether there is a second text
            second = None
        ids = [vocabulary.cls_id, *first.ids[:kept_first], vocabulary.sep_id]
        segments = [0] * len(ids)
        words: list[int | None] = [None, *first.words[:kept_first], None]
        offsets = [(0, 0), *first.offsets[:kept_first], (0, 0)]
        if second:
            ids += [*second.ids[:kept_second], vocabulary.sep_id]
            segments += [1] * (kept_second + 1)
            words += [*second.words[:kept_second], None]
            offsets += [*second.offsets[:kept_second], (0, 0)]
        num_truncated = num_first + num_second - kept_first - kept_second
        return Encoding(ids, segments, words, offsets, num_truncated)


def _kept_lengths(num_first: int, num_second: int, room: int) -> tuple[int, int]:
    """Return how much of both texts is left when single tokens go from the strictly longer one, from B at a tie."""
    excess = num_first + num_second - room
    if excess <= 0:
        return num_first, num_second
    from_longer = min(excess, abs(num_first - num_second))
    if num_first > num_second:
        num_first -= from_longer
    else:
        num_second -= from_longer
    excess -= from_longer
    # both are equally long now, or nothing is left to take; B gives first, then they take turns
    return num_first - excess // 2, num_second - (excess - excess // 2)


def _as_text(text: str | bytes) -> str:
    """Return a str; bytes are UTF-8 whose undecodable bytes are left out, as Google's tokenizer does."""
    return text.decode("utf-8", "ignore") if isinstance(text, bytes) else text
