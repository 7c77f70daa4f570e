"""The BiLSTM on packed tokens compared with torch's, and tagger folders compared with transformers."""

import numpy as np
import pytest
import torch
from transformers import AutoModel

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.layers.recurrent import BiLSTM
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("lengths", [[4], [3, 9, 1, 5], [2, 2, 2], list(range(1, 12))])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_outputs_and_gradients_equal_those_of_torch(lengths, num_layers):
    torch.manual_seed(0)
    ours = BiLSTM(5, 8, num_layers=num_layers)
    peer = torch.nn.LSTM(5, 4, num_layers=num_layers, bidirectional=True, batch_first=True)
    peer.load_state_dict(ours.lstm.state_dict())
    vectors = torch.randn(sum(lengths), 5, requires_grad=True)
    copy = vectors.detach().clone().requires_grad_()
    outputs = ours(vectors, SequenceLayout.from_lengths(lengths))
    # torch's runs on one sequence at a time, without packing or padding
    expected = torch.cat([peer(part[None])[0][0] for part in copy.split(lengths)])
    torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-6)
    weights = torch.randn_like(outputs)
    (outputs * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(vectors.grad, copy.grad, rtol=1e-4, atol=1e-6)
    for one, other in zip(ours.parameters(), peer.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_the_gates_by_hand():
    ours = BiLSTM(3, 4, num_layers=1)
    state = {name: values.detach().double().numpy() for name, values in ours.lstm.state_dict().items()}
    vectors = torch.randn(6, 3)
    found = ours(vectors, SequenceLayout.from_lengths([6])).detach().numpy()

    def sigmoid(values):
        return 1 / (1 + np.exp(-values))

    for suffix, order in (("", range(6)), ("_reverse", range(5, -1, -1))):
        hidden, cell = np.zeros(2), np.zeros(2)
        for place in order:
            gates = state[f"weight_ih_l0{suffix}"] @ vectors[place].double().numpy() + state[f"bias_ih_l0{suffix}"]
            gates = gates + state[f"weight_hh_l0{suffix}"] @ hidden + state[f"bias_hh_l0{suffix}"]
            entry, forget, new, out = np.split(gates, 4)
            cell = sigmoid(forget) * cell + sigmoid(entry) * np.tanh(new)
            hidden = sigmoid(out) * np.tanh(cell)
            side = found[place, :2] if suffix == "" else found[place, 2:]
            np.testing.assert_allclose(side, hidden, atol=1e-6)


def test_the_encoder_of_a_saved_tagger_opens_in_transformers(tmp_path):
    config = BertConfig(
        vocab_size=30, hidden_size=12, num_hidden_layers=4, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16,
    )  # fmt: skip
    options = {"bilstm_tagger": {"layers": "scalar_mix", "lstm_size": 6}}
    model = build_model(config, ("bilstm_tagger",), num_labels=3, seed=1, head_options=options)
    save_model(model, tmp_path, extra_config={"maskloom_heads": options})
    peer = AutoModel.from_pretrained(tmp_path).eval()
    ids = torch.randint(0, 30, (2, 9))
    with torch.inference_mode():
        expected = peer(ids, output_hidden_states=True)
        ours = load_model(tmp_path)[0].encoder.eval()(ids, keep_hidden_states=True)
    assert ours.hidden_states is not None
    for one, other in zip(ours.hidden_states, expected.hidden_states, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.pooled, expected.pooler_output, rtol=0, atol=1e-5)
