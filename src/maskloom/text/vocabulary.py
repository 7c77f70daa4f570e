"""The vocabulary, an ordered list of tokens whose position is their id, and how it splits a word into pieces."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Sequence
from dataclasses import KW_ONLY, InitVar, astuple, dataclass
from functools import cached_property
from itertools import count, takewhile, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from maskloom.errors import ConfigError, DataError
from maskloom.system.files import write_text
from maskloom.system.foreign_files import file_inside, read_bytes, read_json_object

CONTINUATION_PREFIX = "##"
MAX_WORD_LENGTH = 200
"""In characters, by Google's rule; a longer word is unknown."""
SURROGATE = re.compile("[\ud800-\udfff]")
MAX_VOCABULARY_BYTES = 256 << 20
"""256 MiB: twenty times the size of the largest published vocabularies."""


@dataclass(frozen=True)
class SpecialTokens:
    """The special token for each role, or None if the vocabulary has none.

    `begin` opens a text and `end` closes it, `separator` separates two texts, and `classify` represents a text as a
    whole. One token may have several roles.
    """

    pad: str | None = None
    unknown: str | None = None
    classify: str | None = None
    separator: str | None = None
    mask: str | None = None
    begin: str | None = None
    end: str | None = None

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens that have a role, each once."""
        return tuple(dict.fromkeys(token for token in astuple(self) if token is not None))


BERT_TOKENS = SpecialTokens("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SPECIAL_TOKENS = BERT_TOKENS.tokens
GPT_TOKENS = SpecialTokens("<pad>", "<unk>", "<extract>", "<delimiter>", begin="<start>", end="<end>")
BART_TOKENS = SpecialTokens("<pad>", None, "<s>", "</s>", "<mask>", begin="<s>", end="</s>")
END_OF_WORD = "</w>"
SENTINEL = re.compile(r"<extra_id_\d+>")
# The space before a word, as GPT-2 and SentencePiece write it in a piece.
_SPACES = ("Ġ", "▁")
# The bytes that continue a character, 0x80 to 0xBF, as GPT-2 writes them.
_INSIDE = re.compile("[\u00a1-\u00ac\u00ae-\u00bf\u0122-\u0143]")


def sentinel(number: int) -> str:
    """Return the token for missing span `number`, counted from 0 (Raffel et al. 2020, 3.1.4)."""
    return f"<extra_id_{number}>"


def _id_of(role: str) -> cached_property[int]:
    def find(vocabulary: Vocabulary) -> int:
        token = getattr(vocabulary.special, role)
        if token is None:
            known = ", ".join(vocabulary.special.tokens) or "none"
            raise ConfigError(f"this vocabulary has no {role!r} token; its special tokens: {known}")
        return vocabulary.ids[token]

    found = cached_property(find)
    found.__doc__ = f"The id of the special token for `{role}`; raises ConfigError where there is none."
    return found


@dataclass(frozen=True)
class Vocabulary:
    """An immutable list of distinct tokens, with special tokens at any position (paper 3.2).

    `prefix` marks pieces that continue a word and `suffix` pieces that end one; BERT has "##" and no suffix. Raises
    DataError, with the location, for an empty or repeated token, an unpaired surrogate, and missing special tokens.
    """

    tokens: Sequence[str]
    special: SpecialTokens = BERT_TOKENS
    _: KW_ONLY
    prefix: str = CONTINUATION_PREFIX
    suffix: str = ""
    source: InitVar[str] = "vocabulary"
    """The file named in errors."""

    def __post_init__(self, source: str) -> None:
        object.__setattr__(self, "tokens", tuple(self.tokens))
        first_line: dict[str, int] = {}
        for line, token in enumerate(self.tokens, start=1):
            if not (token.strip() if self.prefix else token):
                raise DataError(f"{source}, line {line}: the token is empty; every line must hold one token")
            if token in first_line:
                raise DataError(f"{source}, line {line}: token {token!r:.80} is already on line {first_line[token]}")
            if not token.isascii() and SURROGATE.search(token):
                raise DataError(f"{source}, line {line}: token {token!r:.80} contains an unpaired surrogate")
            first_line[token] = line
        if missing := [token for token in self.special.tokens if token not in first_line]:
            raise DataError(f"{source}: no {', '.join(missing)} among {len(self.tokens)} tokens; all are needed")

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of every token."""
        return {token: index for index, token in enumerate(self.tokens)}

    pad_id = _id_of("pad")
    unk_id = _id_of("unknown")
    cls_id = _id_of("classify")
    sep_id = _id_of("separator")
    mask_id = _id_of("mask")
    begin_id = _id_of("begin")
    end_id = _id_of("end")

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of the special tokens."""
        return frozenset(self.ids[token] for token in self.special.tokens)

    @cached_property
    def sentinel_ids(self) -> np.ndarray:
        """The ids of <extra_id_0>, <extra_id_1> and so on, which stand for missing spans of a text."""
        numbers = takewhile(lambda number: sentinel(number) in self.ids, count())
        return np.array([self.ids[sentinel(number)] for number in numbers], dtype=np.int64)

    @cached_property
    def is_mark(self) -> np.ndarray:
        """Whether each token only marks where texts begin, end and are read, as (tokens,) booleans."""
        special, found = self.special, np.zeros(len(self), dtype=bool)
        marks = (special.begin, special.end, special.separator, special.classify)
        found[[self.ids[token] for token in marks if token is not None]] = True
        return found

    @cached_property
    def num_characters(self) -> np.ndarray:
        """Characters of each token, (tokens,), including the space next to a word; 0 for special tokens.

        Of the bytes of a character, the first one counts.
        """
        sizes, is_bytes = [], not (self.prefix or self.suffix or _SPACES[1] in self.ids)
        for token, is_first in zip(self.tokens, ~self.is_continuation, strict=True):
            has_blank = token.endswith(self.suffix) if self.suffix else self.prefix and is_first
            piece = token.removesuffix(self.suffix) if is_first else token[len(self.prefix) :]
            piece = _INSIDE.sub("", piece) if is_bytes else piece
            sizes.append(0 if token in self.special.tokens else len(piece) + bool(has_blank))
        return np.array(sizes, dtype=np.int64)

    @cached_property
    def is_continuation(self) -> np.ndarray:
        """Whether each token continues a word, that is, starts with `##`, as (tokens,) booleans."""
        length = len(self.prefix)
        return np.array([length > 0 and t.startswith(self.prefix) and len(t) > length for t in self.tokens], dtype=bool)

    def begins_words(self, token_ids: np.ndarray) -> np.ndarray:
        """Return which of consecutive tokens begin a word, (tokens,) booleans; a special token is a word of its own."""
        if self.suffix:
            return np.append(True, self.is_border[token_ids[:-1]]) | self._is_special[token_ids]
        return self.is_border[token_ids]

    @cached_property
    def is_border(self) -> np.ndarray:
        """Whether each token is the last of a word if a suffix marks that, or else the first, as (tokens,) booleans."""
        if self.prefix:
            return ~self.is_continuation
        is_marked = [t.endswith(self.suffix) if self.suffix else t.startswith(_SPACES) for t in self.tokens]
        return np.array(is_marked, dtype=bool) | self._is_special

    @cached_property
    def _is_special(self) -> np.ndarray:
        return np.array([token in self.special.tokens for token in self.tokens], dtype=bool)

    def bare(self, token: str) -> str:
        """Return the characters of a token without the mark of its position in a word."""
        is_spaced = not (self.prefix or self.suffix) and token.startswith(_SPACES)
        return token[is_spaced:].removeprefix(self.prefix).removesuffix(self.suffix) or token

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read a vocabulary from a vocab.txt, a tokenizer.json, or a folder that holds one of them.

        A vocab.txt has one token per line; surrounding blanks and carriage returns are stripped, as in Google's reader.
        Raises DataError with the file and line.
        """
        path = Path(path)
        if path.is_dir():
            found = file_inside(path, "vocab.txt") or file_inside(path, "tokenizer.json")
            if found is None:
                raise DataError(f"{path}: the folder contains neither vocab.txt nor tokenizer.json")
            path = found
        if path.suffix == ".json":
            return cls(_tokens_of_json(path), source=str(path))
        # only "\n" ends a line: rarer separators such as U+2028 may be part of a token
        tokens = [line.strip() for line in read_text(path).split("\n")]
        return cls(tokens if tokens[-1] else tokens[:-1], source=str(path))

    def save(self, path: Path) -> None:
        """Write the tokens to a file atomically, one per line.

        Raises DataError for a token with a line break or surrounding blanks, which a vocab.txt cannot represent.
        """
        for line, token in enumerate(self.tokens, start=1):
            if token != token.strip() or "\n" in token:
                raise DataError(f"{path}, line {line}: token {token!r:.80} cannot be written as one line of text")
        write_text(path, "".join(f"{token}\n" for token in self.tokens))


