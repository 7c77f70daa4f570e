"""Weight names of recurrent networks; nobody publishes them in this layout, so the names are ours."""

from __future__ import annotations

from collections.abc import Sequence

from maskloom.checkpoints.published.format import (
    OWN_HEADS,
    PublishedFormat,
    TensorName,
    own_classes,
    own_rows,
    plain_rows,
)
from maskloom.models.recurrent_config import RecurrentConfig

_DECODER = "heads.decoder"
_HEADS: dict[str, tuple[TensorName, ...]] = {
    "decoder": plain_rows(f"{_DECODER}.start"),
    "lm": (),
    **{name: plain_rows(f"heads.{name}.dense") for name in ("classifier", "tagger", "choice", "span")},
    **OWN_HEADS,
}


def _layers(stack: str, number: int, ways: Sequence[str]) -> tuple[TensorName, ...]:
    kinds = [f"{kind}_{of}_l0" for kind in ("weight", "bias") for of in ("ih", "hh")]
    names = [f"{stack}.layers.{layer}.{way}.{kind}" for layer in range(number) for way in ways for kind in kinds]
    return own_rows(*names)


def _energy(name: str, energy: str) -> tuple[TensorName, ...]:
    more = {"bilinear": ("query.weight",), "mlp": ("query.weight", "key.weight", "key.bias", "score.weight")}
    return own_rows(*(f"{name}.attention.{part}" for part in more.get(energy, ())))


def _rows(config: RecurrentConfig, heads: Sequence[str], *, has_pooler: bool = True) -> list[TensorName]:
    rows = [*own_rows("encoder.embeddings.word.weight")]
    rows += _layers("encoder", config.num_hidden_layers, ("forwards",) if config.causal else ("forwards", "backwards"))
    if config.pooling == "attention":
        rows += _energy("encoder.pooler", config.attention_energy)
        rows += own_rows("encoder.pooler.query") if config.attention_query == "learned" else ()
    if "decoder" in heads:
        rows += _layers(_DECODER, config.num_hidden_layers, ("forwards",))
        rows += _energy(_DECODER, config.decoder_attention)
        rows += plain_rows(f"{_DECODER}.combine") if config.decoder_attention != "none" else ()
    return [*rows, *(row for head in heads for row in _HEADS[head])]


def recurrent_format(name: str) -> PublishedFormat:
    """Return the published format of a recurrent architecture."""
    return PublishedFormat(
        name=name,
        prefix="",
        rows=_rows,
        heads=_HEADS,
        class_names=lambda config: own_classes(name.title(), {("lm",): "LMHeadModel"}),
        unseen=frozenset({"lm"}),
    )
