"""Weight names of the original Transformer; nobody publishes it in this layout, so the names are ours."""

from __future__ import annotations

from collections.abc import Sequence

from maskloom.checkpoints.published.format import (
    OWN_HEADS,
    PublishedFormat,
    TensorName,
    mlm_rows,
    own_classes,
    own_rows,
    plain_rows,
)
from maskloom.models.transformer_config import TransformerConfig

_BLOCKS = ("attention.qkv", "attention.output", "attention_layer_norm")
_LAST = ("feed_forward.up", "feed_forward.down", "feed_forward_layer_norm")
_CROSS = (
    *("cross_attention.query", "cross_attention.key_value", "cross_attention.output"),
    "cross_attention_layer_norm",
)
_DECODER = "heads.decoder"
_HEADS: dict[str, tuple[TensorName, ...]] = {
    "decoder": plain_rows(f"{_DECODER}.layers.0.attention.qkv"),  # shows that there is a decoder
    "mlm": mlm_rows(),
    **{name: plain_rows(f"heads.{name}.dense") for name in ("classifier", "tagger", "choice", "span")},
    **OWN_HEADS,
}


def _stack(config: TransformerConfig, stack: str, number: int, parts: Sequence[str], table: str) -> list[TensorName]:
    """Return the rows of the encoder or the decoder."""
    rows = [row for layer in range(number) for part in parts for row in plain_rows(f"{stack}.layers.{layer}.{part}")]
    rows += own_rows(f"{table}.weight") if config.learned_positions else ()
    return [*rows, *(plain_rows(f"{stack}.final_norm") if config.pre_norm else ())]


def _rows(config: TransformerConfig, heads: Sequence[str], *, has_pooler: bool = True) -> list[TensorName]:
    number, words = config.num_hidden_layers, own_rows("encoder.embeddings.word.weight")
    rows = [*words, *_stack(config, "encoder", number, (*_BLOCKS, *_LAST), "encoder.embeddings.positions.table")]
    rows += own_rows("encoder.embeddings.source.weight") if config.source_vocab_size else ()
    if "decoder" in heads:
        parts, table = (*_BLOCKS, *_CROSS, *_LAST), f"{_DECODER}.positions.table"
        rows += _stack(config, _DECODER, config.num_decoder_layers or number, parts, table)
    return [*rows, *(row for head in heads if head != "decoder" for row in _HEADS[head])]


TRANSFORMER_FORMAT = PublishedFormat(
    name="Transformer",
    prefix="",
    rows=_rows,
    heads=_HEADS,
    class_names=lambda config: own_classes("Transformer", {("mlm",): "ForMaskedLM"}),
)
