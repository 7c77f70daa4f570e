import numpy as np
import pytest

from maskloom.errors import ConfigError
from maskloom.tasks.classification import kind_of_problem
from maskloom.tasks.kinds import make_task


def outputs(rows):
    """Return one array of a single row per example."""
    return [np.array([row], dtype=np.float32) for row in rows]


def test_class_probabilities_by_name():
    task = make_task("single", ["no", "yes", "maybe"])
    (first, second) = task.decode(None, outputs([[0.0, 2.0, 1.0], [800.0, -800.0, 0.0]]))
    assert first["label"] == "yes"
    expected = np.exp([0, 2, 1]) / np.exp([0, 2, 1]).sum()
    assert list(first["probabilities"].values()) == pytest.approx(expected)
    assert list(first["probabilities"]) == ["no", "yes", "maybe"]
    assert second["probabilities"]["no"] == 1.0
    assert task.num_outputs == 3


def test_several_labels_at_the_threshold():
    task = make_task("multilabel", ["a", "b"])
    logits = outputs([[0.0, -1e-6], [-900.0, 900.0]])
    first, second = task.decode(None, logits)
    assert first["labels"] == ["a"]
    assert second["labels"] == ["b"]
    assert second["probabilities"] == {"a": 0.0, "b": 1.0}
    assert task.decide(None, logits).tolist() == [[1, 0], [0, 1]]


def test_scores_keep_their_scale():
    task = make_task("regression")
    assert task.decode(None, outputs([[4.25]])) == [{"score": 4.25}]
    assert task.num_outputs == 1


def test_unknown_scores_are_refused_before_training():
    with pytest.raises(ValueError, match="'bleu' is not one of"):
        make_task("pair", ["a", "b"], primary="bleu")


def test_unknown_kinds_are_refused():
    with pytest.raises(ConfigError, match="unknown task 'parsing'; known: single, pair"):
        make_task("parsing")


@pytest.mark.parametrize(
    ("problem_type", "num_labels", "kind"),
    [
        ("multi_label_classification", 3, "multilabel"),
        ("regression", 1, "regression"),
        (None, 1, "regression"),
        (None, 2, "single"),
        ("single_label_classification", 2, "single"),
    ],
)
def test_kind_of_foreign_models(problem_type, num_labels, kind):
    assert kind_of_problem(problem_type, num_labels) == kind
