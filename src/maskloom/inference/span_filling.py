"""Blanks of texts, filled by a decoder that learned from corrupted spans (Raffel et al. 2019, 3.1.4)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from maskloom.data.batch import PackedBatch
from maskloom.errors import ConfigError, DataError
from maskloom.generation.search import Continuation, Generation
from maskloom.generation.sources import decode_sources
from maskloom.inference.results import FilledText
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import EncoderWithHeads
from maskloom.objectives.objective import encode_batch, model_device
from maskloom.objectives.sequence_to_sequence import decoder_start
from maskloom.system.devices import inference_in
from maskloom.tasks.seq2seq.task import target_marks
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import Vocabulary

_BLANK = re.compile(r"<(?:[XYZ]|extra_id_\d+)>")
_TEXTS_AT_ONCE = 16


def sentinel_ids(vocabulary: Vocabulary) -> list[int]:
    """Return the ids of <extra_id_0>, <extra_id_1> ..., which stand for spans; raises ConfigError where none is."""
    ids = vocabulary.ids
    names = list[str]()
    while (name := f"<extra_id_{len(names)}>") in ids:
        names.append(name)
    if not names:
        raise ConfigError("this vocabulary has no <extra_id_0>; one for corrupted spans has, and fills blanks")
    return [ids[name] for name in names]


@dataclass(frozen=True)
class SpanFiller:
    """Fills blanks with a model that has a decoder; ConfigError for another model or vocabulary.

    Every blank becomes the next sentinel, from the first on. In what the decoder says, a filling stands behind its
    sentinel and before the next one.
    """

    model: EncoderWithHeads
    tokenizer: Tokenizer
    max_length: int
    batch_size: int | None = None
    precision: str = "auto"

    def __post_init__(self) -> None:
        if "decoder" not in self.model.heads:
            raise ConfigError("this model has no decoder; a T5 has, and fills blanks")
        sentinel_ids(self.tokenizer.vocabulary)

    def source_ids(self, text: str, name: str) -> list[int]:
        """Return a text as token ids; raises DataError, with its name, for one without a blank, or with too much."""
        sentinels, marks = sentinel_ids(self.tokenizer.vocabulary), self.tokenizer.template
        *parts, last = _BLANK.split(text)
        if not 0 < len(parts) <= len(sentinels):
            raise DataError(
                f"{name}: {len(parts)} blanks in {text[:40]!r}; 1 to {len(sentinels)} are expected, written <X>, <Y>, "
                "<Z> or <extra_id_0>"
            )
        ids = list(marks.begin)
        for part, sentinel in zip(parts, sentinels[: len(parts)], strict=True):
            ids += [*self.tokenizer.token_ids(part.rstrip()), sentinel]
        ids += [*self.tokenizer.token_ids(last), *marks.end]
        if len(ids) > self.max_length:
            raise DataError(f"{name}: {len(ids):,} tokens, and the model reads {self.max_length:,}")
        return ids

    def fill(self, texts: Sequence[str], names: Sequence[str], settings: Generation, first: int) -> list[FilledText]:
        """Return every text filled, in order; `first` is the number of the first, which keys its draws."""
        sources = [self.source_ids(*named) for named in zip(texts, names, strict=True)]
        size, found = self.batch_size or _TEXTS_AT_ONCE, list[Continuation]()
        for start in range(0, len(sources), size):
            found += self._decoded(sources[start : start + size], settings, first + start)
        return [self._filled(text, target) for text, target in zip(texts, found, strict=True)]

    @torch.inference_mode()
    def _decoded(self, sources: Sequence[list[int]], settings: Generation, first: int) -> list[Continuation]:
        ids, lengths = np.concatenate(sources), np.array([len(source) for source in sources])
        begin, end = target_marks(self.tokenizer)
        begin = begin if (own := decoder_start(self.model)) is None else own
        device = model_device(self.model)
        with inference_in(self.precision, device):
            hidden = encode_batch(self.model, PackedBatch(ids, np.zeros_like(ids), lengths)).last_hidden_state
            layout, numbers = SequenceLayout.from_lengths(lengths, device), range(first, first + len(sources))
            return decode_sources(self.model, hidden, layout, settings, begin=begin, end=end, numbers=numbers)

    def _filled(self, text: str, target: Continuation) -> FilledText:
        number, place, spans = len(_BLANK.findall(text)), -1, dict[int, list[int]]()
        places = {token: place for place, token in enumerate(sentinel_ids(self.tokenizer.vocabulary))}
        for token in target.token_ids:
            if token in places:
                place = places[token] if places[token] not in spans else -1  # what is said again does not count
                spans.setdefault(places[token], [])
            elif place >= 0:
                spans[place].append(token)
        fillings = [self.tokenizer.decode(spans.get(place, [])).strip() for place in range(number)]
        rest: Iterator[str] = iter(fillings)
        return {
            "text": _BLANK.sub(lambda _: next(rest), text),
            "fillings": fillings,
            "log_probability": target.log_probability,
            "finish": "end" if target.is_ended else "length",
        }
