"""Figure 1: which inputs each output depends on, by derivatives."""

import re

import torch

from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.reproduce.who_sees_whom import dependence, figure_1


def test_it_is_the_jacobian_of_the_encoder():
    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    encoder = build_model(config, heads=(), seed=0).encoder.double()
    found = dependence(encoder, torch.arange(4))
    step, layout_ids = 1e-6, torch.arange(4)
    layout = SequenceLayout.from_lengths([4], torch.device("cpu"))
    squares = torch.zeros(4, dtype=torch.float64)
    base = encoder.encode_packed(layout_ids, torch.zeros_like(layout_ids), layout).last_hidden_state
    for number in range(8):
        shift = torch.zeros(4, 8, dtype=torch.float64)
        shift[2, number] = step
        handle = encoder.embeddings.register_forward_hook(lambda module, given, output, shift=shift: output + shift)
        moved = encoder.encode_packed(layout_ids, torch.zeros_like(layout_ids), layout).last_hidden_state
        handle.remove()
        squares += ((moved - base) / step).square().sum(1)
    torch.testing.assert_close(found[:, 2], squares.sqrt(), rtol=1e-4, atol=1e-6)


def test_bert_and_elmo_see_all_and_left_to_right_models_what_came_before(tmp_path):
    for name, rows in figure_1(tmp_path).items():
        for output, row in enumerate(rows if name != "lines" else ()):
            assert [value > 0 for value in row] == [name in ("BERT", "ELMo") or at <= output for at in range(len(row))]
    page = (tmp_path / "figure1.html").read_text()
    assert len(re.findall("<title>T", page)) == 2 * 36 + 2 * 21
    assert "<pre>maskloom reproduce figure1 --out DIR</pre>" in page
    assert "- GPT: a token sees itself and those before it\n" in (tmp_path / "figure1.md").read_text()
