"""The recipe section [span], and the settings of answers as spans."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from maskloom.sections import Count, Section, about
from maskloom.tasks.settings import KindSettings


class SpanSection(Section):
    """Answers as spans of a context (paper 4.2, 4.3), in the terms of the published code.

    `stride` is the step from one window to the next; an answer is kept empty when the null answer scores more than
    `null_threshold` above it, in data with questions that have none.
    """

    stride: Annotated[Count, about("Tokens from the start of one window of a context to the next.")] = 128
    max_question_length: Annotated[Count, about("Tokens after which a question is truncated.")] = 64
    max_answer_length: Annotated[Count, about("Maximum answer length in tokens.")] = 30
    num_best: Annotated[Count, about("Candidate answers kept per question.")] = 20
    null_threshold: Annotated[
        float, Field(allow_inf_nan=False), about("Margin by which no answer must score above the best answer.")
    ] = 0.0


class SpanSettings(SpanSection, KindSettings):
    """Settings of answers as spans; with `has_unanswerable` the model may say that the context has no answer."""

    has_unanswerable: bool = False
