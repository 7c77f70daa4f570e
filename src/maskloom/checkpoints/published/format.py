"""Descriptions of the files in which an architecture's weights are published."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any


@dataclass(frozen=True)
class TensorName:
    """One published tensor: our parameter (or some of its rows), and its Hugging Face name.

    `part` is the index among the `num_parts` parts of a joint projection (query, key and value), or None.
    """

    ours: str
    huggingface: str
    part: int | None = None
    num_parts: int = 3


@dataclass(frozen=True)
class OtherType:
    """A model_type, also the prefix, with the names that differ (up to the last dot) and extra keys of config.json."""

    name: str
    renamed: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PublishedFormat:
    """How one architecture is published in the Hugging Face layout.

    `rows` returns the rows of a model with a configuration and heads.
    `class_names` pairs heads with transformers' class for a model that has them; the first match counts. `tied_copies`
    maps second copies of tied tensors to the tensors they must equal, `defaults` a tensor that a file may lack to its
    substitute. `canonical` returns the Hugging Face name of a name in any dialect, and whether its matrix is
    transposed; it receives the rows by all of their names. `top` has the rows of a layer on top of the others. Among
    heads with the `same_name`, the class says which one a file holds. Models with only `token_heads` have no pooler.
    `prefix` precedes the encoder's names if there are heads. Matrices whose names end as one of `transposed` does are
    written transposed. `other_type` returns transformers' type for a configuration with heads, if it is not the usual
    one. A file may lack `optional` rows. `unseen` heads add no tensors of their own, so the class names in config.json
    say whether a file holds them.
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
    transposed: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    other_type: Callable[[Any, Collection[str]], OtherType | None] = lambda *_: None


def own_rows(*names: str) -> tuple[TensorName, ...]:
    """Return the rows of tensors whose published names are ours."""
    return tuple(TensorName(name, name) for name in names)


def plain_rows(ours: str, *theirs: str, ends: Sequence[str] = ("weight", "bias")) -> tuple[TensorName, ...]:
    """Return the rows of a weight and a bias; ours may join those of several published names, or has its own name."""
    if len(theirs) < 2:
        return tuple(TensorName(f"{ours}.{end}", f"{theirs[0] if theirs else ours}.{end}") for end in ends)
    return tuple(
        TensorName(f"{ours}.{end}", f"{name}.{end}", part, len(theirs))
        for part, name in enumerate(theirs)
        for end in ends
    )


def layer_rows(ours: str, theirs: str, number: int, parts: Mapping[str, Sequence[str]]) -> list[TensorName]:
    """Return the rows of `number` layers; `parts` has our parts of a layer, and the published ones that each joins."""
    return [
        row
        for layer, (part, names) in product(range(number), parts.items())
        for row in plain_rows(f"{ours}.{layer}.{part}", *(f"{theirs}.{layer}.{name}" for name in names))
    ]


def mlm_rows(theirs: str = "heads.mlm") -> tuple[TensorName, ...]:
    """Return the rows of a masked-LM head that only this program has."""
    inner = (row for name in ("dense", "layer_norm") for row in plain_rows(f"heads.mlm.{name}", f"{theirs}.{name}"))
    return (*inner, TensorName("heads.mlm.bias", f"{theirs}.bias"))


# The most layers of a bidirectional LSTM; a model uses the rows of the layers that it has.
MAX_LSTM_LAYERS = 4


def _of_head(head: str, names: Sequence[str], inner: str = "") -> tuple[TensorName, ...]:
    return tuple(TensorName(f"heads.{head}.{inner}{name}", f"{head}.{name}") for name in names)


def lstm_names(num_layers: int) -> list[str]:
    """Return the names of the parameters of a bidirectional LSTM."""
    kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    ends = [f"l{layer}{direction}" for layer in range(num_layers) for direction in ("", "_reverse")]
    return [f"lstm.{kind}_{end}" for end in ends for kind in kinds]


_GRU = [f"{kind}_l0" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
OWN_HEADS: dict[str, tuple[TensorName, ...]] = {
    "crf": _of_head("crf", ("start", "end", "transitions")),
    "document": (
        *_of_head("document", [f"sentences.{way}.{name}" for way in ("forwards", "backwards") for name in _GRU]),
        *_of_head("document", ("key.weight", "key.bias", "query", "dense.weight", "dense.bias")),
    ),
    "bilstm_tagger": (
        *_of_head("bilstm_tagger", lstm_names(MAX_LSTM_LAYERS), inner="bilstm."),
        *_of_head("bilstm_tagger", ("mix.weights", "mix.scale", "dense.weight", "dense.bias")),
    ),
}
"""Heads unknown to other programs, which would predict other tags if they took the file for a tagger's."""
