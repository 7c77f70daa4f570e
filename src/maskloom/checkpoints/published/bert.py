"""BERT's parameter names in the three published dialects, in one table (published BERT code; Hugging Face layout)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from maskloom.checkpoints.published.format import OWN_HEADS, OtherType, PublishedFormat, TensorName, lstm_names
from maskloom.models.bert_config import ROFORMER, BertConfig


def _dense(ours: str, huggingface: str, tensorflow: str, part: int | None = None) -> tuple[TensorName, ...]:
    return (
        TensorName(f"{ours}.weight", f"{huggingface}.weight", f"{tensorflow}/kernel", part, is_transposed=True),
        TensorName(f"{ours}.bias", f"{huggingface}.bias", f"{tensorflow}/bias", part),
    )


def _norm(ours: str, huggingface: str, tensorflow: str) -> tuple[TensorName, ...]:
    return (
        TensorName(f"{ours}.weight", f"{huggingface}.weight", f"{tensorflow}/gamma"),
        TensorName(f"{ours}.bias", f"{huggingface}.bias", f"{tensorflow}/beta"),
    )


_TABLES = {"word": "word_embeddings", "segment": "token_type_embeddings", "position": "position_embeddings"}
_EMBEDDINGS = (
    *(
        TensorName(f"encoder.embeddings.{ours}.weight", f"bert.embeddings.{name}.weight", f"bert/embeddings/{name}")
        for ours, name in _TABLES.items()
    ),
    *_norm("encoder.embeddings.layer_norm", "bert.embeddings.LayerNorm", "bert/embeddings/LayerNorm"),
)


def _layer(number: int) -> tuple[TensorName, ...]:
    ours, hf, tf = f"encoder.layers.{number}", f"bert.encoder.layer.{number}", f"bert/encoder/layer_{number}"
    return (
        *(
            row
            for part, name in enumerate(("query", "key", "value"))
            for row in _dense(
                f"{ours}.attention.qkv", f"{hf}.attention.self.{name}", f"{tf}/attention/self/{name}", part
            )
        ),
        *_dense(f"{ours}.attention.output", f"{hf}.attention.output.dense", f"{tf}/attention/output/dense"),
        *_norm(f"{ours}.attention_layer_norm", f"{hf}.attention.output.LayerNorm", f"{tf}/attention/output/LayerNorm"),
        *_dense(f"{ours}.feed_forward.up", f"{hf}.intermediate.dense", f"{tf}/intermediate/dense"),
        *_dense(f"{ours}.feed_forward.down", f"{hf}.output.dense", f"{tf}/output/dense"),
        *_norm(f"{ours}.feed_forward_layer_norm", f"{hf}.output.LayerNorm", f"{tf}/output/LayerNorm"),
    )


# What an embedding of another width adds, under RoFormer's name for it.
_PROJECTION = _dense("encoder.embeddings.projection", "bert.embeddings_project", "bert/embeddings_project")

# What `pre_norm` adds; no other program has a name for it.
_FINAL_NORM = _norm("encoder.final_norm", "bert.encoder.final_norm", "bert/encoder/final_norm")

_POOLER = _dense("encoder.pooler.dense", "bert.pooler.dense", "bert/pooler/dense")

_TOP = tuple(TensorName(f"encoder.top.{name}", f"bert.bi{name}", f"bert/bi{name}") for name in lstm_names(1))


def _output(head: str, huggingface: str, tensorflow: str) -> tuple[TensorName, ...]:
    """Return the rows of an output layer; TensorFlow's is (classes, hidden) like ours, so it is not transposed."""
    return (
        TensorName(f"heads.{head}.dense.weight", f"{huggingface}.weight", f"{tensorflow}output_weights"),
        TensorName(f"heads.{head}.dense.bias", f"{huggingface}.bias", f"{tensorflow}output_bias"),
    )


HEAD_NAMES: dict[str, tuple[TensorName, ...]] = {
    "mlm": (
        *_dense("heads.mlm.dense", "cls.predictions.transform.dense", "cls/predictions/transform/dense"),
        *_norm("heads.mlm.layer_norm", "cls.predictions.transform.LayerNorm", "cls/predictions/transform/LayerNorm"),
        TensorName("heads.mlm.bias", "cls.predictions.bias", "cls/predictions/output_bias"),
    ),
    "nsp": _output("nsp", "cls.seq_relationship", "cls/seq_relationship/"),
    "classifier": _output("classifier", "classifier", ""),
    "tagger": _output("tagger", "classifier", ""),
    "choice": _output("choice", "classifier", ""),
    "span": _output("span", "qa_outputs", "cls/squad/"),
    **OWN_HEADS,
}

# Heads that share a published name; the architecture in config.json says which one a file holds.
SAME_NAME = ("classifier", "tagger", "choice")

WORD_EMBEDDINGS = "bert.embeddings.word_embeddings.weight"
_TIED_COPIES = {
    "cls.predictions.decoder.weight": WORD_EMBEDDINGS,
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


def model_names(num_layers: int, heads: Sequence[str]) -> list[TensorName]:
    """Return the rows of an encoder with `num_layers` layers, a pooler, and heads."""
    layers = (row for layer in range(num_layers) for row in _layer(layer))
    return [*_EMBEDDINGS, *layers, *_POOLER, *(row for head in heads for row in HEAD_NAMES[head])]


def is_ignored(name: str) -> bool:
    """Return whether a tensor of this name holds nothing that a model needs."""
    return name in _IGNORED or name.endswith(_IGNORED_ENDS)


def canonical(name: str, rows: Mapping[str, TensorName]) -> tuple[str, bool]:
    """Return a name's Hugging Face form, and whether its matrix is transposed; unknown names are returned unchanged."""
    row = rows.get(name.removesuffix(":0"))
    if row is not None and row.huggingface != name:
        return row.huggingface, row.is_transposed
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
    rows = model_names(config.num_hidden_layers, heads)
    rows += [
        *(_PROJECTION if config.embedding_size else ()),
        *(_FINAL_NORM if config.pre_norm else ()),
        *(_TOP if config.bilstm else ()),
    ]
    return [row for row in rows if not (config.rotary and row.ours == "encoder.embeddings.position.weight")]


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
    heads=HEAD_NAMES,
    class_names=_class_names,
    tied_copies=lambda _: _TIED_COPIES,
    is_ignored=is_ignored,
    canonical=canonical,
    pooler=_POOLER,
    top=_TOP,
    same_name=SAME_NAME,
    token_heads=frozenset({"tagger", "span", "crf"}),
    other_type=_other_type,
)
