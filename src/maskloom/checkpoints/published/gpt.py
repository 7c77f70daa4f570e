"""GPT's parameter names in the published files, in openai-gpt's and GPT-2's layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from maskloom.checkpoints.published.format import OWN_HEADS, PublishedFormat, TensorName, plain_rows
from maskloom.models.gpt_config import GptConfig

# The second name of the word embeddings, as the output layer.
_COPY = "lm_head.weight"


def _tables(config: GptConfig) -> tuple[str, str]:
    return ("wte", "wpe") if config.pre_norm else ("tokens_embed", "positions_embed")


def _dense(ours: str, theirs: str) -> tuple[TensorName, ...]:
    """Return the rows of a dense layer, whose published matrix is transposed."""
    return (
        TensorName(f"{ours}.weight", f"transformer.{theirs}.weight", is_transposed=True),
        TensorName(f"{ours}.bias", f"transformer.{theirs}.bias"),
    )


def _layer(number: int) -> tuple[TensorName, ...]:
    ours, theirs = f"encoder.layers.{number}", f"h.{number}"
    return (
        *_dense(f"{ours}.attention.qkv", f"{theirs}.attn.c_attn"),
        *_dense(f"{ours}.attention.output", f"{theirs}.attn.c_proj"),
        *plain_rows(f"{ours}.attention_layer_norm", f"transformer.{theirs}.ln_1"),
        *_dense(f"{ours}.feed_forward.up", f"{theirs}.mlp.c_fc"),
        *_dense(f"{ours}.feed_forward.down", f"{theirs}.mlp.c_proj"),
        *plain_rows(f"{ours}.feed_forward_layer_norm", f"transformer.{theirs}.ln_2"),
    )


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
    layers = [row for layer in range(config.num_hidden_layers) for row in _layer(layer)]
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
    return full, full in rows and rows[full].is_transposed


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
    are_transposed=True,
)
