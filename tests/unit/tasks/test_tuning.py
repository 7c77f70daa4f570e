from functools import cache
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from maskloom.errors import ConfigError
from maskloom.metrics.calibration import best_thresholds, checked_thresholds, tune_classes
from maskloom.tasks.kinds import make_task
from maskloom.tasks.span.reading import Answer, Question


class Encoded:
    """The labels of encoded examples, which are all that tuning reads."""

    def __init__(self, labels):
        self.labels = np.asarray(labels)


def outputs(rows):
    return [np.array([row], dtype=np.float32) for row in rows]


@cache
def f1_of(targets, chosen, average):
    return f1_score(np.array(targets), np.array(chosen), average=average, zero_division=0)


def f1_at(scores, targets, threshold, average="binary"):
    """Return F1 at a threshold; many thresholds choose the same, for which it is computed once."""
    targets, chosen = (np.asarray(values, dtype=int) for values in (targets, np.asarray(scores) >= threshold))
    rows = (values.tolist() if values.ndim == 1 else map(tuple, values.tolist()) for values in (targets, chosen))
    return f1_of(*map(tuple, rows), average)


def best_threshold(scores, targets):
    """Return the threshold with the best F1 for a single label."""
    return best_thresholds(np.reshape(scores, (-1, 1)), np.reshape(targets, (-1, 1)), "f1_macro")[0]


def test_a_threshold_by_hand():
    scores = [0.9, 0.45, 0.4, 0.3, 0.1]
    # F1 with the top 1, 2, 3, 4, 5 chosen: 2/4, 4/5, 4/6, 6/7, 6/8
    assert best_threshold(scores, [1, 1, 0, 1, 0]) == pytest.approx(0.2)
    assert best_threshold(scores, [1, 1, 0, 0, 0]) == pytest.approx(0.425)
    assert best_threshold([0.9, 0.8, 0.7], [1, 0, 0]) == pytest.approx(0.85)


@pytest.mark.parametrize(
    ("scores", "targets", "reason"),
    [
        ([0.9, 0.6, 0.2], [0, 0, 0], "no positives"),
        ([0.9, 0.6, 0.2], [1, 1, 0], "already best"),
        ([0.9, 0.6, 0.2], [1, 1, 1], None),
        ([], [], "no examples"),
        ([0.7, 0.7, 0.7], [1, 0, 0], "one score, all chosen at 0.5 as well"),
    ],
)
def test_a_half_stays_where_nothing_beats_it(scores, targets, reason):
    assert (best_threshold(scores, targets) == 0.5) == (reason is not None)


def test_of_equally_good_thresholds_the_nearest_to_a_half_is_taken():
    # F1 with the top 1, 2, 3, 4 chosen: 2/3, 1/2, 2/5, 2/3
    assert best_threshold([0.4, 0.35, 0.2, 0.1], [1, 0, 0, 1]) == pytest.approx(0.375)
    assert best_threshold([0.95, 0.91, 0.8, 0.7, 0.3], [1, 0, 0, 1, 1]) == pytest.approx(0.15)
    # the first and fourth of five are true: 2/3 with the top 1 or the top 4, which 0.5 chooses as well
    assert best_threshold([0.9, 0.7, 0.65, 0.6, 0.2], [1, 0, 0, 1, 0]) == 0.5
    # F1 with the top 1, 2, 3, 4, 5: 2/3, 1/2, 2/5, 2/3, 4/7; 0.5 is among the worse, .75 and .25 are equally near
    assert best_threshold([0.8, 0.7, 0.4, 0.3, 0.2], [1, 0, 0, 1, 0]) == 0.75


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.25, 0.4, 0.5, 0.5000001, 0.9, 1.0]), st.booleans()), max_size=12)
)
def test_no_threshold_is_better(rows):
    scores, targets = np.array([score for score, _ in rows]), np.array([mark for _, mark in rows], dtype=int)
    threshold = best_threshold(scores, targets)
    assert 0.0 <= threshold <= 1.0
    if not rows:
        return
    reached = f1_at(scores, targets, threshold)
    candidates = [*scores, 0.5, 1.1]
    assert reached == pytest.approx(max(f1_at(scores, targets, candidate) for candidate in candidates))
    if reached == pytest.approx(f1_at(scores, targets, 0.5)):
        assert threshold == 0.5
    rng = np.random.default_rng(len(rows))
    order = rng.permutation(len(rows))
    assert best_threshold(scores[order], targets[order]) == threshold


