import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from maskloom.config import PretrainRecipe
from maskloom.data.batch import ClassificationBatch, PackedBatch
from maskloom.data.spelling import BothWaysBatch, spelled_words
from maskloom.errors import ConfigError
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import build_model
from maskloom.models.elmo_config import ElmoConfig
from maskloom.objectives.carrying import with_carry
from maskloom.objectives.objective import WithMixPenalty
from maskloom.objectives.pretraining import PRETRAINING
from maskloom.runs.pretraining_plan import check_model
from maskloom.text.spelled_tokenizer import SpelledTokenizer
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.training.faults.nonfinite import NonFiniteStepError, write_dump
from maskloom.training.loop import train_steps
from maskloom.training.ranks.ranks import ONE_RANK
from maskloom.training.settings import TrainingSection
from maskloom.training.state import TrainState
from tools.replaying import replay_dump

ROW = PRETRAINING["bidirectional_lm"]
VOCABULARY = Vocabulary([*SPECIAL_TOKENS, "cat", "dog", "sees", "a", "the"])
BEGIN, END = VOCABULARY.cls_id, VOCABULARY.sep_id
# two rows, each of which continues across sentences
ROWS = np.array([[BEGIN, 9, 5, 7, 8, 6, END, BEGIN, 5, END], [BEGIN, 6, 7, 5, END, BEGIN, 8, 6, 7, END]])


def model_of():
    config = ElmoConfig(
        vocab_size=len(VOCABULARY), hidden_size=12, intermediate_size=9, filters=[[1, 4], [2, 5]],
        hidden_dropout_prob=0.0, initializer_range=0.5,
    )  # fmt: skip
    return build_model(config, ("bilm",), seed=1)


def batch(first, last, rows=ROWS, backward=None):
    backward = rows[:, ::-1] if backward is None else backward
    lengths = np.full(len(rows), last - first)
    return BothWaysBatch(
        token_ids=rows[:, first:last].ravel(),
        segment_ids=np.zeros(lengths.sum(), dtype=np.int64),
        lengths=lengths,
        mlm_positions=np.arange(lengths.sum()),
        mlm_labels=rows[:, first + 1 : last + 1].ravel(),
        nsp_labels=None,
        backward_ids=backward[:, first:last].ravel(),
        backward_labels=backward[:, first + 1 : last + 1].ravel(),
        spelling=spelled_words(VOCABULARY),
    )


def losses_of(batches, model, objective):
    carry, found = None, []
    for plain in batches:
        carried = with_carry(plain, objective, model, carry)
        found.append(objective.loss_sums(model, carried)["bilm"])
        carry = carried.carried_on()
    return found


def test_it_is_the_cross_entropy_of_what_the_encoder_gives_for_a_sentence():
    model, objective = model_of(), ROW.objective(ROW.part, None)
    sentence = ROWS[:1, :7]
    (loss,) = losses_of([batch(0, 6, sentence)], model, objective)
    words = [VOCABULARY.tokens[index] for index in sentence[0, 1:-1]]
    ids = torch.tensor(SpelledTokenizer.of().encode(" ".join(words)).ids)
    layout = SequenceLayout.from_lengths([len(ids)])
    output = model.encoder.encode_packed(ids, ids * 0, layout, keep_hidden_states=True)
    top = output.hidden_states[-1][~torch.tensor(SpelledTokenizer.of().vocabulary.is_continuation)[ids]]
    labels, head = torch.from_numpy(sentence[0]), model.heads["bilm"]
    forward = F.cross_entropy(head(top[:-1, :6]), labels[1:], reduction="sum")
    backward = F.cross_entropy(head(top[1:, 6:]), labels[:-1], reduction="sum")
    torch.testing.assert_close(loss, forward + backward, rtol=1e-5, atol=0)
    assert objective.target_counts(batch(0, 6, sentence)) == {"bilm": 12.0}
    torch.testing.assert_close(head(top[:1]), head(top[:1, :6]) + head(top[:1, 6:]))


def test_a_text_in_rows_that_go_on_has_the_loss_of_the_whole_and_so_have_micro_batches():
    model, objective = model_of(), ROW.objective(ROW.part, None)
    (whole,) = losses_of([batch(0, 9)], model, objective)
    torch.testing.assert_close(sum(losses_of([batch(0, 4), batch(4, 9)], model, objective)), whole, rtol=1e-5, atol=0)
    alone = losses_of([batch(0, 4)], model, objective)[0] + losses_of([batch(4, 9)], model, objective)[0]
    assert abs(float((alone - whole).detach())) > 1e-3
    carried = with_carry(batch(0, 9), objective, model, None)
    parts = [objective.loss_sums(model, part)["bilm"] for part in carried.split(1)]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-5, atol=0)
    assert [len(state) for state in carried.carried_on()] == [2, 2]