def first_difference(one: Vocabulary, other: Vocabulary) -> str:
    """Return the first id where two vocabularies differ, with both pieces, or where tokenizers of equal pieces may."""
    for index, pair in enumerate(zip_longest(one.tokens, other.tokens)):
        if pair[0] != pair[1]:
            own, others = ("no piece" if piece is None else f"{piece!r:.80}" for piece in pair)
            return f"from id {index} on, where it has {own} and the other {others}"
    return "in its merges or rules"


def vocabulary_sha256(vocabulary: Vocabulary, *more: str) -> str:
    """Return the SHA-256 of the tokens, one per line, and of anything else that determines how words are split."""
    return hashlib.sha256("\n".join([*vocabulary.tokens, *more]).encode()).hexdigest()


def longest_pieces(text: str, known: Container[str], *, is_inside: bool = False) -> list[tuple[str, int, int]] | None:
    """Split a word, longest known piece first (paper 3.2), into (piece, start, end); return None if impossible."""
    pieces: list[tuple[str, int, int]] = []
    start = 0
    while start < len(text):
        prefix = CONTINUATION_PREFIX if start or is_inside else ""
        for end in range(len(text), start, -1):
            if prefix + text[start:end] in known:
                pieces.append((prefix + text[start:end], start, end))
                start = end
                break
        else:
            return None
    return pieces