def test_neighbouring_numbers_have_none_between():
    low = 0.3
    for _ in range(4):  # the midpoint rounds to either of them
        high = float(np.nextafter(low, 1.0))
        assert f1_at([high, low], [1, 0], best_threshold([high, low], [1, 0])) == 1.0
        low = high


def test_labels_are_tuned_each_by_itself_on_what_the_temperature_gives():
    rng = np.random.default_rng(2)
    logits = (rng.normal(size=(300, 3)) * 4 - 3).astype(np.float32)
    targets = (rng.random((300, 3)) < 1 / (1 + np.exp(-logits / 2))).astype(np.float32)
    targets[:, 2] = 0
    task = make_task("multilabel", ["a", "b", "c"])
    rows, encoded = outputs(logits), Encoded(targets)
    settings = task.tune(encoded, rows)
    assert sorted(settings) == ["temperature", "thresholds"]
    assert settings["temperature"] == pytest.approx(2.0, rel=0.3)
    tuned = make_task("multilabel", ["a", "b", "c"], settings=settings)
    assert tuned.settings.temperature == settings["temperature"]
    before, after = task.decide(encoded, rows), tuned.decide(encoded, rows)
    gains = [f1_score(targets[:, k], after[:, k]) - f1_score(targets[:, k], before[:, k]) for k in range(2)]
    assert min(gains) >= 0
    assert max(gains) > 0
    for label, threshold in enumerate(settings["thresholds"]):
        scores = np.array([row["probabilities"]["abc"[label]] for row in tuned.decode(encoded, rows)])
        assert after[:, label].tolist() == (scores >= threshold).astype(int).tolist()
    chosen = [[name for name, mark in zip("abc", row, strict=True) if mark] for row in after]
    assert [row["labels"] for row in tuned.decode(encoded, rows)] == chosen


def test_thresholds_are_those_of_the_score_that_decides():
    """For a rare label that is hard to detect, macro F1 gains by often predicting it, micro F1 by never doing so."""
    rng = np.random.default_rng(8)
    targets = np.stack([rng.random(400) < 0.5, rng.random(400) < 0.02], axis=1).astype(np.float32)
    logits = np.stack([6 * targets[:, 0] - 3 + 3 * rng.normal(size=400), rng.normal(size=400) - 1], axis=1)
    rows, encoded = outputs(logits.astype(np.float32)), Encoded(targets)
    scores = {}
    for primary in ("f1_macro", "f1_micro"):
        settings = make_task("multilabel", ["common", "rare"], primary=primary).tune(encoded, rows)
        task = make_task("multilabel", ["common", "rare"], primary=primary, settings=settings)
        metric = task.metric()
        metric.update(task.decide(encoded, rows), targets)
        scores[primary] = metric.compute()
    plain = make_task("multilabel", ["common", "rare"])
    metric = plain.metric()
    metric.update(plain.decide(encoded, rows), targets)
    for primary, found in scores.items():
        assert found[primary] == max(other[primary] for other in scores.values()) >= metric.compute()[primary]
    assert scores["f1_micro"]["f1_micro"] > scores["f1_macro"]["f1_micro"] + 0.01
    assert scores["f1_macro"]["f1_macro"] > scores["f1_micro"]["f1_macro"]


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(
            st.tuples(*[st.sampled_from([0.1, 0.4, 0.5, 0.9, 1.0])] * 2), st.tuples(st.booleans(), st.booleans())
        ),
        min_size=1,
        max_size=7,
    )
)
def test_no_pair_of_thresholds_has_a_higher_micro_f1(rows):
    scores, targets = np.array([score for score, _ in rows]), np.array([marks for _, marks in rows], dtype=int)

    def micro(thresholds):
        return f1_at(scores, targets, thresholds, "micro")

    found = best_thresholds(scores, targets, "f1_micro")
    assert all(0.0 <= threshold <= 1.0 for threshold in found)
    candidates = [0.1, 0.4, 0.5, 0.9, 1.0]
    assert micro(found) >= max(micro(pair) for pair in product(candidates, candidates)) - 1e-12
    if micro(found) == micro([0.5, 0.5]):
        assert found == [0.5, 0.5]
    assert best_thresholds(scores, targets, "exact_match") == [0.5, 0.5]


