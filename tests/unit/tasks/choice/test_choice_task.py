import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from maskloom.errors import DataError
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.tasks.choices import ChoiceExample
from maskloom.tasks.examples import ReadExamples, ReadingReport
from maskloom.tasks.kinds import CHOICE, make_task
from maskloom.tasks.task import evaluate_task, model_outputs
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "ran"]
TOKENIZER = WordPieceTokenizer(Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]), max_length=32)


@pytest.fixture(scope="module")
def model():
    config = BertConfig(
        vocab_size=13, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=32, initializer_range=0.5,
    )  # fmt: skip
    return build_model(config, ("choice",), seed=1).eval()


def read(examples):
    return ReadExamples(examples, ReadingReport(Path("f.csv")))


def random_examples(num, num_choices=4, seed=0):
    draw = np.random.default_rng(seed)

    def text(length):
        return " ".join(draw.choice(WORDS, size=length))

    return [
        ChoiceExample(
            text(draw.integers(1, 6)),
            text(2),
            tuple(text(draw.integers(1, 6)) for _ in range(num_choices)),
            int(draw.integers(num_choices)),
            line,
        )
        for line in range(1, num + 1)
    ]


def outputs_of(model, examples):
    encoded = make_task("choice").encode(read(examples), TOKENIZER, 32)
    return encoded, model_outputs(model, make_task("choice").objective, encoded)


def test_scores_move_with_their_choices(model):
    examples, order = random_examples(5), [2, 0, 3, 1]
    moved = [
        dataclasses.replace(
            one, choices=tuple(one.choices[place] for place in order), label=order.index(one.label or 0)
        )
        for one in examples
    ]
    (_, before), (_, after) = outputs_of(model, examples), outputs_of(model, moved)
    for rows, moved_rows in zip(before.rows, after.rows, strict=True):
        assert rows.shape == (4, 1)
        assert rows.std() > 1e-3
        np.testing.assert_allclose(moved_rows, rows[order], atol=1e-5)
    assert before.loss_sum == pytest.approx(after.loss_sum, rel=1e-5)


def test_a_choice_does_not_see_the_others(model):
    one = random_examples(1)[0]
    other = dataclasses.replace(one, choices=(one.choices[0], "a", "on", "the mat"))
    (_, before), (_, after) = outputs_of(model, [one]), outputs_of(model, [other])
    np.testing.assert_allclose(before.rows[0][0], after.rows[0][0], atol=1e-5)


def test_the_loss_is_that_of_a_softmax_over_choices(model):
    examples = random_examples(6, num_choices=3)
    encoded, outputs = outputs_of(model, examples)
    scores = torch.from_numpy(np.stack([rows[:, 0] for rows in outputs.rows]))
    labels = torch.from_numpy(make_task("choice").targets(encoded))
    assert outputs.loss_sum == pytest.approx(float(torch.nn.functional.cross_entropy(scores, labels, reduction="sum")))
    assert outputs.weight == 6


def test_evaluation_counts_right_choices(model):
    examples = random_examples(20)
    encoded, outputs = outputs_of(model, examples)
    decided = make_task("choice").decide(encoded, outputs.rows)
    truth = np.array([one.label for one in examples])
    evaluation = evaluate_task(model, make_task("choice"), encoded)
    assert evaluation.scores["accuracy"] == pytest.approx((decided == truth).mean())
    assert evaluation.reference == pytest.approx(np.bincount(truth).max() / 20)


def test_decoding_names_the_choice_and_all_probabilities():
    examples = [ChoiceExample("the", "", ("cat", "mat"), None, 1)]
    task = make_task("choice")
    encoded = task.encode(read(examples), TOKENIZER, 32)
    rows = [np.log(np.array([[1.0], [3.0]], dtype=np.float32))]
    (row,) = task.decode(encoded, rows)
    assert (row["choice"], row["choice_text"]) == (1, "mat")
    assert row["probabilities"] == pytest.approx({"0": 0.25, "1": 0.75})
    (cool,) = make_task("choice", settings={"temperature": 2.0}).decode(encoded, rows)
    assert cool["probabilities"]["1"] == pytest.approx(3**0.5 / (1 + 3**0.5))
    assert task.targets(encoded) is None


def test_all_choices_alike_take_the_first():
    assert make_task("choice").decide(None, [np.zeros((4, 1), np.float32)]).tolist() == [0]


def test_unknown_scores_are_refused():
    with pytest.raises(ValueError, match="'f1' is not one of"):
        make_task("choice", primary="f1")


def test_data_that_teaches_nothing_is_refused():
    examples = random_examples(8)
    same = [dataclasses.replace(one, label=1) for one in examples]
    with pytest.raises(DataError, match="choice 1 is right in all 8 rows"):
        CHOICE.check(read(same), read(examples))
    CHOICE.check(read(examples), read(random_examples(8, num_choices=3)))


def test_rows_of_differing_numbers_are_scored_as_by_themselves(model):
    examples = [
        *random_examples(5, num_choices=3),
        *random_examples(5, num_choices=5),
        *random_examples(5, num_choices=2),
    ]
    examples = [dataclasses.replace(one, line=line) for line, one in enumerate(examples, 1)]
    task = make_task("choice")
    encoded = task.encode(read(examples), TOKENIZER, 32)
    outputs = model_outputs(model, task.objective, encoded)
    apart = [task.encode(read([one]), TOKENIZER, 32) for one in examples]
    alone = [model_outputs(model, task.objective, one) for one in apart]
    for ours, theirs in zip(outputs.rows, (one.rows[0] for one in alone), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert outputs.loss_sum == pytest.approx(sum(one.loss_sum for one in alone), rel=1e-5)
    decided = task.decide(encoded, outputs.rows)
    assert [int(rows.argmax()) for rows in outputs.rows] == decided.tolist()
    rows = task.decode(encoded, outputs.rows)
    assert [len(row["probabilities"]) for row in rows] == [3] * 5 + [5] * 5 + [2] * 5
    assert all(sum(row["probabilities"].values()) == pytest.approx(1.0) for row in rows)
    labels = np.where(np.arange(15) % 5 == 0, (decided + 1) % 2, decided)  # a fifth is wrong, so that one is best
    temperature = task.tune(dataclasses.replace(encoded, labels=labels), outputs.rows)["temperature"]
    cold = make_task("choice", settings={"temperature": 1e-6}).decode(encoded, outputs.rows)
    assert temperature > 0
    assert all(0.0 <= share <= 1.0 for row in cold for share in row["probabilities"].values())
