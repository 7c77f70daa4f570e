"""Types of the results that a loaded model returns."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


class Entity(TypedDict):
    """An entity: characters `start` to `end` of a sentence, over words `words[0]` to `words[1]` (ends exclusive)."""

    text: str
    type: str
    start: int
    end: int
    words: list[int]
    probability: float


class AnswerCandidate(TypedDict):
    """A candidate answer; `start` and `end` are character offsets in the context, None for "no answer"."""

    text: str
    probability: float
    start_logit: float
    end_logit: float
    start: int | None
    end: int | None


class Prediction(TypedDict):
    """A model's prediction for one input. Its keys depend on the kind of task.

    - classification: `label`, `probabilities` by label
    - multi-label classification: `labels`, `probabilities` by label
    - regression: `score`
    - tagging: `words`, `tags`, and `entities` or, for tags of single words, `spans` and `tag_probabilities`
    - question answering: `answer` ("" for none), `probability`, `start`, `end`, `candidates`, and `null_odds` if
      questions may have no answer
    - sequence to sequence: `text`
    - multiple choice: `choice` (from 0), `choice_text`, `probabilities` by number
    """

    label: str
    labels: list[str]
    probabilities: dict[str, float]
    score: float
    text: str
    words: list[str]
    tags: list[str]
    entities: list[Entity]
    spans: list[list[int]]
    tag_probabilities: list[float]
    answer: str
    probability: float
    start: int | None
    end: int | None
    null_odds: float
    candidates: list[AnswerCandidate]
    choice: int
    choice_text: str


class GeneratedText(TypedDict):
    """A generated text.

    `text` excludes the prompt, `num_tokens` counts its tokens, `log_probability` is their total with the end token, in
    nats, and `finish` says what ended it: the model's own "end" or the "length" limit. `score` is the value by which a
    search ranked the text, and `others` are the next best texts by score, if several were requested.
    """

    text: str
    num_tokens: int
    log_probability: float
    finish: Literal["end", "length"]
    score: NotRequired[float]
    others: NotRequired[list[GeneratedText]]


class FilledText(TypedDict):
    """A text with its blanks filled.

    `fillings` has one entry per blank, in order, "" if the model generated none; `log_probability` is that of the whole
    output, in nats, and `finish` says what ended it: the model's own "end" or the "length" limit.
    """

    text: str
    fillings: list[str]
    log_probability: float
    finish: Literal["end", "length"]


class MaskCandidate(TypedDict):
    """A candidate token for a [MASK]."""

    token: str
    token_id: int
    probability: float
