"""Entity scores for tags given as text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from maskloom.metrics.entities import EntityMetric, Scheme


def entity_scores(
    predictions: Sequence[Sequence[str]], targets: Sequence[Sequence[str]], *, scheme: Scheme | None = None
) -> dict[str, float]:
    """Return the scores of `EntityMetric` for tags as text, one sequence per sentence. Raises ValueError as it does."""
    labels = sorted({tag for side in (predictions, targets) for sentence in side for tag in sentence})
    ids = {label: number for number, label in enumerate(labels)}
    metric = EntityMetric(labels, scheme=scheme)
    predicted, true = (
        [np.array([ids[tag] for tag in sentence], dtype=np.int64) for sentence in side]
        for side in (predictions, targets)
    )
    metric.update(predicted, np.concatenate(true))
    return metric.compute()
