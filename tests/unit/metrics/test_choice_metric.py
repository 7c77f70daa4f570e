import numpy as np
import pytest

from maskloom.metrics.labels import ChoiceMetric


def test_accuracy_and_the_commonest_place_over_batches():
    metric = ChoiceMetric()
    metric.update(np.array([0, 1, 2]), np.array([0, 2, 2]))
    metric.update(np.array([3]), np.array([2]))
    assert metric.compute() == {"accuracy": 0.5}
    assert metric.reference() == 0.75
    assert metric.degeneracy() is None


def test_one_place_for_all_is_said():
    metric = ChoiceMetric()
    metric.update(np.array([1, 1]), np.array([0, 1]))
    assert metric.degeneracy() == "every prediction is the same choice"


def test_nothing_has_no_score():
    with pytest.raises(ValueError, match="no examples"):
        ChoiceMetric().compute()
    with pytest.raises(ValueError, match="'f1' is not one of"):
        ChoiceMetric(primary="f1")
