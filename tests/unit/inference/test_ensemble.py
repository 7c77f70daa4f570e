from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, logit, logsumexp, softmax

from maskloom.errors import ConfigError, DataError
from maskloom.inference.ensemble import Ensemble, average_rows, open_models
from maskloom.inference.predictor import Predictor
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.system.foreign_files import restart_models
from maskloom.tasks.examples import Example, ReadExamples, ReadingReport
from maskloom.tasks.kinds import make_task
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
LABELS = {"single": ("a", "b", "c"), "pair": ("a", "b", "c"), "multilabel": ("a", "b", "c"), "regression": ()}


def member(seed, kind="single", labels=None, words=WORDS, max_length=16, settings=None, about=None, lowercase=True):
    task = make_task(kind, LABELS[kind] if labels is None else labels, settings=settings)
    config = BertConfig(
        vocab_size=len(SPECIAL) + len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=16, initializer_range=0.5,
    )  # fmt: skip
    model = build_model(config, task.heads, task.num_outputs, seed=seed)
    tokenizer = WordPieceTokenizer(Vocabulary([*SPECIAL, *words]), max_length=16, lowercase=lowercase)
    return Predictor(model, tokenizer, task=task, max_length=max_length, settings=about or {})


made_once = cache(member)  # for tests that only predict


def examples(kind="single", num_examples=11):
    rng = np.random.default_rng(8)
    rows = []
    for line in range(1, num_examples + 1):
        text, other = (" ".join(rng.choice(WORDS, rng.integers(1, 12))) for _ in range(2))
        label = {
            "multilabel": tuple(name for name in "abc" if rng.random() < 0.5), "regression": float(rng.normal()),
        }.get(kind, str(rng.choice(list("abc"))))  # fmt: skip
        rows.append(Example(text, other if kind == "pair" else None, label, line))
    return ReadExamples(rows, ReadingReport(Path("data.tsv")))


def numbers(predictions):
    """Return all scores and probabilities of some predictions, in order."""
    found = []
    for row in predictions:
        found += [row["score"]] if "score" in row else list(row["probabilities"].values())
    return found


def decisions(predictions):
    return [row.get("label", row.get("labels")) for row in predictions]


@pytest.mark.parametrize("average", ["probabilities", "logits"])
@pytest.mark.parametrize("kind", list(LABELS))
def test_one_model_or_one_twice_is_that_model(kind, average):
    one, data = made_once(1, kind), examples(kind)
    expected = one.predict_examples(data)
    loss = one.outputs(one.encoded(data))
    for members in ([one], [one, one]):
        ensemble = Ensemble(members, average=average)
        found = ensemble.predict_examples(data)
        assert decisions(found) == decisions(expected)
        assert numbers(found) == pytest.approx(numbers(expected), abs=1e-6)
        outputs = ensemble.outputs(ensemble.encoded(data))
        assert outputs.loss_sum == pytest.approx(loss.loss_sum, rel=1e-5)
        assert outputs.weight == loss.weight


@pytest.mark.parametrize("kind", list(LABELS))
def test_probabilities_are_the_mean_of_those_of_the_members(kind):
    members, data = [made_once(seed, kind) for seed in (1, 2, 3)], examples(kind)
    expected = np.mean([numbers(one.predict_examples(data)) for one in members], axis=0)
    assert numbers(Ensemble(members).predict_examples(data)) == pytest.approx(expected, abs=1e-6)
    assert not np.allclose(expected, numbers(members[0].predict_examples(data)), atol=1e-2)


@pytest.mark.parametrize("average", ["probabilities", "logits"])
@pytest.mark.parametrize("kind", list(LABELS))
def test_the_order_of_members_changes_no_bit(kind, average):
    members, data = [made_once(seed, kind) for seed in (1, 2, 3, 4)], examples(kind)
    one, other = Ensemble(members, average=average), Ensemble(members[::-1], average=average)
    rows, turned = (each.outputs(each.encoded(data)).rows for each in (one, other))
    assert all((row == back).all() for row, back in zip(rows, turned, strict=True))


