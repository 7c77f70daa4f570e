"""Words spelled in bytes, for a model that reads characters and has no vocabulary (Peters et al. 2018)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import tokenizers
from tokenizers import models, pre_tokenizers

from maskloom.errors import DataError
from maskloom.system.foreign_files import read_object_inside
from maskloom.text.tokenizer import Tokenizer, library_of
from maskloom.text.tokenizer_files import SETTINGS_FILES, read_limit
from maskloom.text.vocabulary import CONTINUATION_PREFIX, SpecialTokens, Vocabulary

CONTINUES, BEGIN_SENTENCE, END_SENTENCE = 256, 512, 513
"""A byte that begins a word is its own id, other bytes are offset by 256; the marks of sentences follow."""
_MAX_LENGTH = 10_000
# the character that represents each byte in files, as in GPT-2
_KEPT = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = count(256)
_BYTES = [chr(byte if byte in _KEPT else next(_OTHERS)) for byte in range(256)]


@dataclass(frozen=True)
class SpelledTokenizer(Tokenizer):
    """Splits text into words by BERT's cased rules, and each word into its UTF-8 bytes; nothing is unknown.

    Words from a file with one word per line or field stay whole. `targets` holds the words that the model predicts.
    """

    files: ClassVar[tuple[str, ...]] = SETTINGS_FILES
    task_marks: ClassVar[str] = "classify A separator classify B separator"
    text_marks: ClassVar[str] = "classify A separator"

    @classmethod
    def of(cls, words: Tokenizer | None = None) -> SpelledTokenizer:
        """Return the tokenizer of a model that predicts the words of another tokenizer."""
        tokens = [*_BYTES, *(CONTINUATION_PREFIX + byte for byte in _BYTES), "<S>", "</S>", "<pad>"]
        vocabulary = Vocabulary(tokens, SpecialTokens(pad="<pad>", classify="<S>", separator="</S>"))
        return cls(vocabulary, lowercase=False, max_length=_MAX_LENGTH, targets=words)

    @classmethod
    def open(cls, folder: Path) -> SpelledTokenizer:
        """Open a folder like `Tokenizer.load`; raises DataError for any other vocabulary."""
        config, library = (read_object_inside(folder, name) for name in ("tokenizer_config.json", "tokenizer.json"))
        found = replace(cls.of(), max_length=read_limit(folder, config))
        if library["model"].get("vocab") != found.vocabulary.ids:
            raise DataError(f"{folder / 'tokenizer.json'}: its tokens are not the bytes of spelled words")
        return found

    def _save_vocabulary(self, folder: Path, library: tokenizers.Tokenizer) -> tuple[dict[str, Any], dict[str, Any]]:
        library.post_processor = self.template.processor(self.vocabulary)  # pyright: ignore[reportAttributeAccessIssue]
        return {"tokenizer_class": "PreTrainedTokenizerFast"}, {}

    def identity(self) -> dict[str, Any]:
        """Return the kind of tokenizer; there is only one vocabulary."""
        return {"tokenizer": "spelled", "vocabulary_sha256": "bytes", "vocabulary_size": len(self.vocabulary)}

    def chunk_ids_batch(self, chunks: Sequence[str]) -> list[list[int]]:
        """Return the byte ids of chunks, each of which is one word."""
        return list(self.word_ids(chunks))

    def word_ids(self, words: Iterable[str]) -> Iterator[list[int]]:
        """Return the byte ids of each word."""
        for word in words:
            spelled = self._as_text(word).encode()
            yield [*spelled[:1], *(CONTINUES + byte for byte in spelled[1:])]

    def words(self, ids: Sequence[int]) -> list[str]:
        """Return the words that byte ids spell; a mark is returned as its token."""
        found: list[bytes] = []
        begins = True
        for index in ids:
            is_mark = index >= BEGIN_SENTENCE
            spelled = self.vocabulary.tokens[index].encode() if is_mark else bytes([index % CONTINUES])
            if begins or is_mark or index < CONTINUES:
                found.append(spelled)
            else:
                found[-1] += spelled
            begins = is_mark
        return [word.decode("utf-8", "replace") for word in found]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Join bytes into words separated by spaces."""
        return " ".join(self.words([index for index in ids if index < BEGIN_SENTENCE or not skip_special_tokens]))

    def _build_library(self) -> tokenizers.Tokenizer:
        ids = dict(self.vocabulary.ids)
        library = library_of(models.BPE(ids, [], continuing_subword_prefix=CONTINUATION_PREFIX), lowercase=False)
        cut, spell = library.pre_tokenizer, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        library.pre_tokenizer = pre_tokenizers.Sequence([cut, spell])  # pyright: ignore[reportAttributeAccessIssue]
        return library
