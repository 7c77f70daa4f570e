"""The recipe section [span], and the settings of answers as spans."""

from __future__ import annotations

from maskloom.sections import Count, Section, key
from maskloom.tasks.settings import KindSettings


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