def test_a_sum_that_depends_on_its_order_is_made_in_one_order():
    members = [np.array([[value]]) for value in (1e16, 1.0, 1.0, -1e16)]
    orders = [[0, 1, 2, 3], [0, 3, 1, 2], [1, 2, 0, 3], [3, 2, 1, 0]]
    found = {float(average_rows("regression", [members[k] for k in order], "logits")[0, 0]) for order in orders}
    assert len(found) == 1


def test_averages_by_hand():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 5, 3)).astype(np.float32) * 4
    mean = (softmax(first, axis=1) + softmax(second, axis=1)) / 2
    for kind in ("single", "pair", "tagging"):
        assert average_rows(kind, [first, second], "probabilities") == pytest.approx(np.log(mean), abs=1e-5)
    # choices; then the start and end of an answer over the tokens of a window, whose overall level is kept
    mean = (softmax(first, axis=0) + softmax(second, axis=0)) / 2
    assert average_rows("choice", [first, second], "probabilities") == pytest.approx(np.log(mean), abs=1e-5)
    level = (logsumexp(first, axis=0) + logsumexp(second, axis=0)) / 2
    assert average_rows("span", [first, second], "probabilities") == pytest.approx(np.log(mean) + level, abs=1e-5)
    mean = (expit(first) + expit(second)) / 2
    assert average_rows("multilabel", [first, second], "probabilities") == pytest.approx(logit(mean), abs=1e-4)
    for kind in ("single", "multilabel", "span"):
        assert average_rows(kind, [first, second], "logits") == pytest.approx((first + second) / 2, abs=1e-6)
    assert average_rows("regression", [first, second], "probabilities") == pytest.approx((first + second) / 2, abs=1e-6)


def test_sure_members_stay_finite():
    rows = [np.array([[300.0, -300.0]], dtype=np.float32), np.array([[-300.0, 300.0]], dtype=np.float32)]
    assert average_rows("single", rows, "probabilities") == pytest.approx(np.log([[0.5, 0.5]]))
    assert average_rows("multilabel", rows, "probabilities") == pytest.approx(np.zeros((1, 2)), abs=1e-5)
    alone = average_rows("multilabel", rows[:1], "probabilities")
    assert alone == pytest.approx(rows[0])


def test_each_member_has_its_own_temperature_and_thresholds_are_averaged():
    data = examples("multilabel")
    settings = [
        {"temperature": 0.5, "thresholds": [0.2, 0.5, 0.9]},
        {"temperature": 4.0, "thresholds": [0.4, 0.5, 0.8]},
    ]
    members = [member(seed, "multilabel", settings=each) for seed, each in enumerate(settings)]
    ensemble = Ensemble(members)
    assert ensemble.task.settings.thresholds == pytest.approx([0.3, 0.5, 0.85])
    assert ensemble.task.settings.temperature == 1.0
    expected = np.mean([numbers(one.predict_examples(data)) for one in members], axis=0)
    assert numbers(ensemble.predict_examples(data)) == pytest.approx(expected, abs=1e-6)
    alone = Ensemble(members[:1])
    assert alone.predict_examples(data)[0]["labels"] == members[0].predict_examples(data)[0]["labels"]
    untuned = Ensemble([members[0], member(5, "multilabel")])
    assert untuned.task.settings.thresholds == pytest.approx([0.35, 0.5, 0.7])


@pytest.mark.parametrize(
    ("other", "where"),
    [
        ({"words": WORDS[::-1]}, "from id 5 on, where it has 'theta' and the other 'alpha'"),
        ({"lowercase": False}, "in its merges or rules"),
    ],
)
def test_members_read_the_same_tokens(other, where):
    with pytest.raises(ConfigError, match=f"model 2 .* has a different tokenizer from the first: it differs {where};"):
        Ensemble([member(1), member(2, **other)])


def test_texts_cut_by_a_member_are_counted():
    ensemble = Ensemble([member(1, max_length=6), member(2, max_length=6)])
    ensemble.predict_examples(examples())
    assert ensemble.num_truncated == sum(len(example.text.split()) > 4 for example in examples().examples) > 0
    assert ensemble.predict_examples(ReadExamples([], ReadingReport(Path("data.tsv")))) == []


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (member(1, "multilabel"), r"model 2 .* kind of task: 'multilabel', not 'single'"),
        (member(1, labels=("a", "b", "d")), "in labels: "),
        (member(1, labels=("a", "c", "b")), "in labels: "),
        (member(1, max_length=12), "max_length: 12, not 16"),
        (member(1, about={"takes_pairs": True}), "in whether it takes pairs"),
    ],
)
def test_members_that_differ_are_refused(other, difference):
    with pytest.raises(ConfigError, match=difference):
        Ensemble([member(1), other])


