"""Training a vocabulary: the same texts give the same tokens, in any order and with any number of processes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tokenizers import pre_tokenizers

from maskloom.errors import ConfigError, DataError, amount
from maskloom.system.worker_processes import ONE_PROCESS, Work
from maskloom.text.byte_pair_tokenizer import BytePairTokenizer
from maskloom.text.pair_merging import Score, merge_pairs
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import (
    BART_TOKENS,
    CONTINUATION_PREFIX,
    END_OF_WORD,
    GPT_TOKENS,
    MAX_WORD_LENGTH,
    SPECIAL_TOKENS,
    SURROGATE,
    Vocabulary,
    sentinel,
)
from maskloom.text.word_counting import Progress, WordCounts, count_words
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

Model = Literal["wordpiece", "bpe", "byte-bpe", "words"]
_FIRST = {"bpe": GPT_TOKENS.tokens, "byte-bpe": ("<s>", "<pad>", "</s>", "<unk>")}


@dataclass(frozen=True)
class VocabularySettings:
    """The kind of vocabulary: BERT's WordPiece, GPT's byte pairs, BART's byte-level pairs, or the most frequent words.

    It has `size` tokens. A pair is merged if it occurs `min_frequency` times; `score` selects the next one, see
    `merge_pairs`. The alphabet is the `alphabet_limit` most frequent characters, or all 256 bytes, which preserve case.
    Memory holds about `max_distinct_words` words. The `sentinels` tokens for missing spans come last, in descending
    order, as in T5.
    """

    size: int
    lowercase: bool = True
    score: Score = "frequency"
    min_frequency: int = 2
    alphabet_limit: int = 1000
    max_distinct_words: int = 2_000_000
    model: Model = "wordpiece"
    sentinels: int = 0

    @property
    def specials(self) -> tuple[str, ...]:
        """The special tokens, which come first; in BART's layout the mask token follows the others and the merges."""
        return _FIRST.get(self.model, SPECIAL_TOKENS)

    @property
    def last(self) -> list[str]:
        """The tokens after all merges."""
        mask = ["<mask>"] if self.model == "byte-bpe" else []
        return [*mask, *(sentinel(number) for number in reversed(range(self.sentinels)))]

    def check(self) -> None:
        """Raise ConfigError for values that no vocabulary can have."""
        for name, value, known in (("model", self.model, get_args(Model)), ("score", self.score, get_args(Score))):
            if value not in known:
                raise ConfigError(f"{name} = {value!r}: it must be one of {', '.join(map(repr, known))}")
        if self.model in _FIRST and self.score != "frequency":
            raise ConfigError(f"score = {self.score!r}: byte pairs are merged by frequency; leave --score out")
        if self.model == "words" and (self.score != "frequency" or self.sentinels):
            raise ConfigError("model = 'words' has neither merges nor sentinels; leave --score and --sentinels out")
        if self.model == "byte-bpe" and self.lowercase:
            raise ConfigError("lowercase = True: byte-level pieces keep the case of the text, as in GPT-2 and BART")
        if self.model in ("byte-bpe", "words") and self.alphabet_limit != VocabularySettings.alphabet_limit:
            raise ConfigError(f"model = {self.model!r} does not limit its characters; leave --alphabet-limit out")
        lowest = {"size": len(self.specials) + len(self.last) + 1, "min_frequency": 1, "alphabet_limit": 1}
        lowest |= {"max_distinct_words": 1, "sentinels": 0}
        for name, least in lowest.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name} = {getattr(self, name)}: it must be at least {least}")


def train_vocabulary(
    texts: Iterable[str],
    settings: VocabularySettings,
    *,
    work: Work = ONE_PROCESS,
    progress: Progress | None = None,
    count: Callable[..., WordCounts] = count_words,
) -> tuple[Tokenizer, dict[str, Any]]:
    """Train a WordPiece (paper 3.2) or byte-pair (Sennrich et al. 2016) tokenizer; return it with a report.

    Special tokens come first, then the alphabet, then the merges in order, which `merge_pairs` explains. In WordPiece,
    characters are bare at the start of a word and have `##` inside; in byte pairs, they are bare inside and have `</w>`
    at the end of a word. In the byte-level alphabet (Radford et al. 2019, 2.2), a word includes the space before it.
    With "words", the most frequent words follow the special tokens. Words with characters outside the alphabet, or with
    over 200 characters (unlimited for bytes), are ignored.

    The report says why there are fewer than `settings.size` tokens, lists the hundred most frequent dropped characters
    and describes the text and its coverage: rates are fractions of the occurrences of kept words, and an unknown word
    counts as one piece. `count` is `count_words`, possibly with more arguments bound. Raises ConfigError for impossible
    settings, such as a size too small for the alphabet, and DataError for text without words.
    """
    settings.check()
    is_bytes = settings.model == "byte-bpe"
    limit, lowercase = settings.max_distinct_words, None if is_bytes else settings.lowercase
    counted = count(texts, lowercase=lowercase, max_distinct_words=limit, work=work, progress=progress)
    if not counted.counts:
        raise DataError(f"no words in {amount(counted.num_texts, 'text')}; a vocabulary needs at least one word")
    if settings.model == "words":
        whole = WordPieceTokenizer(_frequent_words(counted.counts, settings), lowercase=settings.lowercase)
        return whole, _report(whole, counted, len({*"".join(counted.counts)}), "", settings)
    suffix = {"wordpiece": None, "bpe": END_OF_WORD, "byte-bpe": ""}[settings.model]
    characters, dropped, alphabet = _choose_alphabet(counted.counts, settings.alphabet_limit, suffix)
    size, num_specials = settings.size, len(settings.specials) + len(settings.last)
    num_needed = num_specials + len(alphabet)
    if size < num_needed:
        told = f"{num_specials} special tokens and {len(alphabet)} symbols for {len(characters)} characters"
        raise ConfigError(f"size = {size}: {told} need {num_needed}; use --size {num_needed} or more")
    words = sorted(
        word for word in counted.counts if is_bytes or (len(word) <= MAX_WORD_LENGTH and characters.issuperset(word))
    )
    symbols, merges = merge_pairs(
        words,
        [counted.counts[word] for word in words],
        alphabet,
        num_symbols=size - num_specials,
        score=settings.score,
        min_frequency=settings.min_frequency,
        suffix=suffix,
        progress=(lambda done: progress("merge pairs", done + num_specials, size)) if progress else None,
    )
    tokens = [*settings.specials, *symbols, *settings.last]
    if suffix is None:
        tokenizer = WordPieceTokenizer(Vocabulary(tokens), lowercase=settings.lowercase)
    else:
        vocabulary = Vocabulary(tokens, GPT_TOKENS if suffix else BART_TOKENS, prefix="", suffix=suffix)
        tokenizer = BytePairTokenizer(vocabulary, tuple(merges), lowercase=settings.lowercase)
    return tokenizer, _report(tokenizer, counted, len(characters), dropped, settings)


