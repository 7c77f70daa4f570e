"""Building blocks of recipe sections: the base class, described keys, and number ranges."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

ValueT = TypeVar("ValueT")
Rate = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
MOST_STEPS = 10**12
"""More steps than any run can take, so also the number of steps of a run with a time limit."""

Count = Annotated[int, Field(ge=1, le=MOST_STEPS)]
Length = Annotated[int, Field(le=1_000_000)]


def key(default: ValueT, meaning: str, **limits: Any) -> ValueT:
    """Define a recipe key with its meaning (and unit) for the docs, and limits as accepted by pydantic's `Field`."""
    return Field(default, description=meaning, **limits)


class Section(BaseModel):
    """Base of every recipe section: frozen, finite numbers, no unknown keys, no implicit type conversion."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
