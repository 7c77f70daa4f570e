"""Settings of tasks: the recipe sections for fine-tuning, and the settings stored with a model."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, Strict, model_validator

from maskloom.sections import Count, Length, Positive, Rate, Section, key
from maskloom.tasks.tagging.splitting import WordSplitter


class FinetuningData(Section):
    """How examples of a task are encoded."""

    max_length: Length = key(
        128, "Maximum tokens; longer texts are truncated, contexts and sentences split into windows.", ge=3
    )


class MixSection(Section):
    """How a learned mix of layers is computed, in an ELMo or in [features] (Peters et al. 2018, 3.2 and 3.3)."""

    layer_norm: bool = key(
        False,
        "Normalise each layer to mean 0 and variance 1 over a batch before mixing; results then depend on the batch.",
    )
    l2: float = key(0.0, "Weight of an L2 penalty on the mix's weights: the sum of their squares.", ge=0.0, le=1e6)
    dropout: float = key(0.0, "Dropout on an ELMo's mix; [features] has its own.", ge=0.0, lt=1.0)

    @property
    def of_encoder(self) -> dict[str, Any]:
        """The keys of an encoder's configuration that differ from the defaults."""
        return {f"mix_{name}": value for name, value in self if name != "l2" and value}


class PairSection(Section):
    """Pairs of texts, with one label or a score."""

    both_orders: bool = key(
        False, "Read each pair in both orders and add the vectors, as GPT does if the order has no meaning."
    )


class DocumentSection(Section):
    """Labels of documents by title-guided attention (Dong et al. 2019): the inputs and the two regularisers."""

    max_sentences: Count = key(10, "Maximum sentences read per document; the others are dropped and counted.")
    language: str = key("en", "Language code for splitting texts into sentences.")
    title: bool = key(True, "Include the title's vector in the vector of the document.")
    guided: bool = key(True, "Include attention over the sentences with the title as the query.")
    own: bool = key(True, "Include attention over the sentences with a learned query.")
    similarity: float = key(
        0.0, "Weight of the penalty on unequal probabilities of labels that co-occur in train.", ge=0, le=1e6
    )
    implication: float = key(
        0.0, "Weight of the penalty on labels predicted without the labels they imply.", ge=0, le=1e6
    )
    implied_from: float = key(
        0.8, "A label implies a more common one if at least this fraction of its documents has both.", gt=0, le=1
    )


class KindSettings(Section):
    """Settings of a kind of task, stored with its models; keys of later releases are ignored.

    Each kind adds the keys of its recipe section, settings from the training data, and settings fitted after training.
    """

    model_config = ConfigDict(extra="ignore")

    # fp32 logits divided by less may become infinite, and their probabilities NaN
    temperature: float = key(1.0, "Divisor of the logits before they become probabilities.", ge=1e-6, le=1e6)

    def as_stored(self) -> dict[str, Any]:
        """Return the settings that were set explicitly, as plain values."""
        return self.model_dump(include=self.model_fields_set)


class ClassificationSettings(PairSection, KindSettings):
    """Settings of the kinds with one vector per text or pair.

    `class_weights` are in id order (weights of positives if there are several labels); `thresholds` are the minimum
    probabilities at which each of several labels is chosen, 0.5 by default.
    """

    class_weights: list[Positive] | None = None
    thresholds: list[Rate] | None = None


class DocumentSettings(DocumentSection, ClassificationSettings):
    """Settings of document labels, with the label relations that the regularisers read.

    `similar` has pairs of label ids with the cosine of their columns in train, `implied` pairs (label, implied label).
    """

    similar: Annotated[tuple[Annotated[tuple[int, int, float], Strict(False)], ...], Strict(False)] = ()
    implied: Annotated[tuple[Annotated[tuple[int, int], Strict(False)], ...], Strict(False)] = ()


class SpanSection(Section):
    """Answers as spans of a context (paper 4.2, 4.3), parametrised as in the published code.

    `stride` is the step between windows. In data with unanswerable questions, the answer is empty if the null answer
    scores more than `null_threshold` above the best span.
    """

    stride: Count = key(128, "Tokens between the starts of successive windows of a context.")
    max_question_length: Count = key(64, "Maximum question length in tokens; longer ones are truncated.")
    max_answer_length: Count = key(30, "Maximum answer length in tokens.")
    num_best: Count = key(20, "Candidate answers kept per question.")
    null_threshold: float = key(
        0.0, "The answer is empty if the null answer outscores the best answer by more than this."
    )


class SpanSettings(SpanSection, KindSettings):
    """Settings of span answers; with `has_unanswerable`, the model may decide that the context has no answer."""

    has_unanswerable: bool = False


Context = Literal["sentence", "document"]


class TaggingSection(Section):
    """Tagging of words (paper 4.3): how files encode tags, and how much of a document a word sees.

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
    """Tagging on vectors of a frozen encoder (paper 5.4, Table 7): which layers, and the BiLSTM that reads them."""

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

    `labels` are a model's tags in id order, for files that have ids; they are stored elsewhere. With `features`,
    `mix_layer_norm` normalises the layers before they are mixed.
    """

    features: FeaturesSection | None = None
    mix_layer_norm: bool = False
    words: WordSplitter | None = None
    class_weights: list[Positive] | None = None
    trained_scheme: str | None = None
    labels: list[str] | None = Field(None, exclude=True)


SUFFIX = r"^[\w-]+$"
"""The pattern of the suffix of a file of targets, without the dot."""


class Seq2SeqSection(Section):
    """Generating targets from sources."""

    max_target_length: Length = key(128, "Maximum tokens per target; longer ones are truncated and counted.", ge=3)
    label_smoothing: float = key(
        0.1, "Fraction of the target distribution spread evenly over the vocabulary.", ge=0.0, lt=1.0
    )
    beam: int = key(4, "Beam size; 1 is greedy search.", ge=1, le=1000)
    length_penalty: float = key(
        0.6, "Beam search divides log-probabilities by ((5 + length) / 6) to this power.", ge=0.0, le=100.0
    )
    min_tokens: int = key(0, "Minimum tokens per generated text.", ge=0, le=100_000)
    no_repeat_ngram: int = key(
        0, "Never generate an n-gram of this length twice in a text; 0 allows all.", ge=0, le=100
    )
    source_layers: int | None = key(
        None, "Layers of the new encoder in front of a BART for sources with their own vocabulary; defaults to 6.", ge=1
    )
    source_first: bool = key(
        False,
        "Train only a BART's new source encoder, its position embeddings and the input projection of its first "
        "self-attention: the first of two training steps for translation.",
    )
    target_suffix: Annotated[str, Field(pattern=SUFFIX)] | None = key(
        None, 'Suffix of the target file that matches a source file line by line: "en" for train.de and train.en.'
    )

    @model_validator(mode="after")
    def _lengths_fit(self) -> Self:
        if self.min_tokens > self.max_target_length:
            rule = f"it may not exceed max_target_length = {self.max_target_length}"
            raise ValueError(f"min_tokens = {self.min_tokens}: {rule}")
        return self


class Seq2SeqSettings(Seq2SeqSection, KindSettings):
    """Settings of sequence-to-sequence tasks; `decoder_start` is the model's own token before every target."""

    decoder_start: int | None = None
