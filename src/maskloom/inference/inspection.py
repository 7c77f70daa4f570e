"""Inspection of a model on one text: decoding steps, attention maps and position information."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from maskloom.errors import DataError
from maskloom.generation.search import Continuation, DecodingStep, Generation
from maskloom.generation.sources import with_forced
from maskloom.inference.predictor import Predictor
from maskloom.layers.relative_attention import RelativeBias
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.transformer import TransformerDecoder

ENCODER, DECODER, CROSS, SELF = "encoder", "decoder", "cross", "self"


@dataclass(frozen=True)
class AttentionMap:
    """Attention `probabilities`, (layers, heads, queries, keys), with the token ids of its `queries` and `keys`.

    In the "cross" map a query is labelled with the token that the decoder outputs, in the others with its input token.
    """

    probabilities: Tensor
    queries: list[int]
    keys: list[int]


@dataclass(frozen=True)
class Inspection:
    """A model's output for the prompt or source `ids`: the generated text `found`, its decoding `steps`, its attention.

    The keys of `maps` are "encoder", "decoder" and "cross" for a model with a decoder, else "self"; parts without
    attention have no map.
    """

    ids: list[int]
    found: Continuation
    settings: Generation
    steps: list[DecodingStep]
    maps: dict[str, AttentionMap]


@torch.inference_mode()
def inspect(predictor: Predictor, ids: Sequence[int], settings: Generation | None, number: int) -> Inspection:
    """Generate from one prompt or source returned by `prompt_ids`, and record the process; `number` keys its draws.

    The attention maps come from one forward pass over the whole generated text, in fp32. Raises as `generate` does.
    """
    settings, steps = predictor.generation(settings), list[DecodingStep]()
    (found,) = predictor.continuations([ids], settings, number, steps)
    is_writer, read = predictor.writer is not None, [*ids, *found.token_ids]
    maps = _maps_of_writer(predictor, [*ids], found) if is_writer else self_attention(predictor, read)
    return Inspection([*ids], found, settings, steps, maps)


@torch.inference_mode()
def self_attention(predictor: Predictor, ids: list[int], segments: Sequence[int] = ()) -> dict[str, AttentionMap]:
    """Return the self-attention of an encoder that reads a text, in fp32, under "self", or {} if it has none.

    Segments are 0 by default. Raises DataError for probabilities that are not finite.
    """
    with _recorded(_parts_of(predictor.model.encoder.layers, "attention")) as probabilities:
        _encoded(predictor, ids, segments)
    if not all(bool(layer.isfinite().all()) for layer in probabilities):
        raise DataError("the model's attention has values that are not finite; its weights are corrupt")
    return {SELF: AttentionMap(torch.stack(probabilities), ids, ids)} if probabilities else {}


def _maps_of_writer(predictor: Predictor, ids: list[int], found: Continuation) -> dict[str, AttentionMap]:
    model, (*begin, end) = predictor.model, predictor.target_marks
    head = cast(TransformerDecoder, model.heads["decoder"])
    *read, last = [*with_forced(begin, model.config), *found.token_ids, *([end] if found.is_ended else [])]
    with _recorded(_parts_of(model.encoder.layers, "attention")) as inside:
        hidden, source = _encoded(predictor, ids)
    layout = SequenceLayout.from_lengths([len(read)], predictor.device)
    with (
        _recorded(_parts_of(head.layers, "attention")) as written,
        _recorded([*_parts_of(head.layers, "cross_attention"), *_parts_of([head], "attention")]) as across,
    ):
        head(torch.tensor(read, device=predictor.device), layout, hidden, source)
    kinds = [(CROSS, across, [*read[1:], last], ids), (ENCODER, inside, ids, ids), (DECODER, written, read, read)]
    return {
        kind: AttentionMap(torch.stack(found)[:, :, : len(queries)], queries, keys)
        for kind, found, queries, keys in kinds
        if found
    }


def _parts_of(layers: Iterable[nn.Module], name: str) -> list[Any]:
    """Return the attributes of that name; recurrent layers lack them and are skipped."""
    return [part for layer in layers if (part := getattr(layer, name, None)) is not None]


def _encoded(predictor: Predictor, ids: list[int], segments: Sequence[int] = ()) -> tuple[Tensor, SequenceLayout]:
    layout = SequenceLayout.from_lengths([len(ids)], predictor.device)
    tokens, parts = torch.tensor([ids, segments or [0] * len(ids)], device=predictor.device)
    return predictor.model.encoder.encode_packed(tokens, parts, layout).last_hidden_state, layout


@contextmanager
def _recorded(attentions: Iterable[Any]) -> Iterator[list[Tensor]]:
    """Record the probabilities of each call of attention modules, (heads, queries, keys), in call order."""
    found: list[Tensor] = []
    handles = [
        attention.register_forward_pre_hook(lambda called, given: found.append(called.probabilities(*given).cpu()))
        for attention in attentions
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@torch.inference_mode()
def position_vectors(model: EncoderWithHeads, number: int) -> dict[str, Tensor]:
    """Return the vectors of the first positions, (positions, hidden), keyed by type and part of the model.

    Parts with equal vectors share an entry; {} if the model has no position vectors.
    """
    found: dict[str, Tensor] = {}
    ids = torch.arange(min(number, model.config.max_position_embeddings), device=model.encoder.word_embeddings.device)
    for name, part in _parts(model).items():
        owner = part if name == DECODER else cast(nn.Module, part.embeddings)
        table = getattr(owner, "positions", None) or getattr(owner, "position", None)
        if table is not None:
            what = "Sinusoids" if getattr(table, "table", table) is None else "Learned vectors"
            vectors = table(ids).cpu()
            same = [other for other, known in found.items() if torch.equal(known, vectors)]
            found[f"{same[0]} and {name}" if same else f"{what}, {name}"] = vectors
            found = {other: found[other] for other in found if other not in same}
    return found


@torch.inference_mode()
def position_biases(model: EncoderWithHeads, distance: int) -> dict[str, Tensor]:
    """Return the biases added to attention scores by distance, from -`distance` up, (heads, distances), by model part.

    {} if the model has none. Causal parts have no keys after the query, so their distances end at 0.
    """
    found: dict[str, Tensor] = {}
    for name, part in _parts(model).items():
        if isinstance(bias := getattr(part, "relative_bias", None), RelativeBias):
            keys = torch.arange(-distance, 1 if bias.causal else distance + 1, device=bias.weight.device)
            found[name] = bias.between(torch.zeros_like(keys[:1]).unsqueeze(0), keys.unsqueeze(0))[0, :, 0].cpu()
    return found


def _parts(model: EncoderWithHeads) -> dict[str, Any]:
    head = {DECODER: model.heads[DECODER]} if DECODER in model.heads else {}
    return {ENCODER if head else "model": model.encoder, **head}
