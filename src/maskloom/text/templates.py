"""The marks around texts: the only place that knows where they stand."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import processors

from maskloom.errors import ConfigError
from maskloom.text.vocabulary import Vocabulary

BERT_TEXTS = "classify A separator B separator"
"""[CLS] A [SEP] B [SEP] (paper figure 2), for tasks and for language modelling."""
GPT_TEXTS = "begin A separator B classify"
"""Start, A, delimiter, B, extract: a classifier reads the last token (Radford et al. 2018, section 3.3)."""
ONE_TEXT = "A"
RUNNING_TEXT = "A end"
"""Text as a language model reads it, with a mark where it ends."""


@dataclass(frozen=True)
class SequenceTemplate:
    """The ids of marks before, between and after texts; with `has_segments` the second text is segment 1 to its end."""

    begin: tuple[int, ...]
    middle: tuple[int, ...]
    end: tuple[int, ...]
    has_segments: bool = False

    @classmethod
    def of(cls, pattern: str, vocabulary: Vocabulary, *, has_segments: bool = False) -> SequenceTemplate:
        """Read a pattern of roles around A and, where pairs are taken, B; roles that are not there leave no mark."""
        before, _, rest = pattern.partition("A")
        middle, _, end = rest.partition("B") if "B" in rest else ("", "", rest)
        tokens = ([getattr(vocabulary.special, role) for role in part.split()] for part in (before, middle, end))
        ids = (tuple(vocabulary.ids[token] for token in part if token is not None) for part in tokens)
        return cls(*ids, has_segments=has_segments)

    def num_marks(self, num_texts: int) -> int:
        """Return how many marks stand around one text or two; raises ConfigError for two that nothing would divide."""
        if num_texts > 1 and not self.middle:
            raise ConfigError("this tokenizer has no token that stands between two texts, so it takes no pairs")
        return len(self.begin) + len(self.end) + (len(self.middle) if num_texts > 1 else 0)

    def processor(self, vocabulary: Vocabulary) -> processors.TemplateProcessing:
        """Return the template in the form of the `tokenizers` library."""
        begin, middle, end = (
            [vocabulary.tokens[index] for index in part] for part in (self.begin, self.middle, self.end)
        )
        second = int(self.has_segments)

        def pieces(*parts: tuple[list[str], int]) -> str:
            return " ".join(f"{token}:{segment}" for tokens, segment in parts for token in tokens)

        return processors.TemplateProcessing(
            single=pieces((begin, 0), (["$A"], 0), (end, 0)),
            pair=pieces((begin, 0), (["$A"], 0), (middle, 0), (["$B"], second), (end, second)),
            special_tokens=[(token, vocabulary.ids[token]) for token in dict.fromkeys([*begin, *middle, *end])],
        )
