"""How raw text is cut into words that are tagged: as the training data's words were, learned from them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from maskloom.text.normalization import words_with_offsets

Span = tuple[int, int]

# Typographic quotes are cut as the plain ones that training data mostly has.
_PLAIN = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "“": '"', "”": '"', "„": '"'})
# A line that has one of these by itself was cut into words before.
_CLOSING = frozenset(".,)")
_LONGEST_CLITIC = 4
# Longer runs without a blank are no words; they are cut at every mark, as BERT's tokenizer does.
_LONGEST_WORD = 256
# A mark is cut out of the inside of words when it stands there this many times less often than by itself.
_RARELY_INSIDE = 100
_RUNS = (
    (re.compile("a+"), "a"),
    (re.compile("000+"), "00"),
    (re.compile("(?<!0)00?(?!0)"), "0"),
    (re.compile("AA+"), "AA"),
)
_INITIALS = re.compile(r"((?:A|a)\.){2,}")


@dataclass(frozen=True)
class WordSplitter:
    """Where the words of training data begin and end, in what takes little room beside a model.

    Text is cut at white space, and marks (punctuation and symbols) are cut off both ends of what stands between, unless
    it is one of the `kept` words or has one of the `kept_shapes`: "A." stands for one capital with a full stop. Those
    that keep a full stop at the end of a line have lists of their own. `marks` are words of marks alone, such as "...".
    Marks in `whole` are never cut off, as they are no words. `clitics` are cut off though they hold letters ('s, n't,
    l'). `inner` says what is cut within words too: "a/a" is a slash between two letters, "0" stands for a digit.
    `joined` says in the same way which marks stand within words more often than by themselves between two words.
    """

    kept: tuple[str, ...] = ()
    kept_shapes: tuple[str, ...] = ()
    kept_at_end: tuple[str, ...] = ()
    kept_shapes_at_end: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    clitics: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()

    @classmethod
    def from_settings(cls, values: Any) -> WordSplitter:
        """Return what `as_settings` returned; raises ValueError for anything else."""
        names = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or not names.issuperset(values):
            raise ValueError(f"words = {values!r:.80}: lists named {', '.join(sorted(names))} are expected")
        for name, items in values.items():
            if not isinstance(items, list | tuple) or not all(isinstance(item, str) and item for item in items):
                raise ValueError(f"words.{name} = {items!r:.80}: a list of words is expected")
        return cls(**{name: tuple(items) for name, items in values.items()})

    @classmethod
    def learned(cls, sentences: Iterable[Sequence[str]]) -> WordSplitter:
        """Learn from the words of training sentences how text is cut."""
        return _Evidence(sentences).splitter()

    def as_settings(self) -> dict[str, list[str]]:
        """Return plain values, as they are kept beside a model."""
        return {name: list(items) for name, items in asdict(self).items()}

    def spans(self, text: str) -> list[Span]:
        """Return the characters (start, end) of the words of a line; one that was cut before is cut at blanks alone."""
        chunks = list(_chunks(text))
        if self._is_cut([text[start:end] for start, end in chunks]):
            return blank_spans(text)
        found: list[Span] = []
        for start, end in chunks:
            cuts = self.cut(text[start:end], at_end=end == chunks[-1][1])
            found += [(start + first, start + last) for first, last in cuts]
        return found

    def are_cut(self, lines: Iterable[str]) -> bool:
        """Tell whether more lines were cut into words before than would be changed by cutting them now."""
        num_cut = num_raw = 0
        for line in lines:
            words = line.split()
            if self._is_cut(words):
                num_cut += 1
            elif any(len(self.cut(word)) > 1 for word in words):
                num_raw += 1
        return num_cut > num_raw

    def cut(self, chunk: str, *, at_end: bool = False) -> list[Span]:
        """Return the words of what stands between two blanks; a full stop `at_end` of a line mostly ends a sentence."""
        if chunk.isalnum():
            return [(0, len(chunk))]
        if len(chunk) > _LONGEST_WORD:
            return [(start, end) for _, start, end in words_with_offsets(chunk, lowercase=False)]
        return self._cut(chunk.translate(_PLAIN), 0, len(chunk), at_end=at_end)

    def count_parted(self, words: Sequence[str]) -> tuple[int, int]:
        """Return how many words that training mostly has whole are parted in a sentence, and how many are whole."""
        plain = [word.translate(_PLAIN) for word in words]
        parted = 0
        for left, mark, right in zip(plain, plain[1:], plain[2:], strict=False):
            if len(mark) == 1 and _is_mark(mark) and _has_letters(left):
                parted += self._keeps_mark(left + mark) or _around(left + mark + right, len(left)) in self.joined
        whole = sum(
            self._keeps_mark(word) or any(_around(word, place) in self.joined for place in range(1, len(word) - 1))
            for word in plain
            if not word.isalnum() and _has_letters(word)
        )
        return parted, whole

    def _keeps_mark(self, word: str) -> bool:
        return _is_mark(word[-1]) and self._is_kept(word, at_end=False)

    def _is_cut(self, words: Sequence[str]) -> bool:
        return any(word in self._closing for word in words)

    @cached_property
    def _closing(self) -> frozenset[str]:
        endings = {clitic for clitic in self.clitics if not clitic.endswith("'")}
        return frozenset(endings | (_CLOSING & self._marks))

    @cached_property
    def _marks(self) -> frozenset[str]:
        return frozenset(self.marks)

    @cached_property
    def _longest_mark(self) -> int:
        return max(map(len, self.marks), default=1)

    @cached_property
    def _kept(self) -> frozenset[str]:
        return frozenset((*self.kept, *self.kept_shapes))

    @cached_property
    def _kept_at_end(self) -> frozenset[str]:
        return frozenset((*self.kept_at_end, *self.kept_shapes_at_end))

    def _is_kept(self, text: str, *, at_end: bool) -> bool:
        kept = self._kept_at_end if at_end and text.endswith(".") else self._kept
        return text in self._marks or text in kept or _shape(text) in kept

    def _cut(self, chunk: str, first: int, last: int, *, at_end: bool) -> list[Span]:
        """Cut marks off both ends of characters `first` to `last`, then look within what is left."""
        before: list[Span] = []
        behind: list[Span] = []
        while first < last:
            rest = chunk[first:last]
            front, back = self._mark_at(rest), self._mark_at(rest, is_behind=True)
            if not front and not back:
                return [*before, *self._cut_within(chunk, first, last), *reversed(behind)]
            if self._is_kept(rest, at_end=at_end):
                return [*before, (first, last), *reversed(behind)]
            if front:
                before.append((first, first + front))
                first += front
            else:
                behind.append((last - back, last))
                last -= back
        return [*before, *reversed(behind)]

    def _mark_at(self, text: str, *, is_behind: bool = False) -> int:
        """Return how long the mark at an end of a text is: the longest that is a word of training, or one character."""
        char = text[-1] if is_behind else text[0]
        if not _is_mark(char) or char in self.whole or (char == "'" and _lower(text) in self.clitics):
            return 0
        ends = ((text[-size:] if is_behind else text[:size], size) for size in range(self._longest_mark, 1, -1))
        return next((size for end, size in ends if len(end) == size and end in self._marks), 1)

    def _cut_within(self, chunk: str, first: int, last: int) -> list[Span]:
        """Cut clitics off a word without marks at its ends, and marks out of it that training words do not hold."""
        word = chunk[first:last]
        if word in self._kept:
            return [(first, last)]
        lower = _lower(word)
        for clitic in self.clitics:
            size = len(clitic)
            if clitic.endswith("'") and lower.startswith(clitic) and size < len(word):
                return [(first, first + size), *self._cut(chunk, first + size, last, at_end=False)]
            if not clitic.endswith("'") and lower.endswith(clitic) and word[:-size][-1:].isalnum():
                return [*self._cut(chunk, first, last - size, at_end=False), (last - size, last)]
        for place in range(first + 1, last - 1):
            if _is_mark(chunk[place]) and _around(chunk, place) in self.inner:
                left = self._cut(chunk, first, place, at_end=False)
                return [*left, (place, place + 1), *self._cut(chunk, place + 1, last, at_end=False)]
        return [(first, last)]


def _lower(text: str) -> str:
    """Return a text in lower case of the same length: what becomes two characters, as the Turkish İ, stays."""
    lower = text.lower()
    return lower if len(lower) == len(text) else "".join(c if len(c.lower()) > 1 else c.lower() for c in text)


class _Evidence:
    """What training words say: how often each is there, and how often its letters stood beside a mark that was cut.

    `surplus` is the difference, of words anywhere (False) and of those that end a sentence (True). `between` counts
    marks that stand by themselves between two words.
    """

    def __init__(self, sentences: Iterable[Sequence[str]]) -> None:
        self.words: Counter[str] = Counter()
        self.between: Counter[str] = Counter()
        self.surplus: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
        for sentence in sentences:
            plain = [word.translate(_PLAIN) for word in sentence]
            self.words.update(plain)
            cut = [left + right for left, right in pairwise(plain) if _has_letters(left) != _has_letters(right)]
            self.surplus[False].update(plain)
            self.surplus[False].subtract(cut)
            self.surplus[True].update(plain[-1:])
            for left, mark, right in zip(plain, plain[1:], plain[2:], strict=False):
                if len(mark) == 1 and _is_mark(mark) and _has_letters(left) and _has_letters(right):
                    self.between[_around(left + mark + right, len(left))] += 1
            if len(plain) > 1 and cut and cut[-1] == plain[-2] + plain[-1]:
                self.surplus[True].subtract(cut[-1:])
        self.marks = {word: count for word, count in self.words.items() if not _has_letters(word)}
        self.mixed = {
            word: count for word, count in self.words.items() if word not in self.marks and any(map(_is_mark, word))
        }

    def splitter(self) -> WordSplitter:
        """Put the rules together; words that they would cut all the same are kept by name."""
        clitics, inside = self._clitics(), self._inside()
        attached = {char for word in self.mixed for char in (word[0], word[-1]) if _is_mark(char)}
        alone = {char for mark in self.marks for char in mark}
        shapes = {at_end: self._shapes(clitics, at_end=at_end) for at_end in (False, True)}
        rules = WordSplitter(
            kept_shapes=shapes[False],
            kept_shapes_at_end=tuple(shape for shape in shapes[True] if shape.endswith(".")),
            marks=tuple(sorted(self.marks)),
            whole=tuple(sorted(attached - alone)),
            clitics=clitics,
            inner=self._inner(inside),
            joined=tuple(sorted(kind for kind, count in inside.items() if count > self.between[kind])),
        )
        kept = [word for word in sorted(self.mixed) if self.surplus[False][word] > 0 and len(rules.cut(word)) > 1]
        at_end = [
            word
            for word in sorted(self.mixed)
            # a word that ends no sentence of training is taken for an abbreviation there too
            if word.endswith(".") and self.surplus[True][word] >= 0
            and len(rules.cut(word, at_end=True)) > 1
        ]  # fmt: skip
        return replace(rules, kept=tuple(kept), kept_at_end=tuple(at_end))

    def _shapes(self, clitics: tuple[str, ...], *, at_end: bool) -> tuple[str, ...]:
        """Return the shapes of words with a mark at an end that are words more often than they are cut."""
        shapes: Counter[str] = Counter()
        for word, surplus in self.surplus[at_end].items():
            if _has_letters(word) and (_is_mark(word[0]) or _is_mark(word[-1])) and _lower(word) not in clitics:
                shapes[_shape(word)] += surplus
        return tuple(sorted(shape for shape, surplus in shapes.items() if surplus > 0))

    def _clitics(self) -> tuple[str, ...]:
        """Return short words of letters and an apostrophe that stand by themselves more often than at longer words."""
        own: Counter[str] = Counter()
        for word, count in self.mixed.items():
            is_short = len(word) <= _LONGEST_CLITIC and word.count("'") == 1 and word.replace("'", "").isalpha()
            if is_short and ("'" in (word[0], word[-1]) or _lower(word) == "n't"):
                own[_lower(word)] += count
        kept: Counter[str] = Counter()
        for word, count in self.mixed.items():
            lower = _lower(word)
            for clitic in own:
                if len(lower) > len(clitic) and (lower.startswith if clitic.endswith("'") else lower.endswith)(clitic):
                    kept[clitic] += count
        return tuple(sorted((clitic for clitic in own if own[clitic] > kept[clitic]), key=lambda one: (-len(one), one)))

    def _inside(self) -> Counter[str]:
        inside: Counter[str] = Counter()
        for word, count in self.mixed.items():
            for place in range(1, len(word) - 1):
                if _is_mark(word[place]):
                    inside[_around(word, place)] += count
        return inside

    def _inner(self, inside: Counter[str]) -> tuple[str, ...]:
        return tuple(
            left + mark + right
            for mark, count in sorted(self.marks.items())
            if len(mark) == 1
            for left in "a0"
            for right in "a0"
            if inside[left + mark + right] * _RARELY_INSIDE < count
        )


def blank_spans(text: str) -> list[Span]:
    """Return the characters (start, end) of what stands between white space, as BERT's tokenizer knows white space."""
    return list(_chunks(text, parts_characters=False))


def _chunks(text: str, *, parts_characters: bool = True) -> Iterator[Span]:
    """Yield what stands between white space; `parts_characters` keeps characters of scripts without blanks apart."""
    first = last = -1
    for word, start, end in words_with_offsets(text, lowercase=False):
        parts = parts_characters and not _is_mark(word[0]) and last > 0 and not _is_mark(text[last - 1])
        if start != last or parts:
            if last > first:
                yield first, last
            first = start
        last = end
    if last > first:
        yield first, last


def _is_mark(char: str) -> bool:
    return unicodedata.category(char)[0] in "PS"


def _has_letters(text: str) -> bool:
    """Tell whether a text has a character that is no mark."""
    return not all(map(_is_mark, text))


def _around(word: str, place: int) -> str:
    """Return a mark with the kinds of characters beside it."""
    left, right = ("0" if word[at].isdigit() else "a" for at in (place - 1, place + 1))
    return left + word[place] + right


def _shape(word: str) -> str:
    """Return a word with kinds of characters for letters and digits, runs made short: "Simmons." is "Aa."."""
    kinds = "".join(
        "0" if char.isdigit() else "A" if char.isupper() else char if _is_mark(char) else "a" for char in word
    )
    for run, short in _RUNS:
        kinds = run.sub(short, kinds)
    return _INITIALS.sub(lambda found: found[1] * 2, kinds)


UNKNOWN_TRAINING = WordSplitter(
    kept=("Co.", "Corp.", "Dr.", "Gen.", "Inc.", "Jr.", "Ltd.", "Mr.", "Mrs.", "Ms.", "Sen.", "Sr.", "St.", "vs."),
    kept_at_end=("Co.", "Corp.", "Inc.", "Jr.", "Ltd.", "Sr."),
    kept_shapes_at_end=("A.A.", "a.a."),
    kept_shapes=("A.", "A.A.", "a.a."),
    marks=("--", "...", "''", "``", *"!\"#$%&'()*,-./:;<=>?@[\\]_`{|}"),
    clitics=("'ll", "'re", "'ve", "n't", "'d", "'m", "'s"),
)
"""For a model that does not say how its training data was cut: English as CoNLL-2003 has it."""