def _frequent_words(counts: dict[str, int], settings: VocabularySettings) -> Vocabulary:
    """Return the special tokens and the most frequent words as a vocabulary; ties go to lower code points."""
    frequent = (
        word for word, count in counts.items() if count >= settings.min_frequency and len(word) <= MAX_WORD_LENGTH
    )
    words = sorted((word for word in frequent if not SURROGATE.search(word)), key=lambda word: (-counts[word], word))
    return Vocabulary([*settings.specials, *words[: settings.size - len(settings.specials)]])


def _choose_alphabet(counts: dict[str, int], limit: int, suffix: str | None) -> tuple[frozenset[str], str, list[str]]:
    """Return the most frequent characters, the dropped ones, and the former's symbols; ties go to lower code points."""
    if suffix == "":
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        return frozenset(alphabet), "", alphabet
    totals: Counter[str] = Counter()
    for word, count in counts.items():
        for char in word:
            totals[char] += count
    # half of a surrogate pair cannot be written as UTF-8
    usable = [char for char in totals if not SURROGATE.match(char)]
    ordered = sorted(usable, key=lambda char: (-totals[char], char))
    characters = frozenset(ordered[:limit])
    edges = sorted({word[-1 if suffix else 0] for word in counts} & characters)
    inside = sorted({char for word in counts for char in (word[:-1] if suffix else word[1:])} & characters)
    bare, marked = (inside, edges) if suffix else (edges, inside)
    symbols = [*bare, *(char + suffix if suffix else CONTINUATION_PREFIX + char for char in marked)]
    return characters, "".join(ordered[limit:]), symbols


def _report(
    tokenizer: Tokenizer, counted: WordCounts, alphabet_size: int, dropped: str, settings: VocabularySettings
) -> dict[str, Any]:
    vocabulary, why_smaller = tokenizer.vocabulary, None
    longest = MAX_WORD_LENGTH if tokenizer.cuts_at_white_space else math.inf
    if len(vocabulary) < settings.size:
        what = "word" if settings.model == "words" else "pair of symbols"
        left = "" if settings.model == "words" else " to merge"
        why_smaller = f"no {what} that occurs at least {amount(settings.min_frequency, 'time')} is left{left}"
        if settings.score == "likelihood":
            why_smaller += ", or none whose merge raises the likelihood"
    return {
        "requested_size": settings.size,
        "size": len(vocabulary),
        "why_smaller": why_smaller,
        "lowercase": settings.lowercase,
        "score": settings.score,
        "min_frequency": settings.min_frequency,
        **{name: number for name, number in vars(counted).items() if name != "counts"},
        "num_too_long_words": sum(count for word, count in counted.counts.items() if len(word) > longest),
        "alphabet_size": alphabet_size,
        "num_dropped_characters": len(dropped),
        "dropped_characters": dropped[:100],
        **forms_of(vocabulary),
        **measure_coverage(tokenizer, counted.counts),
    }


def forms_of(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return how many pieces start, continue or end a word, where the vocabulary marks this, and the longest token.

    Its length does not count `##` and `</w>`; on a tie it is the first one.
    """
    special = {*vocabulary.special_ids, *vocabulary.sentinel_ids.tolist()}
    pieces = [token for index, token in enumerate(vocabulary.tokens) if index not in special]
    num_continuations = int(vocabulary.is_continuation.sum())
    found: dict[str, Any] = {}
    if vocabulary.prefix:
        found = {"num_word_starts": len(pieces) - num_continuations, "num_continuations": num_continuations}
    if vocabulary.suffix:
        found["num_word_ends"] = sum(token.endswith(vocabulary.suffix) for token in vocabulary.tokens)
    return {**found, "longest_token": max(pieces, key=lambda piece: len(vocabulary.bare(piece)), default="")}


def measure_coverage(tokenizer: Tokenizer, counts: dict[str, int]) -> dict[str, float]:
    """Return `unknown_rate` etc. of counted words; an unknown word counts as one piece, a byte as one character."""
    unknown = None if tokenizer.vocabulary.special.unknown is None else tokenizer.vocabulary.unk_id
    num_words = num_unknown = num_single = num_pieces = num_characters = 0
    readable = ("" if SURROGATE.search(word) else word for word in counts)
    for (word, count), pieces in zip(counts.items(), tokenizer.word_ids(readable), strict=True):
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