class Waits(TorchDispatchMode):
    """Collects the operations for which the host would wait for a GPU."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, indices = func.overloadpacket.__name__, args[1:2]
        masks = [x for x in tree_leaves(indices) if isinstance(x, torch.Tensor) and x.dtype == torch.bool]
        if name in ("nonzero", "bincount", "_local_scalar_dense", "_unique2") or (name.startswith("index") and masks):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def test_no_gpu_is_waited_for_within_a_batch(monkeypatch):
    model, objective = model_of().train(), ROW.objective(ROW.part, None)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda _: pytest.fail("a copy to the host"))
    batches = [batch(0, 4), replace(batch(4, 9), begins=np.array([True, False]))]
    with Waits() as waits:
        for loss in losses_of(batches, model, objective):
            loss.backward()
    assert waits.found == ["_local_scalar_dense"] * 2  # the loss on a CPU looks for tiny probabilities, once a batch


@torch.no_grad()
def test_the_perplexity_of_each_way_is_told():
    model, objective = model_of(), ROW.objective(ROW.part, None)
    carried = with_carry(batch(0, 9), objective, model, None)
    metrics = objective.evaluation_metrics(objective.evaluation_sums(model, carried))
    loss = float(objective.loss_sums(model, carried)["bilm"]) / 36
    assert metrics["bilm_loss"] == metrics["loss"] == pytest.approx(loss, rel=1e-6)
    assert metrics["bilm_perplexity"] == pytest.approx(math.exp(loss), rel=1e-6)
    ways = math.sqrt(metrics["forward_perplexity"] * metrics["backward_perplexity"])
    assert ways == pytest.approx(metrics["bilm_perplexity"], rel=1e-6)
    assert metrics["forward_perplexity"] != metrics["backward_perplexity"]
    other = with_carry(batch(0, 9, backward=ROWS), objective, model, None)
    changed = objective.evaluation_metrics(objective.evaluation_sums(model, other))
    assert changed["forward_perplexity"] == pytest.approx(metrics["forward_perplexity"])
    assert changed["backward_perplexity"] != pytest.approx(metrics["backward_perplexity"])


def test_it_and_elmo_belong_together():
    def recipe(objective, **model):
        return PretrainRecipe(objective=objective, model={"size": "tiny", **model}, data={"next_sentence": False})

    assert PretrainRecipe(objective="bidirectional_lm").model.architecture == "elmo"
    assert PretrainRecipe(objective="bidirectional_lm").data.max_length == 20
    check_model(recipe("bidirectional_lm"))
    with pytest.raises(
        ConfigError, match=r"lstm models read tokens of a vocabulary; model\.architecture must be one of 'elmo'"
    ):
        check_model(recipe("bidirectional_lm", architecture="lstm"))
    with pytest.raises(ConfigError, match=r"elmo models read words by .* objective must be one of 'bidirectional_lm'"):
        check_model(recipe("masked_lm", architecture="elmo"))
    with pytest.raises(ValueError, match=r"leave out data\.next_sentence = true"):
        PretrainRecipe(objective="bidirectional_lm", data={"next_sentence": True})


class Nothing:
    """An objective without a loss."""

    def target_counts(self, batch):
        return {"task": 1.0}

    def loss_sums(self, model, batch):
        return {"task": torch.zeros(())}


def test_a_penalty_is_the_squares_of_the_weights_of_a_mix_in_whatever_micro_batches():
    model, objective = model_of(), WithMixPenalty(Nothing(), 0.5)
    model.encoder.mix.weights.data.copy_(torch.tensor([1.0, -2.0, 3.0]))
    ids = np.zeros(6, dtype=np.int64)
    whole = ClassificationBatch(ids, ids, np.array([2, 3, 1]), labels=None, indices=np.arange(3))
    counts = objective.target_counts(whole)
    for parts in ([whole], whole.split(2)):
        loss = sum(float(objective.loss_sums(model, part)["mix"].detach()) for part in parts) / counts["mix"]
        assert loss == pytest.approx(0.5 * 14.0)
    assert isinstance(whole, PackedBatch)


@pytest.mark.parametrize("bad", [1, 2], ids=["without a carry", "with one"])
def test_a_step_that_is_not_finite_is_dumped_and_replayed(tmp_path, bad):
    model, objective = model_of(), ROW.objective(ROW.part, None)
    settings = TrainingSection(steps=2, micro_batch_size=1, warmup_ratio=0.0)
    state = TrainState.fresh(model, settings)

    def next_batch(position):
        number = position.get("number", 0)
        if number + 1 == bad:
            next(model.parameters()).register_hook(lambda gradient: gradient * math.inf)
        return batch(4 * number, 4 * number + 4), {"number": number + 1}

    with pytest.raises(NonFiniteStepError) as caught:
        list(train_steps(state, objective, next_batch, settings=settings, seed=4))
    assert caught.value.report.step == bad
    session: Any = SimpleNamespace(state=state, objective=objective, settings=settings, seed=4, ranks=ONE_RANK)
    folder = write_dump(tmp_path, caught.value, session)
    assert (folder / "carry.safetensors").exists() == (bad == 2)
    losses = replay_dump(folder, model_of(), objective).losses
    assert losses == caught.value.report.losses
    assert math.isfinite(losses["bilm"])
