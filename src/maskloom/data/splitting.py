"""Setting documents aside for evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maskloom.data.counter_random import Permutation
from maskloom.errors import ConfigError

if TYPE_CHECKING:
    from maskloom.data.corpus import Corpus

_SPLIT = 301


def split_documents(corpus: Corpus, held_out_share: float, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of documents to train on and of those held out, both ascending int64.

    Which documents are held out depends on their number and the seed, never on what they say. A share above 0 holds
    out at least one document and leaves at least one; of a single document nothing is held out. Raises ConfigError for
    a share outside [0, 1).
    """
    if not 0.0 <= held_out_share < 1.0:
        raise ConfigError(f"held_out_share is {held_out_share}, it must lie in [0, 1)")
    num_documents = corpus.num_documents
    num_held_out = 0
    if held_out_share > 0 and num_documents > 1:
        num_held_out = min(max(round(held_out_share * num_documents), 1), num_documents - 1)
    order = Permutation(num_documents, seed, _SPLIT)[np.arange(num_documents)]
    return np.sort(order[num_held_out:]), np.sort(order[:num_held_out])
