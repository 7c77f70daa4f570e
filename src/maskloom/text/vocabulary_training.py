"""Training a WordPiece vocabulary: the same text gives the same tokens, in any order and any number of processes."""

from __future__ import annotations

import dataclasses
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, get_args

from tokenizers import models

from maskloom.errors import ConfigError, DataError
from maskloom.text.pair_merging import Score, merge_pairs
from maskloom.text.vocabulary import CONTINUATION_PREFIX, MAX_WORD_LENGTH, SPECIAL_TOKENS, Vocabulary
from maskloom.text.word_counting import WordCounts, count_words

Progress = Callable[[str, int, int], None]


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
    num_word_starts: int
    num_continuations: int
    longest_token: str
    unknown_rate: float
    single_piece_rate: float
    pieces_per_word: float
    characters_per_piece: float

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class TrainedVocabulary:
    """A vocabulary and the report on its making."""

    vocabulary: Vocabulary
    report: VocabularyReport


def train_vocabulary(
    texts: Iterable[str],
    *,
    size: int,
    lowercase: bool = True,
    score: Score = "frequency",
    min_frequency: int = 2,
    alphabet_limit: int = 1000,
    max_distinct_words: int = 2_000_000,
    num_workers: int = 1,
    progress: Progress | None = None,
    count: Callable[..., WordCounts] = count_words,
) -> TrainedVocabulary:
    """Train a WordPiece vocabulary of `size` tokens (paper 3.2; scores: see `merge_pairs`).

    Special tokens have ids 0 to 4; then come the `alphabet_limit` most frequent characters, bare where one starts a
    word and with `##` where it stands inside; then merges in order. A word that holds another character, or over 200
    characters, takes no part, for encoding makes it [UNK]. Fewer tokens than `size` are returned where no pair is left
    that occurs `min_frequency` times, and the report says so. "pmi" merges rare pairs first, because their symbols are
    rare too: raise `min_frequency` until the report's pieces per word are few.
    At most about `max_distinct_words` words are held in memory; more go to disk while counting, and the rarest over
    the cap are dropped and reported. `count` is `count_words`, or that with more of its settings.
    Raises ConfigError for impossible settings, among them a size that does not hold the alphabet, and DataError for
    text without words.
    """
    counts = {"min_frequency": min_frequency, "alphabet_limit": alphabet_limit}
    _check_settings(score, size, max_distinct_words=max_distinct_words, num_workers=num_workers, **counts)
    counted = count(
        texts,
        lowercase=lowercase,
        max_distinct_words=max_distinct_words,
        num_workers=num_workers,
        progress=progress,
    )
    if not counted.counts:
        raise DataError(f"{counted.num_texts} texts hold no words; a vocabulary needs some")
    characters, dropped, alphabet = _choose_alphabet(counted.counts, alphabet_limit)
    num_needed = len(SPECIAL_TOKENS) + len(alphabet)
    if size < num_needed:
        raise ConfigError(
            f"size = {size}: {len(SPECIAL_TOKENS)} special tokens and {len(alphabet)} symbols for "
            f"{len(characters)} characters need {num_needed}; give --size {num_needed} or more"
        )
    is_known = characters.issuperset
    words = sorted(word for word in counted.counts if len(word) <= MAX_WORD_LENGTH and is_known(word))
    symbols = merge_pairs(
        words,
        [counted.counts[word] for word in words],
        alphabet,
        num_symbols=size - len(SPECIAL_TOKENS),
        score=score,
        min_frequency=min_frequency,
        progress=(lambda done: progress("merge pairs", done + len(SPECIAL_TOKENS), size)) if progress else None,
    )
    vocabulary = Vocabulary([*SPECIAL_TOKENS, *symbols])
    settings = {"requested_size": size, "lowercase": lowercase, "score": score, "min_frequency": min_frequency}
    return TrainedVocabulary(vocabulary, _report(vocabulary, counted, len(characters), dropped, settings))


def _check_settings(score: str, size: int, **counts: int) -> None:
    if score not in get_args(Score):
        raise ConfigError(f"score = {score!r}: it must be one of {', '.join(map(repr, get_args(Score)))}")
    lowest = {"size": len(SPECIAL_TOKENS) + 1}
    for name, value in {"size": size, **counts}.items():
        if value < lowest.get(name, 1):
            raise ConfigError(f"{name} = {value}: it must be at least {lowest.get(name, 1)}")


def _choose_alphabet(counts: dict[str, int], limit: int) -> tuple[frozenset[str], str, list[str]]:
    """Return the most frequent characters, the others, and the symbols of the first; ties go to lower code points."""
    totals: Counter[str] = Counter()
    for word, count in counts.items():
        for char in word:
            totals[char] += count
    # half of a surrogate pair cannot be written as UTF-8
    usable = [char for char in totals if unicodedata.category(char) != "Cs"]
    ordered = sorted(usable, key=lambda char: (-totals[char], char))
    characters = frozenset(ordered[:limit])
    starts = {word[0] for word in counts} & characters
    inside = {char for word in counts for char in word[1:]} & characters
    symbols = [*sorted(starts), *(CONTINUATION_PREFIX + char for char in sorted(inside))]
    return characters, "".join(ordered[limit:]), symbols


def _report(
    vocabulary: Vocabulary, counted: WordCounts, alphabet_size: int, dropped: str, settings: dict[str, Any]
) -> VocabularyReport:
    values: dict[str, Any] = {**settings, **measure_coverage(vocabulary, counted.counts)}
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
        num_word_starts=len(vocabulary) - len(SPECIAL_TOKENS) - int(vocabulary.is_continuation.sum()),
        num_continuations=int(vocabulary.is_continuation.sum()),
        longest_token=longest_token(vocabulary),
        **values,
    )


def longest_token(vocabulary: Vocabulary) -> str:
    """Return the token with the most characters, `##` and special tokens not counted; the first where several have."""
    tokens = [token for token in vocabulary.tokens if token not in SPECIAL_TOKENS]
    return max(tokens, key=lambda token: len(token.removeprefix(CONTINUATION_PREFIX)), default="")


def measure_coverage(vocabulary: Vocabulary, counts: dict[str, int]) -> dict[str, float]:
    """Return how the vocabulary cuts normalised words, weighted by how often they occur.

    `unknown_rate` and `single_piece_rate` are fractions of words; an unknown word counts as one piece.
    """
    model = models.WordPiece(dict(vocabulary.ids), unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_LENGTH)
    num_words = num_unknown = num_single = num_pieces = num_characters = 0
    for word, count in counts.items():
        pieces = model.tokenize(word) if word.isascii() or not _has_surrogates(word) else []
        is_unknown = not pieces or pieces[0].id == vocabulary.unk_id
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
