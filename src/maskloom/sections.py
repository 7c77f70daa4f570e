"""What sections of recipes are made of: their base, what a key means, and ranges of numbers."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

ValueT = TypeVar("ValueT")
Rate = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
MOST_STEPS = 10**12
"""More than any run can count to, so it is also the number of steps of a run that the clock ends."""

Count = Annotated[int, Field(ge=1, le=MOST_STEPS)]
Length = Annotated[int, Field(le=1_000_000)]


def key(default: ValueT, meaning: str, **limits: Any) -> ValueT:
    """Make a key of a recipe, with limits as pydantic's `Field` takes them and a meaning, with its unit, for docs."""
    return Field(default, description=meaning, **limits)


class Section(BaseModel):
    """Base of every recipe section: frozen, finite numbers, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
