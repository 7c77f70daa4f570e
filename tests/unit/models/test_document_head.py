"""Title-guided attention compared with its equations written out document by document."""

import numpy as np
import pytest
import torch
from tests.device_reads import Reads

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.errors import ConfigError
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.models.heads import DocumentHead
from maskloom.models.recurrent_config import GruConfig
from maskloom.runs.export import write_onnx

SIZE, COUNTS = 6, np.array([3, 2, 5])


@pytest.fixture
def head():
    head = DocumentHead(SIZE, 4, 0.0).double()
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(generator=draws)
    return head


@pytest.fixture
def vectors():
    return torch.randn(int(COUNTS.sum()), SIZE, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def read_alone(head, vectors):
    """Return the logits of one document, computed by torch's own GRU and a loop over queries."""
    title, sentences = vectors[0], vectors[1:]
    forwards, _ = head.sentences.forwards(sentences)
    backwards, _ = head.sentences.backwards(sentences.flip(0))
    states = torch.cat([forwards, backwards.flip(0)], 1)
    keys = torch.tanh(states @ head.key.weight.T + head.key.bias)
    read = [torch.softmax(keys @ query, 0) @ states for query in (title, head.query)]
    return torch.cat([title, *read]) @ head.dense.weight.T + head.dense.bias


def test_each_document_is_read_as_if_alone(head, vectors):
    expected = torch.stack([read_alone(head, part) for part in vectors.split(COUNTS.tolist())])
    torch.testing.assert_close(head(vectors, COUNTS), expected, rtol=1e-10, atol=1e-10)


def test_what_a_document_uses_is_copied_while_the_host_goes_on(head, vectors):
    with Reads() as reads:
        head(vectors, COUNTS, (True, False, True))
    assert "new_tensor" not in reads.found


def test_gradients_are_those_of_the_equations(head, vectors):
    vectors.requires_grad_()
    inputs = [vectors, *head.parameters()]
    alone = torch.stack([read_alone(head, part) for part in vectors.split(COUNTS.tolist())])
    for ours, plain in zip(
        torch.autograd.grad(head(vectors, COUNTS).square().sum(), inputs),
        torch.autograd.grad(alone.square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours, plain, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("left_out", range(3))
def test_a_part_that_is_left_out_counts_for_nothing(head, vectors, left_out):
    uses = tuple(number != left_out for number in range(3))
    found = head(vectors, COUNTS, uses)
    assert not torch.allclose(found, head(vectors, COUNTS))
    with torch.no_grad():
        head.dense.weight.view(4, 3, SIZE)[:, left_out] = 0.0
    torch.testing.assert_close(found, head(vectors, COUNTS))


def test_the_title_chooses_among_the_sentences(head, vectors):
    other = vectors.clone()
    other[0] = -other[0]
    guided, own = (False, True, False), (False, False, True)
    assert not torch.allclose(head(vectors, COUNTS, guided)[0], head(other, COUNTS, guided)[0])
    torch.testing.assert_close(head(vectors, COUNTS, guided)[1:], head(other, COUNTS, guided)[1:])
    torch.testing.assert_close(head(vectors, COUNTS, own), head(other, COUNTS, own))


SMALL_BERT = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


@pytest.mark.parametrize(
    "config",
    [
        BertConfig(vocab_size=9, hidden_size=8, **SMALL_BERT),
        GruConfig(vocab_size=9, hidden_size=8, pooling="attention"),
    ],
)
def test_it_is_saved_with_its_encoder(config, tmp_path):
    model = build_model(config, ("document",), 3, seed=1)
    save_model(model, tmp_path)
    opened, report = load_model(tmp_path)
    assert not report.new_parameters
    assert "document" in opened.heads
    for name, values in model.state_dict().items():
        assert torch.equal(opened.state_dict()[name], values), name


def test_what_it_cannot_do_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="hidden size 7 must be even: the two directions"):
        DocumentHead(7, 2, 0.0)
    pytest.importorskip("onnxscript")
    save_model(build_model(BertConfig(vocab_size=9, hidden_size=8, **SMALL_BERT), ("document",), 3, seed=1), tmp_path)
    with pytest.raises(ConfigError, match="a model of documents cannot be exported to ONNX"):
        write_onnx(tmp_path)
