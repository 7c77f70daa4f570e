"""BERT's parameter names in the three published dialects (published BERT code; Hugging Face layout, old and new)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from maskloom.checkpoints.published.format import (
    OWN_HEADS,
    OtherType,
    PublishedFormat,
    TensorName,
    layer_rows,
    lstm_names,
    plain_rows,
)
from maskloom.models.bert_config import ROFORMER, BertConfig

_TABLES = {"word": "word_embeddings", "segment": "token_type_embeddings", "position": "position_embeddings"}
_EMBEDDINGS = (
    *(
        TensorName(f"encoder.embeddings.{ours}.weight", f"bert.embeddings.{theirs}.weight")
        for ours, theirs in _TABLES.items()
    ),
    *plain_rows("encoder.embeddings.layer_norm", "bert.embeddings.LayerNorm"),
)
# Our parts of a layer, and the published parts that each of them joins.
_LAYER = {
    "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.output": ("attention.output.dense",),
    "attention_layer_norm": ("attention.output.LayerNorm",),
    "feed_forward.up": ("intermediate.dense",),
    "feed_forward.down": ("output.dense",),
    "feed_forward_layer_norm": ("output.LayerNorm",),
}

# What an embedding of another width adds, under RoFormer's name for it.
_PROJECTION = plain_rows("encoder.embeddings.projection", "bert.embeddings_project")
# What `pre_norm` and `bilstm` add; no other program has names for them.
_FINAL_NORM = plain_rows("encoder.final_norm", "bert.encoder.final_norm")
_TOP = tuple(TensorName(f"encoder.top.{name}", f"bert.bi{name}") for name in lstm_names(1))
_POOLER = plain_rows("encoder.pooler.dense", "bert.pooler.dense")

_HEADS: dict[str, tuple[TensorName, ...]] = {
    "mlm": (
        *plain_rows("heads.mlm.dense", "cls.predictions.transform.dense"),
        *plain_rows("heads.mlm.layer_norm", "cls.predictions.transform.LayerNorm"),
        TensorName("heads.mlm.bias", "cls.predictions.bias"),
    ),
    "nsp": plain_rows("heads.nsp.dense", "cls.seq_relationship"),
    "classifier": plain_rows("heads.classifier.dense", "classifier"),
    "tagger": plain_rows("heads.tagger.dense", "classifier"),
    "choice": plain_rows("heads.choice.dense", "classifier"),
    "span": plain_rows("heads.span.dense", "qa_outputs"),
    **OWN_HEADS,
}

_WORDS = "bert.embeddings.word_embeddings.weight"
_TIED_COPIES = {
    "cls.predictions.decoder.weight": _WORDS,
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}

# Buffers and optimiser state that published files hold in addition to the weights.
_IGNORED_ENDS = (
    *("embeddings.position_ids", "embeddings.token_type_ids", "encoder.embed_positions.weight"),
    *("/adam_m", "/adam_v", "/AdamWeightDecayOptimizer", "/Adam", "/Adam_1"),
)
_IGNORED = (
    *("global_step", "good_steps", "bad_steps", "loss_scale", "beta1_power", "beta2_power"),
    "_CHECKPOINTABLE_OBJECT_GRAPH",
)


# TensorFlow's last words of names, and its names of output layers that differ otherwise.
_ENDS = {"kernel": "weight", "gamma": "weight", "beta": "bias", "output_weights": "weight", "output_bias": "bias"}
_OUTPUTS = {"": "classifier", "cls.squad": "qa_outputs"}


def _from_tensorflow(name: str) -> tuple[str, bool]:
    """Return the Hugging Face form of a name such as bert/encoder/layer_0/output/dense/kernel, as `_canonical` does."""
    module, _, end = re.sub(r"\blayer_", "layer.", name).replace("/", ".").rpartition(".")
    if end.endswith("_embeddings"):
        module, end = f"{module}.{end}", "weight"
    return f"{_OUTPUTS.get(module, module)}.{_ENDS.get(end, end)}", end == "kernel"


def _canonical(name: str, rows: Mapping[str, TensorName]) -> tuple[str, bool]:
    """Return a name's Hugging Face form, and whether its matrix is transposed; unknown names are returned unchanged."""
    if "/" in name or name.startswith("output_"):
        return _from_tensorflow(name.removesuffix(":0"))
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(old):
            name = name.removesuffix(old) + new
    if name.startswith(("embeddings.", "embeddings_project.", "encoder.", "pooler.")):
        name = f"bert.{name}"
    if name.startswith(f"{ROFORMER}."):
        name = f"bert.{name.removeprefix(ROFORMER + '.')}"
    stem, _, end = name.rpartition(".")
    return (f"{_OF_ROFORMER[stem]}.{end}" if stem in _OF_ROFORMER and _POSITIONS not in rows else name), False


