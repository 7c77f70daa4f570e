"""T5's parameter names in the published files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from maskloom.checkpoints.published.format import (
    OWN_HEADS,
    OtherType,
    PublishedFormat,
    TensorName,
    mlm_rows,
    plain_rows,
)
from maskloom.models.t5_config import T5Config

_WORDS, _OUTPUT, _DECODER = "shared.weight", "lm_head.weight", "heads.decoder"
_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
# Version 1.0 was published with a table that is never used.
_UNREAD = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
_weights = partial(plain_rows, ends=("weight",))


def _stack(config: T5Config, ours: str, theirs: str, number: int) -> list[TensorName]:
    """Return the rows of the encoder, or of the decoder, whose layers also have cross-attention."""
    blocks: dict[str, tuple[str, dict[str, Sequence[str]]]] = {
        "attention": ("SelfAttention", {"qkv": "qkv", "output": "o"}),
        "cross_attention": ("EncDecAttention", {"query": "q", "key_value": "kv", "output": "o"}),
        "feed_forward": ("DenseReluDense", {"up": ("wi_0", "wi_1") if config.gated else ("wi",), "down": ("wo",)}),
    }
    if theirs == "encoder":
        del blocks["cross_attention"]
    bias = f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias"
    rows = [*_weights(f"{ours}.relative_bias", bias), *_weights(f"{ours}.final_norm", f"{theirs}.final_layer_norm")]
    for place in range(number):
        for at, (name, (module, matrices)) in enumerate(blocks.items()):
            layer, block = f"{ours}.layers.{place}.{name}", f"{theirs}.block.{place}.layer.{at}"
            rows += _weights(f"{layer}_layer_norm", f"{block}.layer_norm")
            for matrix, parts in matrices.items():
                rows += _weights(f"{layer}.{matrix}", *(f"{block}.{module}.{part}" for part in parts))
    return rows


_HEADS: dict[str, tuple[TensorName, ...]] = {
    # queries of the first layer, whose presence shows that there is a decoder
    "decoder": _weights(f"{_DECODER}.layers.0.cross_attention.query", "decoder.block.0.layer.1.EncDecAttention.q"),
    "mlm": mlm_rows(),
    "tagger": plain_rows("heads.tagger.dense", "classifier"),
    **{name: plain_rows(f"heads.{name}.dense") for name in ("classifier", "choice", "span")},
    **OWN_HEADS,
}


def _rows(config: T5Config, heads: Sequence[str]) -> list[TensorName]:
    rows = [TensorName("encoder.embeddings.word.weight", _WORDS)]
    rows += _stack(config, "encoder", "encoder", config.num_hidden_layers)
    if "decoder" in heads:
        rows += _stack(config, _DECODER, "decoder", config.num_decoder_layers or config.num_hidden_layers)
        rows += [] if config.tie_word_embeddings else [TensorName(f"{_DECODER}.output.weight", _OUTPUT)]
    return [*rows, *(row for head in heads if head != "decoder" for row in _HEADS[head])]


_CLASSES = {
    ("decoder",): "T5ForConditionalGeneration",
    ("tagger", "crf"): "MaskloomT5CrfForTokenClassification",
    ("tagger",): "T5ForTokenClassification",
    ("mlm",): "MaskloomT5ForMaskedLM",
    ("classifier",): "MaskloomT5ForSequenceClassification",
    ("choice",): "MaskloomT5ForMultipleChoice",
    ("span",): "MaskloomT5ForQuestionAnswering",
    (): "T5EncoderModel",
}


T5_FORMAT = PublishedFormat(
    name="T5",
    prefix="",
    rows=_rows,
    heads=_HEADS,
    class_names=lambda config: [*_CLASSES.items()],
    tied_copies=lambda config: dict.fromkeys([*_COPIES, *([_OUTPUT] if config.tie_word_embeddings else [])], _WORDS),
    is_ignored=lambda name: name == _UNREAD,
    canonical=lambda name, rows: (name.removeprefix("transformer."), False),
    defaults={_OUTPUT: _WORDS},
    other_type=lambda config, heads: OtherType("maskloom_t5") if {*heads} - {"decoder", "tagger"} else None,
)
