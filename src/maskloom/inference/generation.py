"""Texts continued by a left-to-right model: prompts in, texts out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from maskloom.errors import ConfigError, DataError
from maskloom.generation.search import Generation, continue_texts
from maskloom.inference.results import GeneratedText
from maskloom.tasks.inputs import checked_inputs, checked_text

if TYPE_CHECKING:
    from maskloom.inference.predictor import Predictor

_AT_ONCE = 16


def generate(
    predictor: Predictor, prompts: Iterable[str], settings: Generation | None = None, *, first: int = 0
) -> list[GeneratedText]:
    """Continue each prompt, in order.

    `first` is the number of the first one, which keys its draws. Raises ConfigError for a model that reads both ways,
    DataError for a prompt without a token and for one that fills the model's context.
    """
    texts = [checked_text(prompt, number) for number, prompt in enumerate(checked_inputs(prompts), start=first)]
    ids = prompt_ids(predictor, texts, [f"prompt {number}" for number in range(first, first + len(texts))])
    return generate_from_ids(predictor, ids, settings or Generation(), first)


def prompt_ids(predictor: Predictor, texts: Sequence[str], names: Sequence[str]) -> list[list[int]]:
    """Return the tokens of prompts; raises DataError, with its name, for one without any or with too many."""
    tokenizer, limit = predictor.tokenizer, predictor.model.config.max_position_embeddings
    if not predictor.model.config.is_causal:
        raise ConfigError("this model reads both ways and continues no text; a GPT or a left-to-right BERT does")
    found = [[*tokenizer.running_text.begin, *ids] for ids in tokenizer.token_ids_batch(texts)]
    for name, text, ids in zip(names, texts, found, strict=True):
        if len(ids) == len(tokenizer.running_text.begin):
            raise DataError(f"{name}: {text[:40]!r} has no token; a prompt has at least one")
        if len(ids) >= limit:
            raise DataError(f"{name}: {len(ids):,} tokens, and the model reads {limit:,} together with what it adds")
    return found


def generate_from_ids(
    predictor: Predictor, prompts: Sequence[Sequence[int]], settings: Generation, first: int
) -> list[GeneratedText]:
    """Continue prompts that `prompt_ids` returned."""
    tokenizer = predictor.tokenizer
    # BERT's marks stand around a text but are never predicted
    end = next(iter(tokenizer.running_text.end), None) if not tokenizer.has_segments else None
    never = sorted(tokenizer.vocabulary.special_ids - {end})
    size, results = predictor.batch_size or _AT_ONCE, []
    for start in range(0, len(prompts), size):
        some = prompts[start : start + size]
        numbers = range(first + start, first + start + len(some))
        for found in continue_texts(predictor.model, some, settings, end=end, never=never, numbers=numbers):
            text = tokenizer.decode(found.token_ids)
            finish: Literal["end", "length"] = "end" if found.is_ended else "length"
            results.append(
                GeneratedText(
                    text=text, num_tokens=len(found.token_ids), log_probability=found.log_probability, finish=finish
                )
            )
    return results
