"""The shape of a catalog row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["single", "pair", "regression", "multilabel", "span", "tagging", "choice"]


@dataclass(frozen=True)
class CatalogRow:
    """How one published data set stands on disk, and how it is scored.

    Columns are names of the header. `headerless` is (text, pair, label, number of fields), numbers of columns from 1,
    for files that come without a header; `header_marks` are the first two fields that show that a file has one all the
    same. `labels` are class names in the order of their ids. `primary` is the score that picks the best model, None for
    what its kind has by default. Files of tagged words have numbers of columns, from 1, for names.
    """

    name: str
    kind: Kind
    text: str
    pair: str | None
    label: str
    labels: tuple[str, ...] = ()
    primary: str | None = "accuracy"
    headerless: tuple[str, str | None, str, int] | None = None
    header_marks: tuple[str, str] | None = None
    drops_bad_rows: bool = False
    no_label: str | None = None
    label_range: tuple[float, float] | None = None
