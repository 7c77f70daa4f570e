"""Byte-pair encoding over words, as in GPT, and over bytes, as in GPT-2."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from maskloom.system.files import write_json, write_text
from maskloom.text.templates import GPT_TEXTS, RUNNING_TEXT
from maskloom.text.tokenizer import Tokenizer, library_of
from maskloom.text.tokenizer_files import SETTINGS_FILES
from maskloom.text.vocabulary import BART_TOKENS, GPT_TOKENS, SENTINEL, Vocabulary, vocabulary_sha256

_VERSION = "#version: 0.2"


@dataclass(frozen=True)
class BytePairTokenizer(Tokenizer):
    """Splits words into pieces by merging pairs in the order of `merges` (Sennrich et al. 2016).

    If the vocabulary has a `suffix` (GPT's "</w>"), text is split into words by BERT's rules, and a character outside
    the vocabulary becomes the unknown token. Otherwise text is split into bytes like GPT-2's, which preserves white
    space and case; `prefix_space` prepends a space. Ids match the `tokenizers` library, and thus transformers, except
    that special tokens in a text are plain text unless requested.
    """

    merges: tuple[tuple[str, str], ...] = field(repr=False)
    _: KW_ONLY
    prefix_space: bool = False

    files: ClassVar[tuple[str, ...]] = ("vocab.json", "merges.txt", *SETTINGS_FILES)
    task_marks: ClassVar[str] = GPT_TEXTS
    text_marks: ClassVar[str] = RUNNING_TEXT

    def _save_vocabulary(self, folder: Path, library: tokenizers.Tokenizer) -> tuple[dict[str, Any], dict[str, Any]]:
        suffix, sentinels = self.vocabulary.suffix, filter(SENTINEL.fullmatch, self.vocabulary.tokens)
        # like a mask, a sentinel stands for tokens with the space before them
        library.add_special_tokens(
            [AddedToken(token, special=True, normalized=False, lstrip=not suffix) for token in sentinels]
        )
        write_json(folder / "vocab.json", dict(self.vocabulary.ids))
        write_text(folder / "merges.txt", "".join(f"{line}\n" for line in [_VERSION, *map(" ".join, self.merges)]))
        library.decoder = decoders.BPEDecoder(suffix) if suffix else decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
        if not suffix:
            kind = "RobertaTokenizer" if self.vocabulary.special == BART_TOKENS else "GPT2Tokenizer"
            return {"tokenizer_class": kind, "add_prefix_space": self.prefix_space}, {}
        # transformers' class for GPT always lower-cases, whatever the folder says
        kind = "OpenAIGPTTokenizer" if self.lowercase else "PreTrainedTokenizerFast"
        return {"tokenizer_class": kind, "do_lower_case": self.lowercase}, {}

    def identity(self) -> dict[str, Any]:
        """Return the kind of tokenizer, the hash of its tokens and merges, the vocabulary size and the rules."""
        return {
            "tokenizer": "byte-pair" if self.vocabulary.suffix else "byte-level byte-pair",
            "vocabulary_sha256": vocabulary_sha256(self.vocabulary, *(" ".join(pair) for pair in self.merges)),
            "vocabulary_size": len(self.vocabulary),
            "lowercase": self.lowercase,
            **({"prefix_space": True} if self.prefix_space else {}),
        }

    def with_task_tokens(self) -> BytePairTokenizer:
        """Return this tokenizer with the marks for fine-tuning; missing ones are appended to the vocabulary."""
        old = self.vocabulary
        roles = ("begin", "separator", "classify")
        new = {role: getattr(GPT_TOKENS, role) for role in roles if getattr(old.special, role) is None}
        tokens = dict.fromkeys([*old.tokens, *new.values()])
        special = replace(old.special, **new)
        return replace(self, vocabulary=Vocabulary(list(tokens), special, prefix=old.prefix, suffix=old.suffix))

    def word_ids(self, words: Iterable[str]) -> Iterator[list[int]]:
        """Return the piece ids of each word; a byte-level tokenizer expects words from `byte_words`."""
        cut = self._library.model.tokenize
        return ([piece.id for piece in cut(word)] for word in words)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Join pieces into text: "</w>" becomes a space between words, and bytes are decoded."""
        suffix, special_ids, tokens = self.vocabulary.suffix, self.vocabulary.special_ids, self.vocabulary.tokens
        text = ""
        for is_special, group in groupby(ids, key=special_ids.__contains__):
            found = [tokens[index] for index in group]
            if is_special:
                text += "" if skip_special_tokens else "".join(found)
            elif suffix:
                text += "".join(token.removesuffix(suffix) + " " * token.endswith(suffix) for token in found)
            else:
                text += decoders.ByteLevel().decode(found)
        return text.removesuffix(" ") if suffix else text

    @property
    def cuts_at_white_space(self) -> bool:
        """Whether the pieces come from words rather than bytes."""
        return bool(self.vocabulary.suffix)

    def _build_library(self) -> tokenizers.Tokenizer:
        ids, merges, vocabulary = dict(self.vocabulary.ids), list(self.merges), self.vocabulary
        if vocabulary.suffix:
            unknown = vocabulary.tokens[vocabulary.unk_id]
            model = models.BPE(ids, merges, unk_token=unknown, end_of_word_suffix=vocabulary.suffix)
            return library_of(model, lowercase=self.lowercase)
        library = tokenizers.Tokenizer(models.BPE(ids, merges))
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=self.prefix_space)  # pyright: ignore[reportAttributeAccessIssue]
        return library
