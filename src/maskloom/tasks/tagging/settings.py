"""The recipe sections [tagging] and [features], and the settings of tagging."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from maskloom.sections import Positive, Section, about
from maskloom.tasks.settings import KindSettings

Context = Literal["sentence", "document"]


class TaggingSection(Section):
    """Tags of words (paper 5.3): how they are written in files, and how much of a document a word sees.

    `scheme` "plain" is for tags that stand for single words, such as parts of speech; "auto" tells them from entities.
    """

    scheme: Annotated[
        Literal["auto", "iob1", "iob2", "bioes", "bilou", "io", "plain"],
        about("How tags mark entities; auto detects it, plain is for tags of single words."),
    ] = "auto"
    context: Annotated[Context, about("What a word attends to: its sentence, or also the sentences around it.")] = (
        "sentence"
    )
    crf: Annotated[bool, about("Add a linear-chain conditional random field.")] = False


# How LayerCombination names layers; whether the encoder has so many is known when it is there.
_LAYERS = "^(embeddings|last|second_to_last|(sum|concat)_last_four|sum_all|scalar_mix|all|[-0-9, ]+)$"


class FeaturesSection(Section):
    """Tagging on vectors of a frozen encoder (paper 5.3, Table 7): which layers, and the BiLSTM that reads them.

    `layers` is embeddings, last, second_to_last, sum_last_four, concat_last_four, sum_all, scalar_mix, or numbers of
    layers joined by commas, 0 for the embeddings.
    """

    layers: Annotated[
        str,
        Field(pattern=_LAYERS),
        about("Layers of the frozen encoder, by name (concat_last_four ...) or number (0 for the embeddings)."),
    ] = "concat_last_four"
    lstm_size: Annotated[
        int, Field(ge=2, le=65_536, multiple_of=2), about("Width of the BiLSTM, both directions together.")
    ] = 768
    lstm_layers: Annotated[int, Field(ge=1, le=4), about("Layers of the BiLSTM.")] = 2
    dropout: Annotated[float, Field(ge=0.0, lt=1.0, allow_inf_nan=False), about("Dropout of the BiLSTM.")] = 0.1
    precision: Annotated[Literal["float32", "float16"], about("Number format of the vectors on disk.")] = "float32"


class TaggingSettings(TaggingSection, KindSettings):
    """Settings of tagging.

    `words` says how raw text is cut, as `WordSplitter.as_settings` does; `class_weights` are by id of tag, and
    `trained_scheme` is that of the tags which the model gives.
    """

    features: FeaturesSection | None = None
    words: dict[str, Any] | None = None
    class_weights: list[Positive] | None = None
    trained_scheme: str | None = None
