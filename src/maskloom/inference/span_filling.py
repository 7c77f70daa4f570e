"""Filling blanks in texts with a decoder trained on corrupted spans (Raffel et al. 2019, 3.1.4)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from maskloom.data.batch import SourceTargetBatch
from maskloom.errors import ConfigError, DataError
from maskloom.generation.search import Continuation, Generation, made_by_length
from maskloom.inference.results import FilledText
from maskloom.models.assembled import EncoderWithHeads
from maskloom.objectives.objective import model_device
from maskloom.objectives.sequence_to_sequence import SequenceToSequence
from maskloom.system.devices import inference_in
from maskloom.tasks.seq2seq.task import target_marks
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import sentinel

_BLANK = re.compile(r"<(?:[XYZ]|extra_id_\d+)>")
PROMPTS_AT_ONCE = 16


@dataclass(frozen=True)
class SpanFiller:
    """Fills blanks with a model that has a decoder; raises ConfigError for any other model or vocabulary.

    Each blank is replaced by the next sentinel, starting with the first. In the decoder's output a filling follows its
    sentinel and ends at the next one.
    """

    model: EncoderWithHeads
    tokenizer: Tokenizer
    max_length: int
    batch_size: int | None = None
    precision: str = "auto"

    def __post_init__(self) -> None:
        if "decoder" not in self.model.heads:
            raise ConfigError("this model has no decoder; filling blanks needs a T5")
        if not len(self.tokenizer.vocabulary.sentinel_ids):
            raise ConfigError(f"this vocabulary has no {sentinel(0)}; filling blanks needs one with sentinels")

    def source_ids(self, text: str, name: str) -> list[int]:
        """Return a text as token ids; raises DataError, with its name, for no or too many blanks or too many tokens."""
        sentinels, marks = self.tokenizer.vocabulary.sentinel_ids.tolist(), self.tokenizer.template
        *parts, last = _BLANK.split(text)
        if not 0 < len(parts) <= len(sentinels):
            raise DataError(
                f"{name}: {len(parts)} blanks in {text[:40]!r}; expected 1 to {len(sentinels)}, written <X>, <Y>, "
                "<Z> or <extra_id_0>"
            )
        ids = list(marks.begin)
        for part, mark in zip(parts, sentinels[: len(parts)], strict=True):
            ids += [*self.tokenizer.token_ids(part.rstrip()), mark]
        ids += [*self.tokenizer.token_ids(last), *marks.end]
        if len(ids) > self.max_length:
            raise DataError(f"{name}: {len(ids):,} tokens, but the model reads at most {self.max_length:,}")
        return ids

    def fill(self, texts: Sequence[str], names: Sequence[str], settings: Generation, first: int) -> list[FilledText]:
        """Return the texts with blanks filled, in order; `first` is the first text's number, which keys its draws."""
        sources = [self.source_ids(*named) for named in zip(texts, names, strict=True)]
        marks, _ = target_marks(self.tokenizer, self.model.config.own_start)

        def make(some: list[Sequence[int]], numbers: list[int]) -> list[Continuation]:
            batch = SourceTargetBatch.of_sources(some, marks, numbers)
            with inference_in(self.precision, model_device(self.model)):
                return SequenceToSequence(generation=settings).found(self.model, batch)

        found = made_by_length(sources, first, self.batch_size or PROMPTS_AT_ONCE, make)
        return [self._filled(text, target) for text, target in zip(texts, found, strict=True)]

    def _filled(self, text: str, target: Continuation) -> FilledText:
        number, place, spans = len(_BLANK.findall(text)), -1, dict[int, list[int]]()
        places = {token: place for place, token in enumerate(self.tokenizer.vocabulary.sentinel_ids.tolist())}
        num_known = len(self.tokenizer.vocabulary)  # some published models have rows for more ids
        for token in target.token_ids:
            if token in places:
                place = places[token] if places[token] not in spans else -1  # repeated sentinels are ignored
                spans.setdefault(places[token], [])
            elif place >= 0 and token < num_known:
                spans[place].append(token)
        said = (self.tokenizer.decode(spans.get(place, [])) for place in range(number))
        fillings = [part.removeprefix(self.tokenizer.vocabulary.prefix).strip() for part in said]
        rest = iter(fillings)
        return {
            "text": _BLANK.sub(lambda _: next(rest), text),
            "fillings": fillings,
            "log_probability": target.log_probability,
            "finish": target.finish,
        }
