"""The vocabulary, an ordered list of tokens whose place is their id, and the pieces that it makes of a word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from maskloom.errors import DataError
from maskloom.files import write_text
from maskloom.foreign_files import file_inside, parse_json, read_bytes

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION_PREFIX = "##"
MAX_WORD_LENGTH = 200
"""Characters of a word by Google's rule; a longer one is unknown."""
_SURROGATE = re.compile("[\ud800-\udfff]")
MAX_VOCABULARY_BYTES = 256 << 20
"""256 MiB: twenty times the largest vocabularies that are published."""


def _id_of(token: str) -> cached_property[int]:
    found = cached_property(lambda vocabulary: vocabulary.ids[token])
    found.__doc__ = f"The id of {token}."
    return found


@dataclass(frozen=True)
class Vocabulary:
    """An immutable list of distinct tokens that holds the five special tokens at any places (paper 3.2).

    Raises DataError for an empty or repeated token and for missing special tokens, and says where.
    """

    tokens: tuple[str, ...]

    def __init__(self, tokens: Sequence[str], *, source: str = "vocabulary") -> None:
        """Check the tokens; `source` is the file that errors name."""
        object.__setattr__(self, "tokens", tuple(tokens))
        first_line: dict[str, int] = {}
        for line, token in enumerate(self.tokens, start=1):
            if not token.strip():
                raise DataError(f"{source}, line {line}: the token is empty; every line must hold one token")
            if token in first_line:
                raise DataError(f"{source}, line {line}: token {token!r:.80} is already on line {first_line[token]}")
            first_line[token] = line
        if _SURROGATE.search("".join(self.tokens)):
            token, line = next(item for item in first_line.items() if _SURROGATE.search(item[0]))
            raise DataError(f"{source}, line {line}: token {token!r:.80} holds half of a surrogate pair")
        missing = [token for token in SPECIAL_TOKENS if token not in first_line]
        if missing:
            raise DataError(f"{source}: {len(self.tokens)} tokens, but not {', '.join(missing)}; all five are needed")

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.tokens)

    def __contains__(self, token: object) -> bool:
        """Return whether the token is in the vocabulary."""
        return token in self.ids

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of every token."""
        return {token: index for index, token in enumerate(self.tokens)}

    pad_id = _id_of("[PAD]")
    unk_id = _id_of("[UNK]")
    cls_id = _id_of("[CLS]")
    sep_id = _id_of("[SEP]")
    mask_id = _id_of("[MASK]")

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of the five special tokens."""
        return frozenset(self.ids[token] for token in SPECIAL_TOKENS)

    @cached_property
    def is_continuation(self) -> np.ndarray:
        """For every token, as (tokens,) booleans, whether it continues a word, that is, starts with `##`."""
        length = len(CONTINUATION_PREFIX)
        return np.array([t.startswith(CONTINUATION_PREFIX) and len(t) > length for t in self.tokens], dtype=bool)

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read a vocabulary from a vocab.txt, a tokenizer.json, or a folder that holds one of them.

        A vocab.txt has one token a line; blanks and carriage returns around a token are dropped, as Google's reader
        does. Raises DataError that names the file and the line.
        """
        path = Path(path)
        if path.is_dir():
            found = file_inside(path, "vocab.txt") or file_inside(path, "tokenizer.json")
            if found is None:
                raise DataError(f"{path}: the folder holds neither vocab.txt nor tokenizer.json")
            path = found
        text = _read_text(path)
        tokens = _tokens_of_json(text, path) if path.suffix == ".json" else _tokens_of_lines(text)
        return cls(tokens, source=str(path))

    def save(self, path: str | Path) -> None:
        """Write the tokens to a file, one a line, whole or not at all; a folder gets a vocab.txt.

        Raises DataError when a token holds a line break or outer blanks, which a vocab.txt cannot carry.
        """
        path = Path(path)
        if path.is_dir():
            path = path / "vocab.txt"
        for index, token in enumerate(self.tokens):
            if token != token.strip() or "\n" in token:
                raise DataError(f"{path}, line {index + 1}: token {token!r:.80} cannot be written as one line of text")
        write_text(path, "".join(f"{token}\n" for token in self.tokens))


def wordpiece(word: str, vocabulary: Vocabulary, *, max_word_length: int = MAX_WORD_LENGTH) -> list[str]:
    """Cut a word into pieces, greedy longest match first (paper 3.2; Google's rule).

    A word that is longer than `max_word_length` characters, or that cannot be matched to its end, is one [UNK].
    """
    pieces = wordpiece_spans(word, vocabulary, max_word_length=max_word_length)
    return ["[UNK]"] if pieces is None else [vocabulary.tokens[index] for index, _, _ in pieces]


def wordpiece_spans(
    word: str, vocabulary: Vocabulary, *, max_word_length: int = MAX_WORD_LENGTH
) -> list[tuple[int, int, int]] | None:
    """Cut a word into (token id, first character, end character) triples, or None where the word is unknown."""
    if len(word) > max_word_length:
        return None
    ids = vocabulary.ids
    pieces = []
    start = 0
    while start < len(word):
        prefix = CONTINUATION_PREFIX if start else ""
        for end in range(len(word), start, -1):
            index = ids.get(prefix + word[start:end])
            if index is not None:
                pieces.append((index, start, end))
                start = end
                break
        else:
            return None
    return pieces


def _read_text(path: Path) -> str:
    try:
        return read_bytes(path, limit=MAX_VOCABULARY_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; vocabularies are UTF-8 text") from None


def _tokens_of_lines(text: str) -> list[str]:
    # only "\n" ends a line: rarer separators such as U+2028 may be part of a token
    lines = text.split("\n")
    if not lines[-1].strip():
        lines.pop()
    return [line.strip() for line in lines]


def _check_wordpiece(values: Any, path: Path) -> None:
    """Raise DataError for a tokenizer.json whose tokens mean something else than those of a vocab.txt."""
    model = values.get("model") if isinstance(values, dict) else None
    if not isinstance(model, dict):
        return
    kind = model.get("type") or ("BPE" if "merges" in model else "WordPiece")
    if kind != "WordPiece":
        raise DataError(f"{path}: its model is {kind!r:.80}; BERT's is 'WordPiece'")
    for key, expected in (("continuing_subword_prefix", CONTINUATION_PREFIX), ("unk_token", "[UNK]")):
        if model.get(key, expected) != expected:
            raise DataError(f"{path}: {key} is {model[key]!r:.80}; BERT's is {expected!r}")


def _tokens_of_json(text: str, path: Path) -> list[str]:
    values = parse_json(text, str(path))
    _check_wordpiece(values, path)
    try:
        ids = dict(values["model"]["vocab"])
        for added in values.get("added_tokens") or []:
            ids[added["content"]] = added["id"]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not a WordPiece tokenizer.json: {type(error).__name__}: {error}") from None
    for token, index in ids.items():
        if not isinstance(token, str) or type(index) is not int:
            raise DataError(f"{path}: the token {token!r:.80} has the id {index!r:.80}; an id is a whole number")
    if sorted(ids.values()) != list(range(len(ids))):
        raise DataError(f"{path}: the ids of {len(ids)} tokens are not 0 to {len(ids) - 1} without gaps")
    return sorted(ids, key=ids.__getitem__)