def test_wrong_use_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="at least one"):
        Ensemble([])
    with pytest.raises(ConfigError, match="'median' is not probabilities or logits"):
        Ensemble([member(1)], average="median")
    for folders in (None, "models/a", 7):
        with pytest.raises(ConfigError, match="folders: expected a list of model folders, got"):
            Ensemble.load(folders)
    with pytest.raises(ConfigError, match="--keep-restarts"):
        restart_models(tmp_path)


def test_restarts_are_found_by_seed(tmp_path):
    for seed in (10, 9, 2):
        (tmp_path / "restarts" / f"seed-{seed}" / "model").mkdir(parents=True)
        (tmp_path / "restarts" / f"seed-{seed}" / "model" / "config.json").write_text("{}")
    (tmp_path / "restarts" / "seed-1").mkdir()
    assert [path.parent.name for path in restart_models(tmp_path)] == ["seed-2", "seed-9", "seed-10"]


def test_one_folder_opens_as_itself(monkeypatch):
    monkeypatch.setattr(Predictor, "load", classmethod(lambda cls, folder, max_length=None: member(int(folder))))
    assert isinstance(open_models(["1"]), Predictor)
    with pytest.raises(ConfigError, match="average = 'logits': 1 is one model; give several, or leave it out"):
        open_models("1", average="logits")
    ensemble = open_models(["1", "2"], average="logits")
    assert isinstance(ensemble, Ensemble)
    assert (ensemble.average, len(ensemble.members)) == ("logits", 2)


def test_chains_are_averaged_as_probabilities_and_paths():
    from maskloom.inference.ensemble import _average_chains

    rng = np.random.default_rng(1)
    logs = [values - logsumexp(values, axis=1, keepdims=True) for values in rng.normal(size=(3, 4, 2)) * 3]
    paths = [np.eye(2)[rng.integers(0, 2, 4)] for _ in range(3)]
    rows = [np.concatenate(pair, axis=1) for pair in zip(logs, paths, strict=True)]
    found = _average_chains("tagging", rows, "probabilities")
    assert found[:, :2] == pytest.approx(np.log(np.mean(np.exp(logs), axis=0)), abs=1e-6)
    assert found[:, 2:] == pytest.approx(np.mean(paths, axis=0))
    assert _average_chains("tagging", rows[:1], "probabilities") == pytest.approx(rows[0], abs=1e-6)


def test_what_is_handed_over_in_python_is_answered_by_all():
    members = [member(seed) for seed in (1, 2)]
    ensemble = Ensemble(members)
    (found,) = ensemble.predict(["alpha zeta"])
    singles = [each.predict(["alpha zeta"])[0]["probabilities"] for each in members]
    for label, probability in found["probabilities"].items():
        assert probability == pytest.approx(sum(single[label] for single in singles) / 2, rel=1e-5)
    with pytest.raises(DataError, match="input 1: expected a string, got int"):
        ensemble.predict(["alpha", 7])


def test_unequal_class_weights_do_not_favour_the_first_member():
    settings = [{"class_weights": [1.0, 2.0, 4.0]}, {"class_weights": [4.0, 2.0, 1.0]}]
    members, data = [member(seed, settings=each) for seed, each in enumerate(settings)], examples()
    plain = [member(seed) for seed in range(2)]
    one, other, unweighted = (Ensemble(each) for each in (members, members[::-1], plain))
    outputs = [each.outputs(each.encoded(data)) for each in (one, other, unweighted)]
    assert len({(found.loss_sum, found.weight) for found in outputs}) == 1
    alike = Ensemble([member(seed, settings=settings[0]) for seed in range(2)])
    assert alike.outputs(alike.encoded(data)).weight != outputs[2].weight


def test_models_that_generate_text_are_refused():
    generator: Any = SimpleNamespace(required_task=lambda: make_task("seq2seq", ()))
    with pytest.raises(ConfigError, match="model 1 of the ensemble is a seq2seq model"):
        Ensemble([generator, generator])
