import itertools
import json
import math

import pytest
import torch

from maskloom.models.assembled import build_model
from maskloom.models.recurrent_config import GruConfig, LstmConfig
from maskloom.reproduce.recurrent import (
    exploding_losses,
    first_token_network,
    gate_shares,
    gradient_norms,
    on_antidiagonal,
    reversal_accuracy,
    rnn_attention,
    rnn_gradients,
)
from maskloom.runs.display import Progress

READERS = ("none", "dot", "scaled_dot", "mlp", "bilinear")


class StageRecorder(Progress):
    """Records the progress that is shown for stages."""

    def __init__(self):
        self.seen = []

    def begin(self, what, total, done=0):
        self.what = what

    def advance(self, done, **figures):
        self.seen.append((self.what, done))


@pytest.mark.parametrize("radius", [0.5, 1.0, 1.5])
def test_of_a_linear_cell_the_slope_is_the_logarithm_of_the_radius(radius):
    norms = gradient_norms(lambda x: x, radius, num_steps=10)
    for steps, norm in enumerate(norms):
        assert math.log(norm) == pytest.approx(steps * math.log(radius), abs=1e-9)


def test_tanh_and_sigmoid_cells_lose_more():
    for radius in (0.5, 1.0):
        tanh = gradient_norms(torch.tanh, radius, num_steps=10)
        sigmoid = gradient_norms(torch.sigmoid, radius, num_steps=10)
        assert tanh[10] < radius**10
        assert all(later <= radius / 4 * norm * (1 + 1e-9) for norm, later in itertools.pairwise(sigmoid))


@pytest.mark.slow
def test_a_gru_whose_gates_begin_open_remembers_the_first_of_a_hundred_tokens():
    sizes = {"vocab_size": 10, "hidden_size": 32, "causal": True, "initializer_range": 0.5}
    for bias, length, num_steps in ((0.0, 5, 200), (5.0, 100, 150)):
        config = GruConfig(**sizes, hidden_dropout_prob=0.0, forget_bias=bias)
        assert first_token_network(config, length, num_steps=num_steps)[1] > 0.95
        assert first_token_network(config, length, num_steps=0)[1] < 0.7
    assert first_token_network(GruConfig(**sizes), 100, num_steps=150)[1] < 0.7


def test_gates_are_counted_by_tenths():
    config = LstmConfig(vocab_size=10, hidden_size=8, causal=True, forget_bias=40.0)
    model = build_model(config, ("classifier",), 2, seed=0).eval()
    model.encoder.layers[0].forwards.bias_ih_l0.data[24:] = -40.0  # of the output gates
    shares = gate_shares(model, 6)
    assert shares["forget"][0.95] == shares["output"][0.05] == 1.0
    assert all(sum(row.values()) == pytest.approx(1.0) and len(row) == 10 for row in shares.values())
    assert shares["input"][0.45] + shares["input"][0.55] > 0.5


def test_the_map_of_attention_is_that_of_a_target(tmp_path):
    accuracies, weights = reversal_accuracy("dot", (1, 3), num_steps=2)
    assert list(accuracies) == [1, 3]
    assert [len(row) for row in weights] == [3] * 4
    assert all(sum(row) == pytest.approx(1.0) for row in weights)
    assert reversal_accuracy("none", (2,), num_steps=1)[1] is None


def test_the_share_on_the_antidiagonal_counts_a_place_on_either_side():
    exact = [[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.25] * 4]
    assert on_antidiagonal(exact) == 1.0
    assert on_antidiagonal([[0.25] * 4] * 5) == pytest.approx((0.5 + 0.75 + 0.75 + 0.5) / 4)
    assert on_antidiagonal([row[::-1] for row in exact[:4]] + exact[4:]) == 0.5


def test_both_write_numbers_and_a_page(tmp_path):
    progress = StageRecorder()
    result = rnn_gradients(tmp_path, lengths=(2,), num_steps=1, progress=progress)
    assert [at for _, at in progress.seen] == [1] * 6
    found = json.loads((tmp_path / "rnn-gradients.json").read_text())
    assert found["slopes"]["linear, 1.5"] == pytest.approx(math.log10(1.5))
    assert set(found["accuracies"]) == {
        "Elman, sigmoid", "Elman, tanh", "LSTM, forget bias 1", "LSTM, forget bias 5", "GRU", "GRU, forget bias 5",
    }  # fmt: skip
    assert (tmp_path / "rnn-gradients.html").read_text().count("<svg") == 7
    assert result["lines"][-1].endswith("rnn-gradients.html")
    progress = StageRecorder()
    rnn_attention(tmp_path, lengths=(2,), num_steps=3, progress=progress)
    assert progress.seen == [(f"digits backwards, attention: {name}", at) for name in READERS for at in (1, 2, 3)]
    assert (tmp_path / "rnn-attention.html").read_text().count("<svg") == 5


def test_clipping_lets_a_network_learn_whose_gradients_explode():
    clipped, plain = (exploding_losses(limit, num_steps=150) for limit in (1.0, None))
    assert len(clipped) == 150
    assert clipped[0] == plain[0] > 1e3
    assert clipped[-1] < 1e-3 * clipped[0]
    assert len(plain) < 20
