import numpy as np
import pytest
from scipy.special import expit, logit

from maskloom.metrics.calibration import (
    TEMPERATURE_RANGE,
    CalibrationMetric,
    fit_temperature,
    softmax,
)

RNG = np.random.default_rng(5)


def logits_of(probabilities):
    return np.log(np.asarray(probabilities))


def random_classes(num_examples=400, num_classes=3):
    logits = RNG.normal(size=(num_examples, num_classes)) * 3
    return logits, RNG.integers(0, num_classes, num_examples)


def random_labels(num_examples=400, num_labels=4):
    logits = RNG.normal(size=(num_examples, num_labels)) * 2
    return logits, (RNG.random((num_examples, num_labels)) < expit(logits / 2)).astype(np.float32)


def calibration(logits, targets, **how):
    metric = CalibrationMetric(**how)
    metric.update(logits, targets)
    return metric.compute()


def test_figures_of_classes_by_hand():
    logits = logits_of([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.95, 0.05]])
    targets = np.array([0, 1, 1, 0])
    found = calibration(logits, targets, num_bins=2)
    # all confidences lie in (0.5, 1]: mean .8375, three of four right
    assert found["calibration_error"] == pytest.approx(0.8375 - 0.75)
    assert found["brier_score"] == pytest.approx((2 * 0.1**2 + 2 * 0.8**2 + 2 * 0.3**2 + 2 * 0.05**2) / 4)
    assert found["negative_log_likelihood"] == pytest.approx(-np.log([0.9, 0.2, 0.7, 0.95]).mean())
    # ten bins: .7, .8, .9 and .95 are in separate bins; .95 is in the last one, and .9 lies on an edge
    apart = calibration(logits, targets, num_bins=10)["calibration_error"]
    assert apart == pytest.approx((0.3 + 0.8 + 0.1 + 0.05) / 4)


def test_a_bin_holds_its_upper_edge():
    metric = CalibrationMetric(num_bins=2)
    metric.update(np.array([[0.0, 0.0]]), np.array([0]))  # exactly .5 and right: the lower bin
    metric.update(np.array([[2.0, 0.0]]), np.array([1]))  # above .5 and wrong: the upper bin
    assert metric.compute()["calibration_error"] == pytest.approx((0.5 + expit(2.0)) / 2)


def test_figures_of_labels_by_hand():
    probabilities = np.array([[0.2, 0.9], [0.4, 0.6]])
    targets = np.array([[0, 1], [1, 1]])
    metric = CalibrationMetric(num_bins=1)
    metric.update(logit(probabilities), targets)
    found = metric.compute()
    assert found["calibration_error"] == pytest.approx((0.2 + 0.25) / 2)
    assert found["brier_score"] == pytest.approx((0.04 + 0.01 + 0.36 + 0.16) / 4)
    assert found["negative_log_likelihood"] == pytest.approx(-np.log([0.8, 0.9, 0.4, 0.6]).mean())


@pytest.mark.parity
def test_figures_equal_those_of_scikit_learn():
    from sklearn.calibration import calibration_curve
    from sklearn.metrics import brier_score_loss, log_loss

    logits, targets = random_classes()
    probabilities = softmax(logits)
    found = calibration(logits, targets)
    assert found["negative_log_likelihood"] == pytest.approx(log_loss(targets, probabilities))
    assert found["brier_score"] == pytest.approx(brier_score_loss(targets, probabilities, scale_by_half=False))
    confidences, hits = probabilities.max(axis=1), probabilities.argmax(axis=1) == targets
    shares, means = calibration_curve(hits, confidences, n_bins=15)
    # calibration_curve omits empty bins and does not return the number of examples in the others
    sizes = np.histogram(confidences, np.linspace(0, 1, 16))[0]
    assert found["calibration_error"] == pytest.approx((np.abs(shares - means) * sizes[sizes > 0]).sum() / len(targets))

    logits, targets = random_labels()
    metric = CalibrationMetric()
    metric.update(logits, targets)
    for label in range(4):
        values = expit(logits[:, label])
        alone = CalibrationMetric()
        alone.update(logits[:, label : label + 1], targets[:, label : label + 1])
        shares, means = calibration_curve(targets[:, label], values, n_bins=15)
        sizes = np.histogram(values, np.linspace(0, 1, 16))[0]
        expected = (np.abs(shares - means) * sizes[sizes > 0]).sum() / len(values)
        assert alone.compute()["calibration_error"] == pytest.approx(expected)
    mean = np.mean([brier_score_loss(targets[:, k], expit(logits[:, k])) for k in range(4)])
    assert metric.compute()["brier_score"] == pytest.approx(mean)
    mean = np.mean([log_loss(targets[:, k], expit(logits[:, k])) for k in range(4)])
    assert metric.compute()["negative_log_likelihood"] == pytest.approx(mean)


