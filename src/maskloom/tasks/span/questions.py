"""A question with its context and its answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """An answer as a span of the context: `context[start:start + len(text)] == text`, without white space around."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """One question on a context.

    `answers` is None where the file does not say, and empty where the question has no answer in the context. `line` is
    the line of a row, and the number of the question, from 1, in a SQuAD file. `title` names the article, if any.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] | None
    line: int
    title: str | None = None

    @property
    def is_impossible(self) -> bool:
        """Whether the file says that the context does not answer the question."""
        return self.answers == ()

    def inputs(self) -> tuple[str, str]:
        """Return what a model sees of the question: two questions with equal inputs are one but for their answers."""
        return self.question, self.context

    def as_row(self) -> dict[str, str]:
        """Return the question as a row of predictions shows it; the context is left out, it is long and shared."""
        return {"id": self.id, "question": self.question}
