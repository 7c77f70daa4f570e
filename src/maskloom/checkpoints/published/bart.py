"""BART's parameter names in the published files (Hugging Face layout)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from maskloom.checkpoints.published.format import (
    OWN_HEADS,
    PublishedFormat,
    TensorName,
    layer_rows,
    mlm_rows,
    plain_rows,
)
from maskloom.models.bart_config import BartConfig

_PREFIX = "model."
_WORDS = "model.shared.weight"
_TIED = ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
# Where our decoder is: in a head, or on top of the encoder.
_DECODERS = ("heads.decoder", "encoder.top")
# Our parts of a layer, and the published parts that each of them joins.
_LAYER = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.output": ("self_attn.out_proj",),
    "attention_layer_norm": ("self_attn_layer_norm",),
    "feed_forward.up": ("fc1",),
    "feed_forward.down": ("fc2",),
    "feed_forward_layer_norm": ("final_layer_norm",),
}
_CROSS = {
    "cross_attention.query": ("encoder_attn.q_proj",),
    "cross_attention.key_value": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross_attention.output": ("encoder_attn.out_proj",),
    "cross_attention_layer_norm": ("encoder_attn_layer_norm",),
}


def _stack(ours: str, theirs: str, number: int, parts: Mapping[str, Sequence[str]]) -> list[TensorName]:
    return layer_rows(f"{ours}.layers", f"model.{theirs}.layers", number, parts)


def _positions(ours: str, theirs: str) -> tuple[TensorName, ...]:
    table = TensorName(f"{ours}.positions.table.weight", f"model.{theirs}.embed_positions.weight")
    return (table, *plain_rows(f"{ours}.layer_norm", f"model.{theirs}.layernorm_embedding"))


_BIAS = (TensorName("heads.decoder.bias", "final_logits_bias"),)
_HEADS: dict[str, tuple[TensorName, ...]] = {
    "decoder": (*_positions("heads.decoder", "decoder"), *_BIAS),
    "mlm": mlm_rows("mlm"),
    "classifier": (
        *plain_rows("heads.classifier.inner", "classification_head.dense"),
        *plain_rows("heads.classifier.dense", "classification_head.out_proj"),
    ),
    "tagger": plain_rows("heads.tagger.dense", "tagger.dense"),
    "choice": plain_rows("heads.choice.dense", "choice.dense"),
    "span": plain_rows("heads.span.dense", "qa_outputs"),
    **OWN_HEADS,
}


def _rows(config: BartConfig, heads: Sequence[str]) -> list[TensorName]:
    number = config.num_hidden_layers
    rows = [TensorName("encoder.embeddings.word.weight", _WORDS), *_positions("encoder.embeddings", "encoder")]
    rows += _stack("encoder", "encoder", number, _LAYER)
    if config.num_source_layers:
        rows += [TensorName("encoder.source.embeddings.word.weight", "model.source.embed_tokens.weight")]
        rows += _positions("encoder.source.embeddings", "source")
        rows += _stack("encoder.source", "source", config.num_source_layers, _LAYER)
    for stack in _DECODERS:
        rows += _stack(stack, "decoder", config.num_decoder_layers or number, {**_LAYER, **_CROSS})
    return [*rows, *_positions("encoder.top", "decoder"), *(row for head in heads for row in _HEADS[head])]


_CLASSES = {
    ("decoder",): "BartForConditionalGeneration",
    ("tagger", "crf"): "MaskloomBartCrfForTokenClassification",
    ("mlm",): "MaskloomBartForMaskedLM",
    ("classifier",): "BartForSequenceClassification",
    ("tagger",): "MaskloomBartForTokenClassification",
    ("choice",): "MaskloomBartForMultipleChoice",
    ("span",): "BartForQuestionAnswering",
    (): "BartModel",
}
_WITH_SOURCES = {("decoder",): "MaskloomBartWithSourcesForSeq2Seq", (): "MaskloomBartWithSourcesModel"}


def _canonical(name: str, rows: Mapping[str, TensorName]) -> tuple[str, bool]:
    return name if name in rows or name in _TIED else f"{_PREFIX}{name}", False


BART_FORMAT = PublishedFormat(
    name="BART",
    prefix=_PREFIX,
    rows=_rows,
    heads=_HEADS,
    class_names=lambda config: [*(_WITH_SOURCES if config.source_vocab_size else _CLASSES).items()],
    tied_copies=lambda config: dict.fromkeys(_TIED, _WORDS),
    is_ignored=lambda name: name.endswith("coder.version"),
    canonical=_canonical,
    optional=_BIAS,
    unseen=frozenset({"decoder"}),
)

MARIAN_FORMAT = replace(
    BART_FORMAT,
    name="Marian",
    class_names=lambda config: [
        (("decoder",), "MarianMTModel"),
        *((heads, f"MaskloomMarian{name.partition('Bart')[2]}") for heads, name in _CLASSES.items() if len(heads)),
        ((), "MarianModel"),
    ],
    is_ignored=lambda name: name.endswith("coder.embed_positions.weight"),  # sinusoids
)
