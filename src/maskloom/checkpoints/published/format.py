"""What is known of the files in which an architecture's weights are published."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class TensorName:
    """One published tensor: our parameter (or a part of it, by rows), its Hugging Face name, its TensorFlow name.

    `part` counts the `num_parts`, query, key and value, in a joint projection and is None elsewhere; `is_transposed`
    says that rows and columns are exchanged: in the TensorFlow one of a BERT, the only one of a GPT. Templates have
    `{}` for the layer.
    """

    ours: str
    part: int | None
    huggingface: str
    tensorflow: str = ""
    is_transposed: bool = False
    num_parts: int = 3

    def for_layer(self, layer: int) -> TensorName:
        """Return the row with the layer number filled in."""
        names = {key: getattr(self, key).format(layer) for key in ("ours", "huggingface", "tensorflow")}
        return replace(self, **names)


@dataclass(frozen=True)
class OtherType:
    """A model_type, which is the prefix too, what differs before the last dot of names, and keys of config.json."""

    name: str
    renamed: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PublishedFormat:
    """How one architecture is published in the Hugging Face layout.

    `rows` returns the rows of a model with a configuration and heads, with its pooler or, by `has_pooler`, without.
    `class_names` pairs heads with what transformers calls a model that has them, the first match counting.
    `tied_copies` are second copies of tied tensors and what they must equal, `defaults` what stands in for a tensor
    that a file lacks. `canonical` returns the Hugging Face name of a name in any dialect, and whether its matrix is
    transposed; it gets the rows by all of their names. `top` has the rows of a layer on top of the others. Of heads
    with the `same_name` the class says which one a file holds. Models with `token_heads` alone have no pooler. `prefix`
    stands before the encoder's names where there are heads; files that `are_transposed` have the matrices of rows
    marked so with rows and columns exchanged. `other_type` returns how transformers names a configuration with heads,
    if not by the usual type. A file may lack `optional` rows. Heads that are `unseen` add no
    tensors of their own, so the class names in config.json say whether a file holds them.
    """

    name: str
    prefix: str
    rows: Callable[..., list[TensorName]]
    heads: Mapping[str, tuple[TensorName, ...]]
    class_names: Callable[[Any], Sequence[tuple[tuple[str, ...], str]]]
    tied_copies: Callable[[Any], Mapping[str, str]] = lambda _: {}
    is_ignored: Callable[[str], bool] = lambda _: False
    canonical: Callable[[str, Mapping[str, TensorName]], tuple[str, bool]] = lambda name, _: (name, False)
    pooler: tuple[TensorName, ...] = ()
    top: tuple[TensorName, ...] = ()
    optional: tuple[TensorName, ...] = ()
    unseen: frozenset[str] = frozenset()
    same_name: tuple[str, ...] = ()
    token_heads: frozenset[str] = field(default_factory=frozenset)
    are_transposed: bool = False
    defaults: Mapping[str, str] = field(default_factory=dict)
    other_type: Callable[[Any, Collection[str]], OtherType | None] = lambda *_: None


def own_classes(family: str, pretraining: Mapping[tuple[str, ...], str]) -> list[tuple[tuple[str, ...], str]]:
    """Return the class names of an architecture that no other program has; `pretraining` has those of its own heads."""
    names = {
        ("decoder",): "ForSeq2Seq",
        ("tagger", "crf"): "CrfForTokenClassification",
        **pretraining,
        ("classifier",): "ForSequenceClassification",
        ("tagger",): "ForTokenClassification",
        ("choice",): "ForMultipleChoice",
        ("span",): "ForQuestionAnswering",
        (): "Model",
    }
    return [(heads, f"Maskloom{family}{name}") for heads, name in names.items()]


def plain_rows(ours: str, theirs: str = "", part: int | None = None, num_parts: int = 3) -> tuple[TensorName, ...]:
    """Return the rows of weight and bias, or a part of them; the names are ours unless there are others."""
    ends = ("weight", "bias")
    return tuple(TensorName(f"{ours}.{end}", part, f"{theirs or ours}.{end}", num_parts=num_parts) for end in ends)


def mlm_rows(theirs: str = "heads.mlm") -> tuple[TensorName, ...]:
    """Return the rows of a masked-LM head that nobody else has."""
    inner = (row for name in ("dense", "layer_norm") for row in plain_rows(f"heads.mlm.{name}", f"{theirs}.{name}"))
    return (*inner, TensorName("heads.mlm.bias", None, f"{theirs}.bias"))


# A bidirectional LSTM has at most so many layers; a model uses the rows of those that it has.
MAX_LSTM_LAYERS = 4


def _own(head: str, names: Sequence[str], inner: str = "") -> tuple[TensorName, ...]:
    return tuple(TensorName(f"heads.{head}.{inner}{name}", None, f"{head}.{name}", f"{head}/{name}") for name in names)


def lstm_names(num_layers: int) -> list[str]:
    """Return the names of the parameters of a bidirectional LSTM."""
    kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    ends = [f"l{layer}{direction}" for layer in range(num_layers) for direction in ("", "_reverse")]
    return [f"lstm.{kind}_{end}" for end in ends for kind in kinds]


_GRU = [f"{kind}_l0" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
OWN_HEADS: dict[str, tuple[TensorName, ...]] = {
    "crf": _own("crf", ("start", "end", "transitions")),
    "document": (
        *_own("document", [f"sentences.{way}.{name}" for way in ("forwards", "backwards") for name in _GRU]),
        *_own("document", ("key.weight", "key.bias", "query", "dense.weight", "dense.bias")),
    ),
    "bilstm_tagger": (
        *_own("bilstm_tagger", lstm_names(MAX_LSTM_LAYERS), inner="bilstm."),
        *_own("bilstm_tagger", ("mix.weights", "mix.scale", "dense.weight", "dense.bias")),
    ),
}
"""Heads that no other program knows: one that took the file for a tagger would give other tags."""
