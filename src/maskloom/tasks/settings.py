"""The recipe sections of fine-tuning on one text or a pair."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from maskloom.sections import Length, Section, about


class FinetuningData(Section):
    """How examples of a task are encoded."""

    max_length: Annotated[
        Length, Field(ge=3), about("Maximum tokens; longer texts are truncated, contexts and sentences windowed.")
    ] = 128


class PairSection(Section):
    """Pairs of texts, with one label or a score."""

    both_orders: Annotated[
        bool, about("Read A B and B A and add their vectors, as GPT does where neither text comes first.")
    ] = False
