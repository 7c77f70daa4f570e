"""Formats of networks that nobody publishes in this layout, so that the names of their weights are ours."""

from maskloom.checkpoints.published.format import (
    OWN_HEADS,
    PublishedFormat,
    mlm_rows,
    own_classes,
    own_rows,
    plain_rows,
)

LABELLED = {name: plain_rows(f"heads.{name}.dense") for name in ("classifier", "tagger", "choice", "span")}
TRANSFORMER_FORMAT = PublishedFormat(
    name="Transformer",
    prefix="",
    rows=own_rows,
    heads={
        "decoder": plain_rows("heads.decoder.layers.0.attention.qkv"),  # shows that there is a decoder
        "mlm": mlm_rows(),
        **LABELLED,
        **OWN_HEADS,
    },
    class_names=lambda config: own_classes("Transformer", {("mlm",): "ForMaskedLM"}),
)


def recurrent_format(name: str) -> PublishedFormat:
    """Return the published format of a recurrent architecture."""
    return PublishedFormat(
        name=name,
        prefix="",
        rows=own_rows,
        heads={"decoder": plain_rows("heads.decoder.start"), "lm": (), **LABELLED, **OWN_HEADS},
        class_names=lambda config: own_classes(name.title(), {("lm",): "LMHeadModel"}),
        unseen=frozenset({"lm"}),
    )
