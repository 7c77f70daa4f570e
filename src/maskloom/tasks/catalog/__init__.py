"""One row a published data set: where its columns stand, its labels in order, and its metric."""

from __future__ import annotations

from collections.abc import Collection

from maskloom.config import ConfigError
from maskloom.tasks.catalog.choice import CHOICE_SETS
from maskloom.tasks.catalog.conll import CONLL2003
from maskloom.tasks.catalog.emotions import GOEMOTIONS
from maskloom.tasks.catalog.glue import GLUE
from maskloom.tasks.catalog.row import CatalogRow, Kind

__all__ = ["CATALOG", "GLUE", "CatalogRow", "catalog_row"]

CATALOG: dict[str, CatalogRow] = {
    **{f"glue:{row.name}": row for row in GLUE},
    GOEMOTIONS.name: GOEMOTIONS,
    CONLL2003.name: CONLL2003,
    **{row.name: row for row in CHOICE_SETS},
}


def catalog_row(name: str, *, kinds: Collection[Kind] | None = None) -> CatalogRow:
    """Return the row of that name, with or without its collection: `glue:rte`, `rte`, `RTE`.

    Raises ConfigError that lists the known names, and one that names its kind for a row of none of `kinds`.
    """
    key = name.lower()
    row = CATALOG.get(key) or CATALOG.get(f"glue:{key}")
    if row is None:
        raise ConfigError(f"format {name!r:.80} is not in the catalog; known: {', '.join(CATALOG)}")
    if kinds is not None and row.kind not in kinds:
        raise ConfigError(f"format {name!r:.80} is of a {row.kind} task, not {' or '.join(kinds)}")
    return row
