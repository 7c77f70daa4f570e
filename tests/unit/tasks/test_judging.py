from types import SimpleNamespace

import numpy as np
import pytest

from maskloom.tasks.judging import judge_tags

LABELS = ("NN", "VB", "DT")


@pytest.mark.parametrize(
    ("tags", "truth", "answer", "error"),
    [
        (["DT", "NN", "VB"], "the DT, dog NN, barks VB", "the DT, dog NN, barks VB", 0.0),
        (["DT", "VB", "VB"], "dog NN", "dog VB", 1.0),
    ],
)
def test_tags_that_are_no_entities_are_shown_where_they_differ_and_else_all(tags, truth, answer, error):
    """Regression: the page showed a correctly tagged sentence as "none" and "none"."""
    prediction = {"tags": tags, "tag_probabilities": [0.9, 0.8, 0.95]}
    found = judge_tags(SimpleNamespace(words=("the", "dog", "barks")), prediction, np.array([2, 0, 1]), LABELS)
    assert (found.truth, found.answer, found.error, found.probability) == (truth, answer, error, 0.8)
