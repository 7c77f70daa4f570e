"""Scores compared with formulas written out by hand, scikit-learn and SciPy, on random cases."""

import warnings

import numpy as np
import pytest

from maskloom.metrics.labels import MultiLabelMetric, RegressionMetric, SingleLabelMetric

pytestmark = pytest.mark.parity

NUM_CASES = 120


def f1_by_hand(predictions, targets):
    both = int(((predictions == 1) & (targets == 1)).sum())
    total = int((predictions == 1).sum() + (targets == 1).sum())
    return 2 * both / total if total else 0.0


def matthews_by_hand(predictions, targets, num_labels):
    confusion = np.zeros((num_labels, num_labels))
    np.add.at(confusion, (targets, predictions), 1)
    total, right = confusion.sum(), np.trace(confusion)
    true, guessed = confusion.sum(1), confusion.sum(0)
    above = right * total - true @ guessed
    below = np.sqrt(total**2 - guessed @ guessed) * np.sqrt(total**2 - true @ true)
    return above / below if below else 0.0


@pytest.mark.parametrize("num_labels", [2, 3, 7])
def test_single_label_scores(num_labels):
    rng = np.random.default_rng(num_labels)
    for _ in range(NUM_CASES):
        size = int(rng.integers(1, 40))
        targets = rng.integers(0, num_labels, size)
        predictions = np.where(rng.random(size) < 0.6, targets, rng.integers(0, num_labels, size))
        metric = SingleLabelMetric(num_labels)
        metric.update(predictions, targets)
        scores = metric.compute()
        assert scores["accuracy"] == pytest.approx((predictions == targets).mean())
        assert scores["matthews"] == pytest.approx(matthews_by_hand(predictions, targets, num_labels), abs=1e-12)
        present = np.union1d(predictions, targets)
        macro = np.mean([f1_by_hand(predictions == label, targets == label) for label in present])
        assert scores["f1_macro"] == pytest.approx(macro)
        if num_labels == 2:
            assert scores["f1"] == pytest.approx(f1_by_hand(predictions, targets))


def test_regression_scores():
    from scipy.stats import pearsonr, spearmanr

    rng = np.random.default_rng(5)
    for _ in range(NUM_CASES):
        size = int(rng.integers(2, 40))
        targets = np.round(rng.random(size) * 5, int(rng.integers(0, 3)))
        predictions = targets + rng.normal(size=size)
        metric = RegressionMetric()
        metric.update(predictions.astype(np.float32), targets.astype(np.float32))
        scores = metric.compute()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pearson = np.nan_to_num(pearsonr(predictions, targets)[0])
            spearman = np.nan_to_num(spearmanr(predictions, targets)[0])
        assert scores["pearson"] == pytest.approx(pearson, abs=1e-5)
        assert scores["spearman"] == pytest.approx(spearman, abs=1e-5)
        assert scores["mean_squared_error"] == pytest.approx(np.mean((predictions - targets) ** 2), rel=1e-4)


def test_multi_label_scores():
    rng = np.random.default_rng(7)
    for _ in range(NUM_CASES):
        size, num_labels = int(rng.integers(1, 30)), int(rng.integers(2, 9))
        targets = (rng.random((size, num_labels)) < 0.3).astype(int)
        predictions = np.where(rng.random(targets.shape) < 0.8, targets, 1 - targets)
        metric = MultiLabelMetric(num_labels)
        metric.update(predictions, targets)
        scores = metric.compute()
        assert scores["f1_micro"] == pytest.approx(f1_by_hand(predictions.ravel(), targets.ravel()))
        by_label = [f1_by_hand(predictions[:, label], targets[:, label]) for label in range(num_labels)]
        assert scores["f1_macro"] == pytest.approx(np.mean(by_label))
        assert scores["exact_match"] == pytest.approx((predictions == targets).all(1).mean())


def test_scores_by_document_are_those_of_scikit_learn():
    from sklearn.metrics import accuracy_score, f1_score, hamming_loss, jaccard_score, precision_score, recall_score

    rng = np.random.default_rng(8)
    by_sample = {"jaccard": jaccard_score, "precision_samples": precision_score, "recall_samples": recall_score}
    by_sample["f1_samples"] = f1_score
    for _ in range(NUM_CASES // 3):
        size, num_labels = int(rng.integers(1, 30)), int(rng.integers(2, 9))
        targets, predictions = (rng.random((2, size, num_labels)) < rng.random((2, size, 1))).astype(int)
        targets[0], predictions[-1] = rng.integers(2), rng.integers(2)  # all labels or none
        metric = MultiLabelMetric(num_labels)
        metric.update(predictions[:3], targets[:3])
        metric.update(predictions[3:], targets[3:])
        scores = metric.compute()
        assert scores["hamming_loss"] == pytest.approx(hamming_loss(targets, predictions))
        differences, mean_labels = (targets != predictions).sum(1).mean(), targets.sum(1).mean()
        if mean_labels:
            assert scores["hamming_by_label"] == pytest.approx(differences / mean_labels)
        means = [
            score(targets, predictions, average="samples", zero_division=0) for score in (precision_score, recall_score)
        ]
        harmonic = 2 * np.prod(means) / sum(means) if sum(means) else 0.0
        assert scores["f1_of_means"] == pytest.approx(harmonic)
        assert scores["exact_match"] == pytest.approx(accuracy_score(targets, predictions))
        for name, score in by_sample.items():
            expected = score(targets, predictions, average="samples", zero_division=0)
            assert scores[name] == pytest.approx(expected), name