@pytest.mark.parametrize("kind", ["single", "pair"])
def test_a_temperature_changes_probabilities_and_no_decision(kind):
    rng = np.random.default_rng(6)
    logits = (rng.normal(size=(100, 3)) * 5).astype(np.float32)
    targets = (logits / 4 + rng.gumbel(size=logits.shape)).argmax(axis=1)  # draws of a softmax at temperature 4
    task = make_task(kind, ["a", "b", "c"])
    settings = task.tune(Encoded(targets), outputs(logits))
    assert settings == tune_classes(logits, targets)
    assert settings["temperature"] > 2
    tuned = make_task(kind, ["a", "b", "c"], settings=settings)
    assert (tuned.decide(None, outputs(logits)) == task.decide(None, outputs(logits))).all()
    scaled = np.exp(logits[0] / settings["temperature"])
    row = tuned.decode(None, outputs(logits))[0]
    assert list(row["probabilities"].values()) == pytest.approx(scaled / scaled.sum(), rel=1e-5)
    assert row["label"] == task.decode(None, outputs(logits))[0]["label"]


@pytest.mark.parametrize(
    ("logits", "targets"),
    [
        ([[-1.0, 2.0, 1.0]], [2]),  # a single example, of which a temperature of 3.6 would be best
        ([[2.0, 0.0], [1.0, 0.0]], [0, 0]),  # one class, always right: the colder, the better
        ([[40.0, 0.0], [0.0, 30.0]], [0, 1]),  # right without any measurable loss
        ([[2.0, 0.0], [0.0, 2.0]], [1, 0]),  # always wrong: the warmer, the better
        ([[2.0, -1.0]], [[1, 1]]),  # a single example with labels
    ],
)
def test_too_little_data_determines_no_setting(logits, targets):
    """Regression: a temperature at the edge of the range was stored, 0.05 or 20."""
    logits, targets = np.array(logits, dtype=np.float32), np.array(targets)
    names = ["a", "b", "c"][: logits.shape[1]]
    task = make_task("single" if targets.ndim == 1 else "multilabel", names)
    assert task.tune(Encoded(targets), outputs(logits)) == {}


@pytest.mark.parametrize(
    ("targets", "thresholds"),
    [
        ([[1, 0], [0, 1], [0, 0]], [0.5, 0.5]),  # all right
        ([[0, 1], [1, 0], [1, 1]], [0.0, 0.0]),  # all wrong: nothing is better than to choose every label
    ],
)
def test_thresholds_need_no_temperature(targets, thresholds):
    """Regression: where the examples determine no temperature, thresholds were not fitted either."""
    logits = np.array([[2.0, -1.0], [-1.0, 2.0], [-3.0, -3.0]], dtype=np.float32)
    settings = make_task("multilabel", ["a", "b"]).tune(Encoded(np.array(targets)), outputs(logits))
    assert settings["temperature"] == 1.0
    assert settings["thresholds"] == pytest.approx(thresholds, abs=0.1)


@pytest.mark.parametrize("answers", [(), (Answer("a", 0),)])
def test_questions_that_are_alike_determine_no_null_threshold(answers):
    questions = [Question(str(number), "q", "a b", answers, number) for number in (1, 2)]
    task = make_task("span", settings={"has_unanswerable": True})
    assert task.tune(SimpleNamespace(questions=questions), []) == {}


def test_a_score_has_nothing_to_tune():
    assert make_task("regression").tune is None
    assert make_task("regression").scored_logits is None


@pytest.mark.parametrize(
    "settings",
    [
        {"thresholds": [0.5]}, {"thresholds": [0.5, 1.5]}, {"thresholds": ["a", "b"]}, {"thresholds": 0.5},
        {"thresholds": [0.5, float("nan")]}, {"temperature": 0}, {"temperature": "hot"}, {"temperature": 1e-300},
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(settings):
    with pytest.raises(ValueError, match=r"threshold|temperature"):
        make_task("multilabel", ["a", "b"], settings=settings)


def test_thresholds_without_settings():
    assert checked_thresholds(None, 3).tolist() == [0.5] * 3


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("inf"), float("nan"), "2", True, None, 1e-300, 1e300])
@pytest.mark.parametrize("kind", ["single", "tagging", "choice"])
def test_a_temperature_that_nothing_can_be_divided_by_is_refused(kind, temperature):
    with pytest.raises(ConfigError, match="settings: temperature = "):
        make_task(kind, ["O"], settings={"temperature": temperature})
