"""The recipe sections [tagging] and [features], and the settings of tagging."""

from __future__ import annotations

from typing import Literal

from maskloom.sections import Positive, Section, key
from maskloom.tasks.settings import KindSettings
from maskloom.tasks.tagging.splitting import WordSplitter

Context = Literal["sentence", "document"]


class TaggingSection(Section):
    """Tagging of words (paper 5.3): how files encode tags, and how much of a document a word sees.

    `scheme` "plain" is for tags of single words, such as parts of speech; "auto" distinguishes them from entity tags.
    """

    scheme: Literal["auto", "iob1", "iob2", "bioes", "bilou", "io", "plain"] = key(
        "auto", "How tags mark entities; auto detects the scheme, plain is for tags of single words."
    )
    context: Context = key("sentence", "What each word attends to: its sentence, or also the surrounding sentences.")
    crf: bool = key(False, "Add a linear-chain conditional random field.")


# Layer names of LayerCombination; whether the encoder has those layers is known only once it is loaded.
_LAYERS = "^(embeddings|last|second_to_last|(sum|concat)_last_four|sum_all|scalar_mix|all|[-0-9, ]+)$"


class FeaturesSection(Section):
    """Tagging on vectors of a frozen encoder (paper 5.3, Table 7): which layers, and the BiLSTM that reads them.

    `layers` is embeddings, last, second_to_last, sum_last_four, concat_last_four, sum_all, scalar_mix, all, or
    comma-separated layer numbers, 0 for the embeddings.
    """

    layers: str = key(
        "concat_last_four",
        "Layers of the frozen encoder: embeddings, last, second_to_last, sum_last_four, concat_last_four, sum_all, "
        "scalar_mix, all, or numbers such as 0,6 (0 for the embeddings).",
        pattern=_LAYERS,
    )
    lstm_size: int = key(768, "Width of the BiLSTM, both directions together.", ge=2, le=65_536, multiple_of=2)
    lstm_layers: int = key(2, "Layers of the BiLSTM.", ge=1, le=4)
    dropout: float = key(0.1, "Dropout of the BiLSTM.", ge=0.0, lt=1.0)
    precision: Literal["float32", "float16"] = key("float32", "Number format of the vectors on disk.")
    word_vectors: str | None = key(
        None,
        "Word vectors to concatenate with the encoder's, as in the ELMo paper: a `words train` folder or a file in "
        "word2vec's format.",
    )


class TaggingSettings(TaggingSection, KindSettings):
    """Settings of tagging; `words` splits raw text, and `trained_scheme` is the scheme of the model's tags.

    With `features`, `mix_layer_norm` normalises the layers before they are mixed.
    """

    features: FeaturesSection | None = None
    mix_layer_norm: bool = False
    words: WordSplitter | None = None
    class_weights: list[Positive] | None = None
    trained_scheme: str | None = None