_POSITIONS = "bert.embeddings.position_embeddings.weight"
# RoFormer's names, up to the last dot, of its classifiers' pooler and head, and BERT's names of them.
_ROFORMER_CLASSIFIERS = {
    "classifier": {"classifier.dense": "bert.pooler.dense", "classifier.out_proj": "classifier"},
    "choice": {"sequence_summary.summary": "bert.pooler.dense"},
}
_OF_ROFORMER = {theirs: ours for names in _ROFORMER_CLASSIFIERS.values() for theirs, ours in names.items()}

# transformers' class for a model with these heads; the first row whose heads are all present applies.
_CLASS_NAMES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("classifier",), "BertForSequenceClassification"),
    (("tagger", "crf"), "MaskloomBertCrfForTokenClassification"),
    (("tagger",), "BertForTokenClassification"),
    (("choice",), "BertForMultipleChoice"),
    (("span",), "BertForQuestionAnswering"),
    (("mlm", "nsp"), "BertForPreTraining"),
    (("mlm",), "BertForMaskedLM"),
    (("nsp",), "BertForNextSentencePrediction"),
    ((), "BertModel"),
)


def _rows(config: BertConfig, heads: Sequence[str]) -> list[TensorName]:
    rows = [row for row in _EMBEDDINGS if not (config.rotary and row.ours == "encoder.embeddings.position.weight")]
    rows += layer_rows("encoder.layers", "bert.encoder.layer", config.num_hidden_layers, _LAYER)
    rows += _PROJECTION if config.embedding_size else ()
    rows += _FINAL_NORM if config.pre_norm else ()
    rows += _TOP if config.bilstm else ()
    return [*rows, *_POOLER, *(row for head in heads for row in _HEADS[head])]


def _class_names(config: BertConfig) -> tuple[tuple[tuple[str, ...], str], ...]:
    if not config.is_roformer:
        return _CLASS_NAMES
    renamed = ((heads, name.replace("Bert", "RoFormer")) for heads, name in _CLASS_NAMES)
    return tuple((heads, name.replace("ForPreTraining", "ForMaskedLM")) for heads, name in renamed)


def _other_type(config: BertConfig, heads: Collection[str]) -> OtherType | None:
    """Return RoFormer's type for a RoFormer, whose classifiers contain our pooler, and None for any other model."""
    if not config.is_roformer or not {"mlm", "nsp", "tagger", "span", *_ROFORMER_CLASSIFIERS}.issuperset(heads):
        return None
    renamed = next((names for head, names in _ROFORMER_CLASSIFIERS.items() if head in heads), {})
    summary = {"summary_type": "first", "summary_use_proj": True, "summary_activation": config.hidden_act}
    return OtherType(ROFORMER, {ours: theirs for theirs, ours in renamed.items()}, summary if "choice" in heads else {})


BERT_FORMAT = PublishedFormat(
    name="BERT",
    prefix="bert.",
    rows=_rows,
    heads=_HEADS,
    class_names=_class_names,
    tied_copies=lambda _: _TIED_COPIES,
    is_ignored=lambda name: name in _IGNORED or name.endswith(_IGNORED_ENDS),
    canonical=_canonical,
    pooler=_POOLER,
    top=_TOP,
    same_name=("classifier", "tagger", "choice"),
    token_heads=frozenset({"tagger", "span", "crf"}),
    other_type=_other_type,
)
