import numpy as np
import pytest
import torch

from maskloom.config import PretrainRecipe
from maskloom.data.batch import PretrainingBatch
from maskloom.errors import ConfigError
from maskloom.models.assembled import build_model
from maskloom.models.recurrent_config import GruConfig, LstmConfig, RnnConfig
from maskloom.objectives.carrying import with_carry
from maskloom.objectives.pretraining import PRETRAINING
from maskloom.runs.pretraining_plan import check_model

ROW = PRETRAINING["carried_lm"]
IDS = np.random.default_rng(0).integers(0, 20, (2, 11))


def model_of(config_type=LstmConfig):
    config = config_type(vocab_size=20, hidden_size=8, num_hidden_layers=2, causal=True, hidden_dropout_prob=0.0)
    return build_model(config, ("lm",), seed=1)


def batch(first, last, begins=None):
    lengths = np.full(2, last - first)
    return PretrainingBatch(
        token_ids=IDS[:, first:last].ravel(),
        segment_ids=np.zeros(lengths.sum(), dtype=np.int64),
        lengths=lengths,
        mlm_positions=np.arange(lengths.sum()),
        mlm_labels=IDS[:, first + 1 : last + 1].ravel(),
        nsp_labels=None,
        begins=begins,
    )


@pytest.mark.parametrize("config_type", [RnnConfig, LstmConfig, GruConfig])
def test_a_text_in_rows_that_go_on_has_the_loss_of_the_whole(config_type):
    model, objective = model_of(config_type), ROW.objective(ROW.part, None)
    whole = objective.loss_sums(model, with_carry(batch(0, 10), objective, model, None))["lm"]
    first = with_carry(batch(0, 4), objective, model, None)
    losses = [objective.loss_sums(model, first)["lm"]]
    second = with_carry(batch(4, 10), objective, model, first.carried_on())
    losses.append(objective.loss_sums(model, second)["lm"])
    torch.testing.assert_close(sum(losses), whole, rtol=1e-6, atol=0)
    alone = objective.loss_sums(model, with_carry(batch(4, 10), objective, model, None))["lm"]
    assert abs(float(alone.detach() - losses[1].detach())) > 1e-4
    with torch.no_grad():
        evaluated = objective.evaluation_sums(model, second)
    assert evaluated["lm_loss"] == pytest.approx(float(losses[1].detach()), rel=1e-6)


def test_gradients_end_where_a_row_begins_and_rows_that_begin_anew_have_no_state():
    model, objective = model_of(), ROW.objective(ROW.part, None)
    first = with_carry(batch(0, 4), objective, model, None)
    objective.loss_sums(model, first)
    assert not any(state.requires_grad for state in first.carried_on())
    mixed = with_carry(batch(4, 10, begins=np.array([True, False])), objective, model, first.carried_on())
    assert [bool(state[0].any()) for state in mixed.carry] == [False, False]
    assert [bool(state[1].any()) for state in mixed.carry] == [True, True]


def test_micro_batches_change_no_loss_and_no_state():
    model, objective = model_of(), ROW.objective(ROW.part, None)
    first = with_carry(batch(0, 4), objective, model, None)
    objective.loss_sums(model, first)
    whole, parted = (with_carry(batch(4, 10), objective, model, first.carried_on()) for _ in range(2))
    loss = objective.loss_sums(model, whole)["lm"]
    parts = sum(objective.loss_sums(model, part)["lm"] for part in parted.split(1))
    torch.testing.assert_close(parts, loss, rtol=1e-6, atol=0)
    for one, other in zip(whole.carried_on(), parted.carried_on(), strict=True):
        torch.testing.assert_close(one, other)


def test_only_recurrent_networks_carry_state():
    def recipe(architecture):
        return PretrainRecipe(objective="carried_lm", model={"architecture": architecture, "size": "tiny"})

    check_model(recipe("lstm"))
    with pytest.raises(ConfigError, match=r"carries state, but a gpt has none; .* one of 'rnn', 'lstm', 'gru'"):
        check_model(recipe("gpt"))
