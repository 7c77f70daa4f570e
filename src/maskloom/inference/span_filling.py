"""Blanks in texts: what a decoder trained on corrupted spans reads and fills in (Raffel et al. 2019, 3.1.4).

Each blank is replaced by the next sentinel, starting with the first. In the decoder's output a filling follows its
sentinel and ends at the next one.
"""

from __future__ import annotations

import re

from maskloom.errors import ConfigError, DataError
from maskloom.generation.search import Continuation
from maskloom.inference.results import FilledText
from maskloom.models.assembled import EncoderWithHeads
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import sentinel

_BLANK = re.compile(r"<(?:[XYZ]|extra_id_\d+)>")
_CLOSING = tuple(".,;:!?%)]}…")  # what follows a word without a space


def check_fills(model: EncoderWithHeads, tokenizer: Tokenizer) -> None:
    """Raise ConfigError for a model without a decoder and for a vocabulary without sentinels."""
    if "decoder" not in model.heads:
        raise ConfigError("this model has no decoder; filling blanks needs a T5")
    if not len(tokenizer.vocabulary.sentinel_ids):
        raise ConfigError(f"this vocabulary has no {sentinel(0)}; filling blanks needs one with sentinels")


def source_ids(text: str, name: str, tokenizer: Tokenizer, max_length: int) -> list[int]:
    """Return a text as token ids; raises DataError, with its name, for no or too many blanks or too many tokens."""
    sentinels, marks = tokenizer.vocabulary.sentinel_ids.tolist(), tokenizer.template
    *parts, last = _BLANK.split(text)
    if not 0 < len(parts) <= len(sentinels):
        known = f"1 to {len(sentinels)}, such as <X> or <extra_id_0>"
        raise DataError(f"{name}: {len(parts)} blanks in {text[:40]!r}; expected {known}")
    ids = list(marks.begin)
    for part, mark in zip(parts, sentinels[: len(parts)], strict=True):
        ids += [*tokenizer.token_ids(part.rstrip()), mark]
    ids += [*tokenizer.token_ids(last), *marks.end]
    if len(ids) > max_length:
        raise DataError(f"{name}: {len(ids):,} tokens, but the model reads at most {max_length:,}")
    return ids


def filled(text: str, target: Continuation, tokenizer: Tokenizer) -> FilledText:
    """Return a text with its blanks filled from the decoder's output."""
    number, place, spans = len(_BLANK.findall(text)), -1, dict[int, list[int]]()
    places = {token: place for place, token in enumerate(tokenizer.vocabulary.sentinel_ids.tolist())}
    num_known = len(tokenizer.vocabulary)  # some published models have rows for more ids
    for token in target.token_ids:
        if token in places:
            place = places[token] if places[token] not in spans else -1  # repeated sentinels are ignored
            spans.setdefault(places[token], [])
        elif place >= 0 and token < num_known:
            spans[place].append(token)
    said = (tokenizer.decode(spans.get(place, [])) for place in range(number))
    fillings = [part.removeprefix(tokenizer.vocabulary.prefix).strip() for part in said]
    whole, *parts = _BLANK.split(text)
    for nth, (filling, part) in enumerate(zip(fillings, parts, strict=True), start=1):
        if not filling and whole[-1:] in ("", " "):  # without words in it, a blank leaves one of the spaces around it
            if part.startswith(" "):
                part = part[1:]
            elif part.startswith(_CLOSING) or (not part and nth == number):
                whole = whole.removesuffix(" ")
        whole += filling + part
    return {
        "text": whole,
        "fillings": fillings,
        "log_probability": target.log_probability,
        "finish": target.finish,
    }
