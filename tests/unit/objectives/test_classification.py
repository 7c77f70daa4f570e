import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.device_reads import Reads

from maskloom.data.batch import ClassificationBatch
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.classification import MultiLabelClassification, Regression, SingleLabelClassification
from maskloom.objectives.objective import encode_batch
from maskloom.training.loop import accumulate_gradients

CONFIG = BertConfig(
    vocab_size=37, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=13,
    max_position_embeddings=19, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip


def batch_of(labels):
    rng = np.random.default_rng(0)
    lengths = np.array([5, 9, 3, 7, 4])
    return ClassificationBatch(
        token_ids=rng.integers(0, 37, lengths.sum()),
        segment_ids=rng.integers(0, 2, lengths.sum()),
        lengths=lengths,
        labels=labels,
        indices=np.arange(5),
    )


CASES = {
    "plain": (SingleLabelClassification(), np.array([0, 2, 1, 2, 2]), 3, "classification"),
    "weighted": (SingleLabelClassification((0.5, 2.0, 3.0)), np.array([0, 2, 1, 2, 2]), 3, "classification"),
    "regression": (Regression(), np.array([0, 5, 2.5, 1, 4], dtype=np.float32), 1, "regression"),
    "labels": (
        MultiLabelClassification(),
        np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1]], dtype=np.float32),
        3,
        "multi_label",
    ),
    "weighted labels": (
        MultiLabelClassification((0.5, 2.0, 30.0)),
        np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1]], dtype=np.float32),
        3,
        "multi_label",
    ),
}


def classifier_logits(model, batch):
    return model.heads["classifier"](encode_batch(model, batch).pooled)


def mean_by_torch(case, logits, labels):
    labels = torch.from_numpy(labels)
    if case == "plain":
        return F.cross_entropy(logits, labels)
    if case == "weighted":
        return F.cross_entropy(logits, labels, weight=torch.tensor([0.5, 2.0, 3.0]))
    if case == "regression":
        return F.mse_loss(logits.squeeze(1), labels)
    weights = torch.tensor([0.5, 2.0, 30.0]) if case == "weighted labels" else None
    return F.binary_cross_entropy_with_logits(logits, labels, pos_weight=weights)


@pytest.mark.parametrize("case", CASES)
def test_sum_over_count_is_the_usual_mean(case):
    objective, labels, num_outputs, name = CASES[case]
    model, batch = build_model(CONFIG, ("classifier",), num_outputs, seed=1).eval(), batch_of(labels)
    mean = objective.loss_sums(model, batch)[name] / objective.target_counts(batch)[name]
    torch.testing.assert_close(mean, mean_by_torch(case, classifier_logits(model, batch), labels))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("micro_batch_size", [1, 3])
def test_accumulation_equals_one_batch(case, micro_batch_size):
    objective, labels, num_outputs, _ = CASES[case]
    gradients = []
    for size in (None, micro_batch_size):
        model = build_model(CONFIG, ("classifier",), num_outputs, seed=1).train()
        loss = sum(accumulate_gradients(model, objective, batch_of(labels), size).values())
        flat = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
        gradients.append((loss, torch.cat(flat)))
    (whole_loss, whole), (loss, parts) = gradients
    assert loss == pytest.approx(whole_loss, rel=1e-6)
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_loss_come_from_one_pass(case):
    objective, labels, num_outputs, _ = CASES[case]
    model, batch = build_model(CONFIG, ("classifier",), num_outputs, seed=1).eval(), batch_of(labels)
    outputs = objective.outputs(model, batch)
    assert torch.equal(outputs.rows, classifier_logits(model, batch))
    assert torch.equal(outputs.loss_sum, objective.loss_sum_of(outputs.rows, batch))
    assert objective.outputs(model, batch_of(None)).loss_sum is None
    assert objective.row_counts(batch).tolist() == [1] * len(batch.lengths)


@pytest.mark.parametrize("case", CASES)
def test_no_loss_waits_for_a_copy_of_weights(case):
    objective, labels, num_outputs, _ = CASES[case]
    logits = torch.zeros(5, num_outputs)
    with Reads() as reads:
        objective.loss_sum_of(logits, batch_of(labels))
    assert reads.found == []


def test_labels_are_needed():
    model = build_model(CONFIG, ("classifier",), 2, seed=1)
    with pytest.raises(ValueError, match="no labels"):
        SingleLabelClassification().loss_sums(model, batch_of(None))


@pytest.mark.parity
@pytest.mark.parametrize("case", ["plain", "regression", "labels"])
def test_loss_equals_that_of_transformers(case, tmp_path):
    transformers = pytest.importorskip("transformers")
    from maskloom.checkpoints.huggingface import save_model

    objective, labels, num_outputs, name = CASES[case]
    model, batch = build_model(CONFIG, ("classifier",), num_outputs, seed=1).eval(), batch_of(labels)
    problem = {"plain": "single_label_classification", "regression": "regression"}
    save_model(model, tmp_path, extra_config={"problem_type": problem.get(case, "multi_label_classification")})
    oracle = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    ids, segments, mask = (torch.zeros(5, 9, dtype=torch.long) for _ in range(3))
    for row, (start, length) in enumerate(zip(np.cumsum(batch.lengths) - batch.lengths, batch.lengths, strict=True)):
        ids[row, :length] = torch.from_numpy(batch.token_ids[start : start + length])
        segments[row, :length] = torch.from_numpy(batch.segment_ids[start : start + length])
        mask[row, :length] = 1
    expected = oracle(ids, attention_mask=mask, token_type_ids=segments, labels=torch.from_numpy(labels))
    torch.testing.assert_close(classifier_logits(model, batch), expected.logits, rtol=0, atol=1e-5)
    mean = objective.loss_sums(model, batch)[name] / objective.target_counts(batch)[name]
    torch.testing.assert_close(mean, expected.loss, rtol=1e-5, atol=1e-6)
