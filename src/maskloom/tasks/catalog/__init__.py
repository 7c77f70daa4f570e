"""One row a published data set: where its columns stand, its labels in order, and its metric."""

from __future__ import annotations

from maskloom.config import ConfigError
from maskloom.tasks.catalog.emotions import GOEMOTIONS
from maskloom.tasks.catalog.glue import GLUE
from maskloom.tasks.catalog.row import CatalogRow

__all__ = ["CATALOG", "GLUE", "CatalogRow", "catalog_row"]

CATALOG: dict[str, CatalogRow] = {
    **{f"glue:{row.name}": row for row in GLUE},
    GOEMOTIONS.name: GOEMOTIONS,
}


def catalog_row(name: str) -> CatalogRow:
    """Return the row of that name, with or without its collection: `glue:rte`, `rte`, `RTE`.

    Raises ConfigError that lists the known names.
    """
    key = name.lower()
    row = CATALOG.get(key) or CATALOG.get(f"glue:{key}")
    if row is None:
        raise ConfigError(f"format {name!r} is not in the catalog; known: {', '.join(CATALOG)}")
    return row
