"""Training a WordPiece or byte-pair vocabulary.

The same text gives the same tokens, in any order and any number of processes.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from maskloom.errors import ConfigError, DataError
from maskloom.text.byte_pair_tokenizer import BytePairTokenizer
from maskloom.text.pair_merging import Score, merge_pairs
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import (
    CONTINUATION_PREFIX,
    END_OF_WORD,
    GPT_TOKENS,
    MAX_WORD_LENGTH,
    SPECIAL_TOKENS,
    Vocabulary,
)
from maskloom.text.word_counting import WordCounts, count_words
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

Progress = Callable[[str, int, int], None]
Model = Literal["wordpiece", "bpe"]


@dataclass(frozen=True)
class VocabularyReport:
    """What a vocabulary was made from and how well it covers that text.

    Rates are fractions of the words that were kept, counted as often as they occur; an unknown word counts as one
    piece. The dropped characters are the most frequent hundred of those over the alphabet limit.
    """

    requested_size: int
    size: int
    why_smaller: str | None
    lowercase: bool
    score: str
    min_frequency: int
    num_texts: int
    num_words: int
    num_distinct_words: int
    num_pruned_words: int
    num_pruned_distinct_words: int
    num_spilled_runs: int
    num_too_long_words: int
    alphabet_size: int
    num_dropped_characters: int
    dropped_characters: str
    num_word_starts: int | None
    num_continuations: int | None
    num_word_ends: int | None
    longest_token: str
    unknown_rate: float
    single_piece_rate: float
    pieces_per_word: float
    characters_per_piece: float

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON, without what the other kind of vocabulary has."""
        values = dataclasses.asdict(self)
        return {name: value for name, value in values.items() if value is not None or not name.startswith("num_")}


