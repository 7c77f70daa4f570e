"""Entity scores compared with seqeval (by default conlleval's rule) on random tags, well-formed or not."""

import numpy as np
import pytest
from tests.entity_scores import entity_scores

from maskloom.metrics.entities import EntityMetric

seqeval = pytest.importorskip("seqeval.metrics")
schemes = pytest.importorskip("seqeval.scheme")

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore::seqeval.metrics.v1.UndefinedMetricWarning")]

KINDS = ("PER", "LOC", "a-b")
NUM_CASES = 150


def random_sides(rng, prefixes):
    labels = ["O", *(f"{prefix}-{kind}" for prefix in prefixes for kind in KINDS)]
    true = [list(rng.choice(labels, rng.integers(1, 12))) for _ in range(rng.integers(1, 9))]
    keeps = rng.uniform(0.3, 1.0)
    predicted = [[tag if rng.random() < keeps else str(rng.choice(labels)) for tag in tags] for tags in true]
    return [[str(tag) for tag in tags] for tags in predicted], [[str(tag) for tag in tags] for tags in true]


def expected_scores(true, predicted, **options):
    wanted = {"average": "micro", "zero_division": 0, **options}
    return [
        seqeval.f1_score(true, predicted, **wanted),
        seqeval.precision_score(true, predicted, **wanted),
        seqeval.recall_score(true, predicted, **wanted),
    ]


@pytest.mark.parametrize("prefixes", ["I", "BI", "BIES"])
def test_default_scores(prefixes):
    rng = np.random.default_rng(len(prefixes))
    for _ in range(NUM_CASES):
        predicted, true = random_sides(rng, prefixes)
        scores = entity_scores(predicted, true)
        found = [scores["f1"], scores["precision"], scores["recall"]]
        assert found == pytest.approx(expected_scores(true, predicted), abs=1e-9)
        assert scores["accuracy"] == pytest.approx(seqeval.accuracy_score(true, predicted), abs=1e-12)


@pytest.mark.parametrize(("prefixes", "scheme", "name"), [("BI", "IOB2", "iob2"), ("BIES", "IOBES", "bioes")])
def test_strict_scores(prefixes, scheme, name):
    rng = np.random.default_rng(17)
    for _ in range(NUM_CASES):
        predicted, true = random_sides(rng, prefixes)
        scores = entity_scores(predicted, true, scheme=name)
        found = [scores["strict_f1"], scores["strict_precision"], scores["strict_recall"]]
        strict = {"mode": "strict", "scheme": getattr(schemes, scheme)}
        assert found == pytest.approx(expected_scores(true, predicted, **strict), abs=1e-9)


def test_scores_by_type():
    rng = np.random.default_rng(3)
    for _ in range(NUM_CASES):
        predicted, true = random_sides(rng, "BI")
        report = seqeval.classification_report(true, predicted, output_dict=True, zero_division=0)
        scores = entity_scores(predicted, true)
        for kind in KINDS:
            if kind in report:
                for ours, theirs in (("f1", "f1-score"), ("precision", "precision"), ("recall", "recall")):
                    assert scores[f"{ours}_{kind}"] == pytest.approx(report[kind][theirs], abs=1e-9)


def test_strict_bilou_scores():
    rng = np.random.default_rng(5)
    labels = ["O", *(f"{prefix}-{kind}" for prefix in "BILU" for kind in KINDS)]
    for _ in range(NUM_CASES):
        true = [[str(tag) for tag in rng.choice(labels, 9)] for _ in range(6)]
        predicted = [[tag if rng.random() < 0.8 else str(rng.choice(labels)) for tag in tags] for tags in true]
        ids = {label: number for number, label in enumerate(labels)}
        metric = EntityMetric(labels)
        found, wanted = ([np.array([ids[tag] for tag in tags]) for tags in side] for side in (predicted, true))
        metric.update(found, np.concatenate(wanted))
        expected = expected_scores(true, predicted, mode="strict", scheme=schemes.BILOU)
        assert metric.compute()["strict_f1"] == pytest.approx(expected[0], abs=1e-9)
