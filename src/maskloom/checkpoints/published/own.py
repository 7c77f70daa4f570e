"""Formats of architectures that only this program has: the published names are those of our parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from maskloom.checkpoints.published.format import OWN_HEADS, PublishedFormat, TensorName, mlm_rows, own_rows, plain_rows
from maskloom.models.architectures import architecture_of
from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.model_config import ModelConfig

_DENSE = ("classifier", "tagger", "choice", "span")


def own_format(
    name: str, heads: Mapping[str, tuple[TensorName, ...]], pretraining: Mapping[tuple[str, ...], str], **more: Any
) -> PublishedFormat:
    """Return the format of an architecture; `heads` has the rows of the heads that not all of these have.

    `pretraining` has the ends of the class names of its own heads. A decoder's rows only have to show that it exists.
    """
    heads = {**heads, **{head: plain_rows(f"heads.{head}.dense") for head in _DENSE}, **OWN_HEADS}
    ends = {
        ("decoder",): "ForSeq2Seq",
        ("tagger", "crf"): "CrfForTokenClassification",
        **pretraining,
        ("classifier",): "ForSequenceClassification",
        ("tagger",): "ForTokenClassification",
        ("choice",): "ForMultipleChoice",
        ("span",): "ForQuestionAnswering",
        (): "Model",
    }
    class_names = [(of_heads, f"Maskloom{name.title()}{end}") for of_heads, end in ends.items()]

    def rows(config: ModelConfig, wanted: Sequence[str]) -> list[TensorName]:
        has_decoder = "decoder" in heads and config.num_hidden_layers > 0
        names = _names(type(config), config.model_dump_json(), has_decoder=has_decoder)
        own = own_rows(*(name for name in names if "decoder" in wanted or not name.startswith("heads.")))
        return [*own, *(row for head in wanted if head != "decoder" for row in heads[head])]

    return PublishedFormat(name, "", rows, heads, lambda _: class_names, **more)


@lru_cache(maxsize=1)  # loading asks several times in a row, and planning a base model takes tens of milliseconds
def _names(kind: type[ModelConfig], values: str, *, has_decoder: bool) -> list[str]:
    """Return the names of the parameters of an encoder, whose configuration is given as JSON, and of its decoder."""
    config = kind.model_validate_json(values)
    with torch.device("meta"):
        encoder = architecture_of(config).build(config)
        model = EncoderWithHeads(encoder, {"decoder": encoder.new_decoder()} if has_decoder else {})
    return [name for name, _ in model.named_parameters()]


TRANSFORMER_FORMAT = own_format(
    "Transformer",
    {"decoder": plain_rows("heads.decoder.layers.0.attention.qkv"), "mlm": mlm_rows()},
    {("mlm",): "ForMaskedLM"},
)
RECURRENT_FORMATS = {
    name.lower(): own_format(
        name,
        {"decoder": plain_rows("heads.decoder.start"), "lm": ()},
        {("lm",): "LMHeadModel"},
        unseen=frozenset({"lm"}),
    )
    for name in ("RNN", "LSTM", "GRU")
}
