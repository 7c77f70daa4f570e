"""GPT's parameter names in the published files, in openai-gpt's and GPT-2's layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from maskloom.checkpoints.published.format import OWN_HEADS, PublishedFormat, TensorName, layer_rows, plain_rows
from maskloom.models.gpt_config import GptConfig

# The second name of the word embeddings, as the output layer.
_COPY = "lm_head.weight"
_LAYER = {
    "attention.qkv": ("attn.c_attn",),
    "attention.output": ("attn.c_proj",),
    "attention_layer_norm": ("ln_1",),
    "feed_forward.up": ("mlp.c_fc",),
    "feed_forward.down": ("mlp.c_proj",),
    "feed_forward_layer_norm": ("ln_2",),
}
# The ends of the names of dense layers' matrices, which are published transposed.
_TRANSPOSED = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")


def _tables(config: GptConfig) -> tuple[str, str]:
    return ("wte", "wpe") if config.pre_norm else ("tokens_embed", "positions_embed")


_HEADS: dict[str, tuple[TensorName, ...]] = {
    "lm": (),
    "classifier": (TensorName("heads.classifier.dense.weight", "score.weight"),),
    "tagger": plain_rows("heads.tagger.dense", "classifier"),
    "choice": plain_rows("heads.choice.dense", "multiple_choice_head.summary"),
    "span": plain_rows("heads.span.dense", "qa_outputs"),
    **OWN_HEADS,
}


def _rows(config: GptConfig, heads: Sequence[str]) -> list[TensorName]:
    tables = [
        TensorName(f"encoder.embeddings.{ours}.weight", f"transformer.{theirs}.weight")
        for ours, theirs in zip(("word", "position"), _tables(config), strict=True)
    ]
    layers = layer_rows("encoder.layers", "transformer.h", config.num_hidden_layers, _LAYER)
    norm = plain_rows("encoder.final_norm", "transformer.ln_f") if config.pre_norm else ()
    return [*tables, *layers, *norm, *(row for head in heads for row in _HEADS[head])]


def _class_names(config: GptConfig) -> Sequence[tuple[tuple[str, ...], str]]:
    family = "GPT2" if config.pre_norm else "OpenAIGPT"
    own = "" if config.pre_norm else "Maskloom"  # prefix of classes that transformers has only for GPT-2
    return (
        (("classifier",), f"{family}ForSequenceClassification"),
        (("tagger", "crf"), f"Maskloom{family}CrfForTokenClassification"),
        (("tagger",), f"{own}{family}ForTokenClassification"),
        (("choice",), f"{family}DoubleHeadsModel"),
        (("span",), f"{own}{family}ForQuestionAnswering"),
        (("lm",), f"{family}LMHeadModel"),
        ((), f"{family}Model"),
    )


def _canonical(name: str, rows: Mapping[str, TensorName]) -> tuple[str, bool]:
    full = name if name in rows or name == _COPY else f"transformer.{name}"
    return full, full.endswith(_TRANSPOSED)


GPT_FORMAT = PublishedFormat(
    name="GPT",
    prefix="transformer.",
    rows=_rows,
    heads=_HEADS,
    class_names=_class_names,
    tied_copies=lambda config: {_COPY: f"transformer.{_tables(config)[0]}.weight"},
    is_ignored=lambda name: name.endswith((".attn.bias", ".attn.masked_bias", "position_ids")),
    canonical=_canonical,
    unseen=frozenset({"lm"}),
    transposed=_TRANSPOSED,
)
