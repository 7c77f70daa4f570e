"""What a loaded model answers, as types."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


class Entity(TypedDict):
    """An entity in a sentence: `text[start:end]` of the sentence, over words `words[0]` to `words[1]` (exclusive)."""

    text: str
    type: str
    start: int
    end: int
    words: list[int]
    probability: float


class AnswerCandidate(TypedDict):
    """A span that may be the answer; `start` and `end` are characters of the context, None for "no answer"."""

    text: str
    probability: float
    start_logit: float
    end_logit: float
    start: int | None
    end: int | None


class Prediction(TypedDict):
    """A model's prediction for one input. Its keys depend on the kind of task.

    - one label: `label`, `probabilities` by label
    - several labels: `labels`, `probabilities` by label
    - regression: `score`
    - tags: `words`, `tags`, and `entities`, or, for tags of single words, `spans` and `tag_probabilities`
    - answers: `answer` ("" for none), `probability`, `start`, `end`, `candidates`, and `null_odds` where a question may
      have no answer
    - a text from a source: `text`
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
    """What follows a prompt.

    `text` is without the prompt, `num_tokens` counts its tokens, `log_probability` is that of all of them and of the
    end, in nats, and `finish` says what ended it: the model's own "end", or the "length". `score` is what a search
    ranked the text by, and `others` are the next best where several were asked for, by score.
    """

    text: str
    num_tokens: int
    log_probability: float
    finish: Literal["end", "length"]
    score: NotRequired[float]
    others: NotRequired[list[GeneratedText]]


class FilledText(TypedDict):
    """A text with its blanks filled.

    `fillings` are those of the blanks in order, "" where the model said none; `log_probability` is that of all that it
    said, in nats, and `finish` says what ended it: the model's own "end", or the "length".
    """

    text: str
    fillings: list[str]
    log_probability: float
    finish: Literal["end", "length"]


class MaskCandidate(TypedDict):
    """A token for a [MASK]."""

    token: str
    token_id: int
    probability: float
