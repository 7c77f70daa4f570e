"""The marks (special tokens) around texts; only this module knows their positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tokenizers import processors

from maskloom.errors import ConfigError
from maskloom.text.vocabulary import Vocabulary

BERT_TEXTS = "classify A separator B separator"
"""[CLS] A [SEP] B [SEP] (paper figure 2), for tasks and for language modelling."""
GPT_TEXTS = "begin A separator B classify"
"""Start, A, delimiter, B, extract: a classifier reads the last token (Radford et al. 2018, section 3.3)."""
BART_TEXTS = "classify A separator separator B separator"
"""<s> A </s></s> B </s>, as RoBERTa and BART read texts (Liu et al. 2019, 4.2)."""
ONE_TEXT = "A"
RUNNING_TEXT = "A end"
"""Text for language modelling, with a mark at its end."""


@dataclass(frozen=True)
class Frames:
    """Packed sequences with marks filled in and texts still to be written.

    `token_ids` and `segment_ids` are (tokens,). `lengths`, `first` and `second` are (sequences,); the last two hold the
    positions of the texts in the arrays.
    """

    token_ids: np.ndarray
    segment_ids: np.ndarray
    lengths: np.ndarray
    first: np.ndarray
    second: np.ndarray


@dataclass(frozen=True)
class SequenceTemplate:
    """Mark ids before, between and after texts; with `has_segments`, the second text and its end marks are segment 1.

    With `classifies_last`, the last token represents the whole sequence, not the first.
    """

    begin: tuple[int, ...]
    middle: tuple[int, ...]
    end: tuple[int, ...]
    has_segments: bool = False
    classifies_last: bool = False

    @classmethod
    def of(cls, pattern: str, vocabulary: Vocabulary, *, has_segments: bool = False) -> SequenceTemplate:
        """Parse a pattern of roles around A and, if pairs are supported, B; a role without a token adds no mark."""
        before, _, rest = pattern.partition("A")
        middle, _, end = rest.partition("B") if "B" in rest else ("", "", rest)
        tokens = ([getattr(vocabulary.special, role) for role in part.split()] for part in (before, middle, end))
        ids = (tuple(vocabulary.ids[token] for token in part if token is not None) for part in tokens)
        return cls(*ids, has_segments=has_segments, classifies_last=end.endswith("classify"))

    def num_marks(self, num_texts: int) -> int:
        """Return the number of marks around one or two texts; raises ConfigError for two if no mark separates them."""
        if num_texts > 1 and not self.middle:
            raise ConfigError("this tokenizer has no token to separate two texts, so it cannot encode pairs")
        return len(self.begin) + len(self.end) + (len(self.middle) if num_texts > 1 else 0)

    def second_places(self, first_lengths: np.ndarray) -> np.ndarray:
        """Return where second texts begin in their sequences, given the first texts' lengths in tokens."""
        return len(self.begin) + first_lengths + len(self.middle)

    def whole_places(self, lengths: np.ndarray) -> np.ndarray:
        """Return the position of the token that represents each whole sequence, given the sequence lengths."""
        return lengths - 1 if self.classifies_last else np.zeros_like(lengths)

    def frames(self, first_lengths: np.ndarray, second_lengths: np.ndarray | None = None) -> Frames:
        """Return sequences of one or two texts each, given the texts' lengths in tokens, (sequences,)."""
        middle, end = (self.end, ()) if second_lengths is None else (self.middle, self.end)
        before = len(self.begin) + first_lengths + len(middle)
        behind = np.zeros_like(before) if second_lengths is None else second_lengths + len(end)
        lengths = before + behind
        ends = np.cumsum(lengths)
        starts = ends - lengths
        second = starts + before
        token_ids = np.zeros(int(lengths.sum()), dtype=np.int64)
        for places, marks in ((starts, self.begin), (second - len(middle), middle), (ends - len(end), end)):
            token_ids[places[:, None] + np.arange(len(marks))] = marks
        halves = np.tile([0, int(self.has_segments)], len(lengths))
        segment_ids = np.repeat(halves, np.stack([before, behind], axis=1).reshape(-1))
        return Frames(token_ids, segment_ids, lengths, starts + len(self.begin), second)

    def processor(self, vocabulary: Vocabulary) -> processors.TemplateProcessing:
        """Return the template as a post-processor of the `tokenizers` library."""
        parts = (self.begin, self.middle, self.end)
        begin, middle, end = ([vocabulary.tokens[index] for index in part] for part in parts)
        return processors.TemplateProcessing(
            single=[*begin, "$A", *end],
            pair=[*begin, "$A", *middle, *(f"{piece}:{int(self.has_segments)}" for piece in ("$B", *end))],
            special_tokens=[(token, vocabulary.ids[token]) for token in dict.fromkeys([*begin, *middle, *end])],
        )