@pytest.mark.parametrize("draw", [random_classes, random_labels])
def test_pieces_equal_the_whole(draw):
    logits, targets = draw()
    whole, pieces = CalibrationMetric(temperature=1.7), CalibrationMetric(temperature=1.7)
    whole.update(logits, targets)
    for first in range(0, len(logits), 33):
        pieces.update(logits[first : first + 33], targets[first : first + 33])
    pieces.update(logits[:0], targets[:0])
    assert pieces.compute() == pytest.approx(whole.compute())
    assert whole.compute() == pytest.approx(calibration(logits / 1.7, targets))


def test_perfect_probabilities_have_a_small_error():
    logits = RNG.normal(size=(200_000, 2))
    targets = (RNG.random(200_000) < softmax(logits)[:, 1]).astype(int)
    assert calibration(logits, targets)["calibration_error"] < 0.005
    assert calibration(logits * 3, targets)["calibration_error"] > 0.1


@pytest.mark.parametrize("true_temperature", [0.4, 2.5])
@pytest.mark.parametrize("has_several", [False, True])
def test_the_temperature_that_made_the_data_is_found(true_temperature, has_several):
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(20_000, 3)) * 2
    if has_several:
        targets = (rng.random(logits.shape) < expit(logits / true_temperature)).astype(int)
    else:
        edges = softmax(logits / true_temperature).cumsum(axis=1)
        targets = (rng.random((len(logits), 1)) > edges[:, :2]).sum(axis=1)
    fitted = fit_temperature(logits, targets)
    assert fitted == pytest.approx(true_temperature, rel=0.05)
    assert fitted == fit_temperature(logits, targets)
    colder, best, warmer = (
        calibration(logits, targets, temperature=fitted * factor)["negative_log_likelihood"]
        for factor in (0.97, 1.0, 1.03)
    )
    assert best < min(colder, warmer)


def test_the_temperature_stays_in_its_range():
    logits = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert fit_temperature(logits, np.array([0, 1])) == pytest.approx(TEMPERATURE_RANGE[0], rel=1e-3)
    assert fit_temperature(logits, np.array([1, 0])) == pytest.approx(TEMPERATURE_RANGE[1], rel=1e-3)
    assert fit_temperature(np.zeros((4, 3)), np.array([0, 1, 2, 0])) == 1.0


def test_extreme_logits_stay_finite():
    logits = np.array([[1e4, -1e4], [-1e4, 1e4]], dtype=np.float32)
    assert np.isfinite(list(calibration(logits, np.array([1, 1])).values())).all()
    assert np.isfinite(list(calibration(logits, np.array([[0, 1], [1, 0]])).values())).all()


def test_wrong_input_is_refused():
    metric = CalibrationMetric()
    with pytest.raises(ValueError, match="no examples"):
        metric.compute()
    with pytest.raises(ValueError, match="they must agree"):
        metric.update(np.zeros((2, 3)), np.zeros((2, 2)))
    for wrong in (-1, 3):
        with pytest.raises(ValueError, match="outside the classes 0 to 2"):
            metric.update(np.zeros((3, 3)), np.array([0, wrong, 2]))
    with pytest.raises(ValueError, match="0 or 1"):
        metric.update(np.zeros((1, 2)), np.array([[0.5, 1]]))
    with pytest.raises(ValueError, match="finite"):
        metric.update(np.array([[np.nan, 1]]), np.array([0]))
    with pytest.raises(ValueError, match="no examples"):
        fit_temperature(np.zeros((0, 2)), np.zeros(0))