def read_text(path: Path) -> str:
    """Return the text of a vocabulary file; raises DataError that names it unless it is UTF-8."""
    try:
        return read_bytes(path, limit=MAX_VOCABULARY_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start + 1} is not UTF-8; vocabularies are UTF-8 text") from None


def _tokens_of_json(path: Path) -> list[str]:
    """Return the tokens of a tokenizer.json; raises DataError unless it is WordPiece with BERT's settings."""
    library = read_json_object(path, limit=MAX_VOCABULARY_BYTES)
    model = model_of(library)
    known = {"type": "WordPiece", "continuing_subword_prefix": CONTINUATION_PREFIX, "unk_token": "[UNK]"}
    for key, expected in known.items():
        if model.get(key, expected) != expected:
            raise DataError(f"{path}: the model's {key} is {model[key]!r:.80}; BERT's is {expected!r}")
    ids = model.get("vocab")
    if not isinstance(ids, dict):
        raise DataError(f"{path}: not a WordPiece tokenizer.json: it has no object model.vocab")
    take_added(ids, library, path)
    return tokens_by_id(ids, path)


def model_of(library: dict[str, Any]) -> dict[str, Any]:
    """Return the model in a tokenizer.json, or {} without one; old files omit its type, which its keys reveal."""
    model = library.get("model")
    if not isinstance(model, dict):
        return {}
    kind = "BPE" if "merges" in model else "Unigram" if isinstance(model.get("vocab"), list) else "WordPiece"
    return {"type": kind, **model}


def take_added(ids: dict[str, Any], library: dict[str, Any], path: Path) -> None:
    """Add to the ids of tokens the added tokens of a tokenizer.json, `path`, that they lack; raises DataError."""
    added = library.get("added_tokens") or []
    if not isinstance(added, list):
        raise DataError(f"{path}: added_tokens is not a list but {type(added).__name__}")
    for token in added:
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            raise DataError(f"{path}: the added token {token!r:.80} has no content")
        ids.setdefault(token["content"], token.get("id"))


def tokens_by_id(ids: dict[Any, Any], path: Path) -> list[str]:
    """Return tokens in order of id; raises DataError, with the file, unless the ids are 0, 1, 2, ..."""
    for token, index in ids.items():
        if not isinstance(token, str) or type(index) is not int:
            raise DataError(f"{path}: the token {token!r:.80} has the id {index!r:.80}; an id is a whole number")
    if sorted(ids.values()) != list(range(len(ids))):
        raise DataError(f"{path}: the ids of {len(ids)} tokens are not 0 to {len(ids) - 1} without gaps")
    return sorted(ids, key=ids.__getitem__)
