"""GoEmotions as its files are distributed (Demszky et al. 2020): text, ids of emotions joined by commas, comment id.

Three columns between tabs, no header, quotes are text. Ids are places in the list of 27 emotions and `neutral`; the
published score is macro F1.
"""

from __future__ import annotations

from maskloom.tasks.catalog.row import CatalogRow

GOEMOTIONS = CatalogRow(
    name="goemotions",
    kind="multilabel",
    text="text",
    pair=None,
    label="labels",
    labels=(
        "admiration",
        "amusement",
        "anger",
        "annoyance",
        "approval",
        "caring",
        "confusion",
        "curiosity",
        "desire",
        "disappointment",
        "disapproval",
        "disgust",
        "embarrassment",
        "excitement",
        "fear",
        "gratitude",
        "grief",
        "joy",
        "love",
        "nervousness",
        "optimism",
        "pride",
        "realization",
        "relief",
        "remorse",
        "sadness",
        "surprise",
        "neutral",
    ),
    primary="f1_macro",
    headerless=("1", None, "2", 3),
)
