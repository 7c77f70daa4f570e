"""Schemes that encode entities as one tag per word: checking, detection and conversion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Literal

from maskloom.errors import ConfigError, DataError
from maskloom.metrics.entities import Entity, Scheme, is_tag
from maskloom.tasks.examples import ReadExamples
from maskloom.tasks.labels import read_label_names
from maskloom.tasks.settings import TaggingSettings
from maskloom.tasks.tables import ReadingOptions

# The form of a file's tags: entities in a scheme, or plain tags of single words, such as parts of speech.
PLAIN = "plain"
TagForm = Scheme | Literal["plain"]

# Models are trained on tags of this scheme, whatever the scheme of the files; conlleval's scores are the same.
TRAINED_SCHEME: Scheme = "iob2"

UNKNOWN_FORM = "unknown form of tag"
ENTITY_RULE = "neither O nor a prefix (B, I, E, S, L, U) with a hyphen and a type"

# The prefixes of the first, inner and last word of an entity, and of a single-word entity. Schemes are tried in this
# order: if two fit equally well, the first means the same as the other.
SCHEMES: dict[Scheme, str] = {"iob2": "BIIB", "iob1": "BIIB", "bioes": "BIES", "bilou": "BILU", "io": "IIII"}
_PREFIXES: dict[Scheme, str] = {scheme: "".join(dict.fromkeys(places)) for scheme, places in SCHEMES.items()}


class FormFinder:
    """Detects the form of a file's tags, plain or entity tags in a scheme, from all pairs of neighbouring tags."""

    def __init__(self, path: Path, *, allows_both: bool) -> None:
        self._path = path
        self._allows_both = allows_both
        self._pairs = Counter[tuple[str, str]]()
        self._first: dict[bool, tuple[int, str]] = {}

    def add(self, tags: Sequence[str], line_of: Callable[[int], int]) -> None:
        """Add the tags of one sentence; `line_of` returns the file line of a word."""
        forms = {is_tag(tag) for tag in set(tags)}
        if forms - self._first.keys():
            for place, tag in enumerate(tags):
                self._first.setdefault(is_tag(tag), (line_of(place), tag))
        if False not in forms:
            self._pairs.update(pairwise(["O", *tags, "O"]))

    def form(self) -> TagForm:
        """Return "plain" if no tag is an entity tag, else the scheme.

        This is the scheme with the fewest breaches, because the file may have mistakes. Tags whose only prefix is I-
        fit IO and IOB1, which then mean the same: IOB1 is returned. Without any entity it is IOB2. Raises DataError,
        with both lines, for tags of both forms, unless both are allowed: then only entity tags count.
        """
        if True not in self._first and False in self._first:
            return PLAIN
        if False in self._first and not self._allows_both:
            (line, plain), (entity_line, entity) = self._first[False], self._first[True]
            raise DataError(
                f"{self._path}: line {line}: {UNKNOWN_FORM}: {plain!r:.60} is {ENTITY_RULE}, while {entity!r:.60} in "
                f"line {entity_line} is an entity tag; use entity tags throughout, or any tags with "
                'tagging.scheme = "plain"'
            )
        return min(SCHEMES, key=self._breaches)

    def _breaches(self, scheme: Scheme) -> tuple[int, int]:
        """Return how many tags breach a scheme, and how many of these have a prefix that it lacks, for a tie."""
        bad = [(tag, n) for (before, tag), n in self._pairs.items() if _is_unusual(before, tag, scheme)]
        return sum(n for _, n in bad), sum(n for tag, n in bad if tag[0] not in f"O{_PREFIXES[scheme]}")


def breach_of(tags: Sequence[str], scheme: Scheme) -> tuple[int, str] | None:
    """Return the index of the first tag that a scheme does not allow, with the rule that it breaks, or None.

    For an entity left open at the end, this is the index of the last word. IOB1 allows B- where I- would do: it means
    the same, and the training file of CoNLL-2003 has two such tags.
    """
    for place, (previous, tag) in enumerate(pairwise(["O", *tags, "O"])):
        if rule := _breach(previous, tag, scheme):
            return (place, rule) if place < len(tags) else (place - 1, f"{rule} (the sentence ends here)")
    return None


def tags_of(entities: Iterable[Entity], num_words: int, scheme: Scheme) -> list[str]:
    """Convert entities, ordered and without overlaps, to tags; IO merges adjacent entities of one type."""
    tags = ["O"] * num_words
    previous = Entity("", 0, 0)
    for entity in entities:
        first, inside, last, single = SCHEMES[scheme]
        if scheme == "iob1":
            touches = entity.type == previous.type and entity.start == previous.end and previous.end > 0
            first = single = "B" if touches else "I"
        length = entity.end - entity.start
        prefixes = [single] if length == 1 else [first, *[inside] * (length - 2), last]
        tags[entity.start : entity.end] = [f"{prefix}-{entity.type}" for prefix in prefixes]
        previous = entity
    return tags


