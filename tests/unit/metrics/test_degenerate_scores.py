import numpy as np
import pytest

from maskloom.metrics.labels import ChoiceMetric, MultiLabelMetric, RegressionMetric, SingleLabelMetric


def scores_of(metric, predictions, targets):
    metric.update(np.array(predictions), np.array(targets))
    return metric.compute()


def test_one_class_everywhere_has_defined_scores():
    scores = scores_of(SingleLabelMetric(2), [0, 0, 0], [0, 0, 0])
    assert scores == {"accuracy": 1.0, "f1": 0.0, "f1_macro": 1.0, "matthews": 0.0}


def test_constant_predictions_have_matthews_zero():
    metric = SingleLabelMetric(2, primary="matthews")
    scores = scores_of(metric, [1, 1, 1, 1], [0, 1, 1, 1])
    assert scores["matthews"] == 0.0
    assert scores["accuracy"] == 0.75
    assert metric.degeneracy() == "every prediction is the same class"
    for metric.primary, score in scores.items():
        assert metric.reference() == score


@pytest.mark.parametrize("metric", [SingleLabelMetric(2), ChoiceMetric()])
def test_one_example_more_than_a_constant_answer_is_no_more(metric):
    for prediction, told in ((1, "every prediction is the same"), (0, "by more than one example"), (0, None)):
        metric.update(np.array([1, 1, prediction]), np.array([1, 1, 0]))
        assert told in metric.degeneracy() if told else metric.degeneracy() is None
    assert metric.reference() == 6 / 9


def test_one_wrong_example():
    assert scores_of(SingleLabelMetric(3), [2], [1])["accuracy"] == 0.0


@pytest.mark.parametrize("metric", [SingleLabelMetric(2), RegressionMetric(), MultiLabelMetric(3)])
def test_no_examples_is_an_error(metric):
    with pytest.raises(ValueError, match="no examples"):
        metric.compute()


def test_ids_outside_the_classes_are_refused():
    for wrong in ([0, 2, 1], [0, -1, 1]):
        for sides in ((wrong, [0, 0, 1]), ([0, 0, 1], wrong)):
            with pytest.raises(ValueError, match="outside the classes 0 to 1"):
                SingleLabelMetric(2).update(*map(np.array, sides))


def test_not_finite_predictions_are_named():
    with pytest.raises(ValueError, match="prediction 1 is nan"):
        RegressionMetric().update(np.array([0.0, np.nan]), np.array([1.0, 2.0]))
    with pytest.raises(ValueError, match="target 0 is inf"):
        RegressionMetric().update(np.array([0.0]), np.array([np.inf]))


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="must agree"):
        SingleLabelMetric(2).update(np.array([0, 1]), np.array([0]))


@pytest.mark.parametrize(
    ("predictions", "targets"),
    [
        ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]),
        ([1.0, 2.0, 3.0], [4.0, 4.0, 4.0]),
        ([1.0], [2.0]),
        ([1e9, 1e9 + 1e-7], [1, 2]),
    ],
)
def test_correlation_of_a_constant_is_zero(predictions, targets):
    scores = scores_of(RegressionMetric(), predictions, targets)
    assert scores["pearson"] == scores["spearman"] == scores["correlation"] == 0.0
    assert scores["mean_squared_error"] == pytest.approx(np.mean((np.array(predictions) - np.array(targets)) ** 2))


def test_only_predictions_that_are_all_alike_are_called_that():
    """Regression: if all targets were the same number, the predictions were said to be."""
    varied, same = RegressionMetric(), RegressionMetric()
    varied.update(np.array([1.0, 2.0, 3.0]), np.array([4.0, 4.0, 4.0]))
    assert varied.degeneracy() is None
    same.update(np.array([4.0, 4.0, 4.0]), np.array([1.0, 2.0, 3.0]))
    assert same.degeneracy() == "every prediction is the same number"


def test_multi_label_without_any_positive():
    metric = MultiLabelMetric(3)
    scores = scores_of(metric, np.zeros((4, 3)), np.zeros((4, 3)))
    assert scores.pop("exact_match") == 1.0
    assert len(scores) == 9
    assert not any(scores.values())
    assert metric.degeneracy() == "no label is ever predicted"


def test_multi_label_with_one_label():
    scores = scores_of(MultiLabelMetric(1), [[1], [0], [1]], [[1], [1], [0]])
    assert scores["f1_micro"] == scores["f1_macro"] == pytest.approx(0.5)


def test_multi_label_takes_decisions_only():
    with pytest.raises(ValueError, match="0 or 1"):
        MultiLabelMetric(2).update(np.array([[0.5, 1.0]]), np.array([[0, 1]]))
    with pytest.raises(ValueError, match="expected"):
        MultiLabelMetric(2).update(np.array([[1, 0, 1]]), np.array([[0, 1, 1]]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: SingleLabelMetric(3, primary="f1"),
        lambda: RegressionMetric(primary="accuracy"),
        lambda: MultiLabelMetric(3, primary="pearson"),
    ],
)
def test_unknown_primary_scores_are_refused(make):
    with pytest.raises(ValueError, match="is not one of"):
        make()


def test_batches_add_up_to_the_whole():
    rng = np.random.default_rng(3)
    predictions, targets = rng.integers(0, 4, 100), rng.integers(0, 4, 100)
    whole, parts = SingleLabelMetric(4), SingleLabelMetric(4)
    whole.update(predictions, targets)
    for start in range(0, 100, 7):
        parts.update(predictions[start : start + 7], targets[start : start + 7])
    assert whole.compute() == parts.compute()