@dataclass(frozen=True)
class TrainedVocabulary:
    """A tokenizer and the report on the making of its vocabulary."""

    tokenizer: Tokenizer
    report: VocabularyReport

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the tokenizer."""
        return self.tokenizer.vocabulary


def train_vocabulary(
    texts: Iterable[str],
    *,
    size: int,
    model: Model = "wordpiece",
    lowercase: bool = True,
    score: Score = "frequency",
    min_frequency: int = 2,
    alphabet_limit: int = 1000,
    max_distinct_words: int = 2_000_000,
    num_workers: int = 1,
    progress: Progress | None = None,
    count: Callable[..., WordCounts] = count_words,
) -> TrainedVocabulary:
    """Train a vocabulary of `size` tokens: WordPiece (paper 3.2), or GPT's byte pairs (Sennrich et al. 2016).

    Special tokens come first; then the `alphabet_limit` most frequent characters, for WordPiece bare where one starts a
    word and with `##` inside, for byte pairs bare inside and with `</w>` where one ends a word; then merges in order.
    Which pair is merged, and which of equals, see `merge_pairs`; byte pairs know "frequency" only. A word that holds
    another character, or over 200 characters, takes no part. Fewer tokens than `size` are returned where no pair is
    left that occurs `min_frequency` times, and the report says so. "pmi" merges rare pairs first, because their
    symbols are rare too: raise `min_frequency` until the report's pieces per word are few.
    At most about `max_distinct_words` words are held in memory; more go to disk while counting, and the rarest over
    the cap are dropped and reported. `count` is `count_words`, or that with more of its settings.
    Raises ConfigError for impossible settings, among them a size that does not hold the alphabet, and DataError for
    text without words.
    """
    specials, suffix = (GPT_TOKENS.tokens, END_OF_WORD) if model == "bpe" else (SPECIAL_TOKENS, "")
    limits = {"max_distinct_words": max_distinct_words, "num_workers": num_workers}
    counts = {"min_frequency": min_frequency, "alphabet_limit": alphabet_limit, **limits}
    _check_settings(model, score, size, len(specials), counts)
    counted = count(texts, lowercase=lowercase, **limits, progress=progress)
    if not counted.counts:
        raise DataError(f"{counted.num_texts} texts hold no words; a vocabulary needs some")
    characters, dropped, alphabet = _choose_alphabet(counted.counts, alphabet_limit, suffix)
    num_needed = len(specials) + len(alphabet)
    if size < num_needed:
        raise ConfigError(
            f"size = {size}: {len(specials)} special tokens and {len(alphabet)} symbols for "
            f"{len(characters)} characters need {num_needed}; give --size {num_needed} or more"
        )
    is_known = characters.issuperset
    words = sorted(word for word in counted.counts if len(word) <= MAX_WORD_LENGTH and is_known(word))
    symbols, merges = merge_pairs(
        words,
        [counted.counts[word] for word in words],
        alphabet,
        num_symbols=size - len(specials),
        score=score,
        min_frequency=min_frequency,
        suffix=suffix,
        progress=(lambda done: progress("merge pairs", done + len(specials), size)) if progress else None,
    )
    tokenizer = _tokenizer(symbols, merges, model, lowercase)
    settings = {"requested_size": size, "lowercase": lowercase, "score": score, "min_frequency": min_frequency}
    return TrainedVocabulary(tokenizer, _report(tokenizer, counted, len(characters), dropped, settings))


def _tokenizer(symbols: list[str], merges: list[tuple[str, str]], model: Model, lowercase: bool) -> Tokenizer:
    if model == "bpe":
        vocabulary = Vocabulary([*GPT_TOKENS.tokens, *symbols], GPT_TOKENS, prefix="", suffix=END_OF_WORD)
        return BytePairTokenizer(vocabulary, tuple(merges), lowercase=lowercase)
    return WordPieceTokenizer(Vocabulary([*SPECIAL_TOKENS, *symbols]), lowercase=lowercase)


def _check_settings(model: str, score: str, size: int, num_specials: int, counts: dict[str, int]) -> None:
    if model not in get_args(Model):
        raise ConfigError(f"model = {model!r}: it must be one of {', '.join(map(repr, get_args(Model)))}")
    if score not in get_args(Score):
        raise ConfigError(f"score = {score!r}: it must be one of {', '.join(map(repr, get_args(Score)))}")
    if model == "bpe" and score != "frequency":
        raise ConfigError(f"score = {score!r}: byte-pair encoding merges the most frequent pair; leave --score out")
    lowest = {"size": num_specials + 1}
    for name, value in {"size": size, **counts}.items():
        if value < lowest.get(name, 1):
            raise ConfigError(f"{name} = {value}: it must be at least {lowest.get(name, 1)}")


def _choose_alphabet(counts: dict[str, int], limit: int, suffix: str) -> tuple[frozenset[str], str, list[str]]:
    """Return the most frequent characters, the others, and the symbols of the first; ties go to lower code points."""
    totals: Counter[str] = Counter()
    for word, count in counts.items():
        for char in word:
            totals[char] += count
    # half of a surrogate pair cannot be written as UTF-8
    usable = [char for char in totals if unicodedata.category(char) != "Cs"]
    ordered = sorted(usable, key=lambda char: (-totals[char], char))
    characters = frozenset(ordered[:limit])
    if suffix:
        inside = {char for word in counts for char in word[:-1]} & characters
        ends = {word[-1] for word in counts} & characters
        return characters, "".join(ordered[limit:]), [*sorted(inside), *(char + suffix for char in sorted(ends))]
    starts = {word[0] for word in counts} & characters
    inside = {char for word in counts for char in word[1:]} & characters
    symbols = [*sorted(starts), *(CONTINUATION_PREFIX + char for char in sorted(inside))]
    return characters, "".join(ordered[limit:]), symbols


def _report(
    tokenizer: Tokenizer, counted: WordCounts, alphabet_size: int, dropped: str, settings: dict[str, Any]
) -> VocabularyReport:
    vocabulary = tokenizer.vocabulary
    values: dict[str, Any] = {**settings, **measure_coverage(tokenizer, counted.counts)}
    why_smaller = None
    if len(vocabulary) < settings["requested_size"]:
        why_smaller = f"no pair of symbols that occurs {settings['min_frequency']} times or more is left to merge"
        if settings["score"] == "likelihood":
            why_smaller += ", or none whose merge raises the likelihood"
    return VocabularyReport(
        size=len(vocabulary),
        why_smaller=why_smaller,
        num_texts=counted.num_texts,
        num_words=counted.num_words,
        num_distinct_words=counted.num_distinct_words,
        num_pruned_words=counted.num_pruned_words,
        num_pruned_distinct_words=counted.num_pruned_distinct,
        num_spilled_runs=counted.num_runs,
        num_too_long_words=sum(count for word, count in counted.counts.items() if len(word) > MAX_WORD_LENGTH),
        alphabet_size=alphabet_size,
        num_dropped_characters=len(dropped),
        dropped_characters=dropped[:100],
        **num_forms(vocabulary),
        longest_token=longest_token(vocabulary),
        **values,
    )


def num_forms(vocabulary: Vocabulary) -> dict[str, int | None]:
    """Return how many pieces start a word and how many continue one, or how many end one; None where it is not told."""
    num_pieces, num_continuations = len(vocabulary) - len(vocabulary.special_ids), int(vocabulary.is_continuation.sum())
    num_ends = sum(token.endswith(vocabulary.suffix) for token in vocabulary.tokens) if vocabulary.suffix else None
    return {
        "num_word_starts": num_pieces - num_continuations if vocabulary.prefix else None,
        "num_continuations": num_continuations if vocabulary.prefix else None,
        "num_word_ends": num_ends,
    }


def longest_token(vocabulary: Vocabulary) -> str:
    """Return the token with the most characters, marks and special tokens not counted; the first where several have."""
    tokens = [token for token in vocabulary.tokens if token not in vocabulary.special.tokens]
    return max(tokens, key=lambda token: len(vocabulary.bare(token)), default="")


def measure_coverage(tokenizer: Tokenizer, counts: dict[str, int]) -> dict[str, float]:
    """Return how a tokenizer cuts normalised words, weighted by how often they occur.

    `unknown_rate` and `single_piece_rate` are fractions of words; an unknown word counts as one piece.
    """
    special = tokenizer.vocabulary.special
    unknown = None if special.unknown is None else tokenizer.vocabulary.unk_id
    num_words = num_unknown = num_single = num_pieces = num_characters = 0
    for word, count in counts.items():
        pieces = tokenizer.word_ids(word) if word.isascii() or not _has_surrogates(word) else []
        is_unknown = not pieces or unknown in pieces
        num_words += count
        num_pieces += count * max(1, len(pieces))
        num_characters += count * len(word)
        num_unknown += count * is_unknown
        num_single += count * (len(pieces) == 1 and not is_unknown)
    total = max(1, num_words)
    return {
        "unknown_rate": num_unknown / total,
        "single_piece_rate": num_single / total,
        "pieces_per_word": num_pieces / total,
        "characters_per_piece": num_characters / max(1, num_pieces),
    }


def _has_surrogates(word: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in word)