def tag_names(types: Iterable[str], scheme: Scheme) -> tuple[str, ...]:
    """Return every tag of a scheme for some types: O first, then type by type, so that no tag of dev is unknown."""
    return ("O", *(f"{prefix}-{kind}" for kind in sorted(set(types)) for prefix in _PREFIXES[scheme]))


def forbidden_pairs(tags: Sequence[str], scheme: Scheme) -> tuple[tuple[int, int], ...]:
    """Return index pairs of tags that may not follow each other; -1 is the start if first, the end if second."""
    ends = [(-1, "O"), *enumerate(tags)]
    pairs = ((first, second, before, tag) for first, before in ends for second, tag in ends)
    return tuple((first, second) for first, second, before, tag in pairs if _breach(before, tag, scheme))


@lru_cache(maxsize=65536)
def _breach(previous: str, tag: str, scheme: Scheme) -> str | None:
    """Return the rule that a tag breaks when it follows `previous` (O at both ends of a sentence), or None."""
    name, prefix = scheme.upper(), tag[0]
    if prefix != "O" and prefix not in _PREFIXES[scheme]:
        return f"{name} has the prefixes {', '.join(f'{p}-' for p in _PREFIXES[scheme])}, but no {prefix}-"
    goes_on = previous != "O" and previous[2:] == tag[2:]
    if scheme == "iob2" and prefix == "I" and not goes_on:
        return f"in IOB2 an entity begins with B-, so {tag:.60} cannot follow {previous:.60}"
    if scheme in ("bioes", "bilou"):
        last = "E" if scheme == "bioes" else "L"
        is_inner = prefix in ("I", last)
        if previous[0] in "BI" and not (is_inner and goes_on):
            return (
                f"in {name} the entity of {previous:.60} continues until {last}{previous[1:60]}, but {tag:.60} does "
                "not continue it"
            )
        if is_inner and previous[0] not in "BI":
            return f"in {name} an entity begins with B-, so {tag:.60} cannot follow {previous:.60}"
    return None


def _is_unusual(previous: str, tag: str, scheme: Scheme) -> bool:
    """Return whether a tag breaches the scheme, or is a B- in IOB1 where I- would do."""
    is_needless = scheme == "iob1" and tag[0] == "B" and (previous == "O" or previous[2:] != tag[2:])
    return is_needless or _breach(previous, tag, scheme) is not None


def is_plain(labels: Collection[str], settings: TaggingSettings) -> bool:
    """Return whether tags are plain: if the settings say so, or if any of them is not an entity tag."""
    return PLAIN in (settings.scheme, settings.trained_scheme) or not all(map(is_tag, labels))


def tags_of_task(train: ReadExamples, options: ReadingOptions, settings: TaggingSettings) -> tuple[str, ...]:
    """Return all tags for the entity types in the training data, or its plain tags, or the tags of a labels file."""
    tags = {tag for sentence in train.examples for tag in sentence.tags or ()}
    if is_plain(tags, settings):
        names = read_label_names(options.labels) if options.labels else tuple(sorted(tags))
        if not options.labels and all(map(str.isdecimal, names)):
            train.report.notes.append("tags are numbers, used as names; entities need names such as B-PER")
        if len(names) == 1:
            raise ConfigError(
                f"{options.labels or train.report.path}: the only tag is {names[0]!r:.80}; tagging needs at least two"
            )
        return names
    if options.labels is None:
        return tag_names({tag[2:] for tag in tags if tag != "O"}, TRAINED_SCHEME)
    names = read_label_names(options.labels)
    types = {name[2:] for name in names if is_tag(name) and name != "O"}
    if odd := sorted({*names} ^ {*tag_names(types, TRAINED_SCHEME)}):
        fault = "is not a tag of IOB2" if odd[0] in names else "is missing"
        raise ConfigError(f"{options.labels}: {odd[0]!r:.80} {fault}; tagging needs O, and B- and I- for every type")
    return names


def check_tags(train: ReadExamples, dev: ReadExamples) -> None:
    """Raise DataError if train or dev has no entity, or if all words of train have the same plain tag."""
    for data in (train, dev):
        tags = {tag for sentence in data.examples for tag in sentence.tags or ()}
        if tags == {"O"} or (len(tags) == 1 and data is train and not is_tag(*tags)):
            rule = "there is no entity to learn from or to score" if tags == {"O"} else "there is nothing to learn"
            raise DataError(
                f"{data.report.path}: every word of {len(data.examples)} sentences has the tag {min(tags):.60}; {rule}"
            )
