"""BART's parameter names in the published files (Hugging Face layout)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from maskloom.checkpoints.published.format import OWN_HEADS, PublishedFormat, TensorName, mlm_rows, plain_rows
from maskloom.models.bart_config import BartConfig

_PREFIX = "model."
_WORDS = "model.shared.weight"
_TIED = ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
# Where our decoder is: in a head, or on top of the encoder.
_DECODERS = ("heads.decoder", "encoder.top")


def _layer(stack: str, theirs: str, layer: int) -> tuple[TensorName, ...]:
    ours, theirs = f"{stack}.layers.{layer}", f"model.{theirs}.layers.{layer}"
    return (
        *(
            row
            for part, name in enumerate("qkv")
            for row in plain_rows(f"{ours}.attention.qkv", f"{theirs}.self_attn.{name}_proj", part)
        ),
        *plain_rows(f"{ours}.attention.output", f"{theirs}.self_attn.out_proj"),
        *plain_rows(f"{ours}.attention_layer_norm", f"{theirs}.self_attn_layer_norm"),
        *plain_rows(f"{ours}.feed_forward.up", f"{theirs}.fc1"),
        *plain_rows(f"{ours}.feed_forward.down", f"{theirs}.fc2"),
        *plain_rows(f"{ours}.feed_forward_layer_norm", f"{theirs}.final_layer_norm"),
    )


def _cross(stack: str, layer: int) -> tuple[TensorName, ...]:
    ours, theirs = f"{stack}.layers.{layer}.cross_attention", f"model.decoder.layers.{layer}.encoder_attn"
    return (
        *plain_rows(f"{ours}.query", f"{theirs}.q_proj"),
        *plain_rows(f"{ours}.key_value", f"{theirs}.k_proj", 0, 2),
        *plain_rows(f"{ours}.key_value", f"{theirs}.v_proj", 1, 2),
        *plain_rows(f"{ours}.output", f"{theirs}.out_proj"),
        *plain_rows(f"{ours}_layer_norm", f"{theirs}_layer_norm"),
    )


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
    rows += [row for layer in range(number) for row in _layer("encoder", "encoder", layer)]
    if config.num_source_layers:
        rows += [TensorName("encoder.source.embeddings.word.weight", "model.source.embed_tokens.weight")]
        rows += _positions("encoder.source.embeddings", "source")
        rows += [row for layer in range(config.num_source_layers) for row in _layer("encoder.source", "source", layer)]
    for stack in _DECODERS:
        for layer in range(config.num_decoder_layers or number):
            rows += [*_layer(stack, "decoder", layer), *_cross(stack, layer)]
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
