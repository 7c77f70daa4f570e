"""Names of the weights of the original Transformer: nobody publishes it in this layout, so they are those of ours."""

from __future__ import annotations

from collections.abc import Sequence

from maskloom.checkpoints.published.format import OWN_HEADS, PublishedFormat, TensorName, own_classes
from maskloom.models.transformer_config import TransformerConfig

_ENDS = ("weight", "bias")


def _own(name: str, parts: Sequence[str], ends: Sequence[str] = _ENDS) -> tuple[TensorName, ...]:
    names = [f"{name}.{part}.{end}" for part in parts for end in ends]
    return tuple(TensorName(name, None, name) for name in names)


_BLOCKS = ("attention.qkv", "attention.output", "attention_layer_norm")
_LAST = ("feed_forward.up", "feed_forward.down", "feed_forward_layer_norm")
_CROSS = (
    *("cross_attention.query", "cross_attention.key_value", "cross_attention.output"),
    "cross_attention_layer_norm",
)
_DECODER = "heads.decoder"
_HEADS: dict[str, tuple[TensorName, ...]] = {
    "decoder": _own(
        f"{_DECODER}.layers.0", ("attention.qkv",)
    ),  # the first of its layers, which shows that it is there
    "mlm": (*_own("heads.mlm", ("dense", "layer_norm")), TensorName("heads.mlm.bias", None, "heads.mlm.bias")),
    **{name: _own(f"heads.{name}", ("dense",)) for name in ("nsp", "classifier", "tagger", "choice", "span")},
    **OWN_HEADS,
}


def _layers(stack: str, number: int, parts: Sequence[str]) -> list[TensorName]:
    return [row for layer in range(number) for row in _own(f"{stack}.layers.{layer}", parts)]


def _rows(config: TransformerConfig, heads: Sequence[str], *, has_pooler: bool = True) -> list[TensorName]:
    table = ("weight",)
    rows = [*_own("encoder.embeddings", ("word",), table)]
    rows += _layers("encoder", config.num_hidden_layers, (*_BLOCKS, *_LAST))
    learned, pre_norm = config.learned_positions, config.pre_norm
    rows += [*(_own("encoder.embeddings.positions", ("table",), table) if learned else ())]
    rows += [*(_own("encoder", ("final_norm",)) if pre_norm else ())]
    if "decoder" in heads:
        number = config.num_decoder_layers or config.num_hidden_layers
        rows += _layers(_DECODER, number, (*_BLOCKS, *_CROSS, *_LAST))
        rows += [*(_own(f"{_DECODER}.positions", ("table",), table) if learned else ())]
        rows += [*(_own(_DECODER, ("final_norm",)) if pre_norm else ())]
    return [*rows, *(row for head in heads if head != "decoder" for row in _HEADS[head])]


TRANSFORMER_FORMAT = PublishedFormat(
    name="Transformer",
    prefix="",
    rows=_rows,
    heads=_HEADS,
    class_names=lambda config: own_classes("Transformer", {("mlm", "nsp"): "ForPreTraining", ("mlm",): "ForMaskedLM"}),
    tied_copies=lambda config: {},
    is_ignored=lambda name: False,
    canonical=lambda name, rows: (name, False),
)
