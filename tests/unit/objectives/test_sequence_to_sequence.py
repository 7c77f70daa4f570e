"""The loss of targets: the same for any micro-batches, dropout included; and how often it waits for the device."""

import itertools
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.device_reads import Reads

from maskloom.data.batch import SourceTargetBatch
from maskloom.errors import DataError
from maskloom.generation.search import Generation
from maskloom.generation.sources import SourceDecoder
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.architectures import ARCHITECTURES
from maskloom.models.assembled import build_model
from maskloom.models.transformer_config import TransformerConfig
from maskloom.objectives.sequence_to_sequence import SequenceToSequence
from maskloom.training.loop import StepDraws, accumulate_gradients, train_steps
from maskloom.training.settings import TrainingSection
from maskloom.training.state import TrainState


def make_batch(sources, targets):
    draw = np.random.default_rng(0)
    ids, target_ids, labels = (draw.integers(4, 30, sum(lengths)) for lengths in (sources, targets, targets))
    lengths, target_lengths = np.array(sources), np.array(targets)
    marks = np.tile([1, 2], (len(sources), 1))
    return SourceTargetBatch(ids, ids * 0, lengths, target_ids, target_lengths, labels, np.arange(len(sources)), marks)


def make_model():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
    dropouts = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2}
    return build_model(TransformerConfig(vocab_size=30, **sizes, **dropouts), ("decoder",), seed=0).train()


@pytest.mark.parametrize("micro_batch_size", [1, 2])
def test_micro_batches_are_the_whole_batch(micro_batch_size):
    batch, objective = make_batch([5, 2, 9, 3, 1], [3, 7, 2, 3, 4]), SequenceToSequence(0.1)
    assert objective.target_counts(batch) == {"seq2seq": 19.0}
    assert batch.num_tokens == 39
    whole, parted = make_model(), make_model()
    expected = accumulate_gradients(whole, objective, batch, None, draws=StepDraws(0, 7))
    found = accumulate_gradients(parted, objective, batch, micro_batch_size, draws=StepDraws(0, 7))
    assert found == pytest.approx(expected, rel=1e-6)
    for one, other in zip(parted.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-6)
    other = accumulate_gradients(make_model(), objective, batch, None, draws=StepDraws(0, 8))
    assert other != pytest.approx(expected, rel=1e-6)


NAMES = [name for name, row in ARCHITECTURES.items() if row.has_decoder]
WITH_DECODER = pytest.mark.parametrize("name", NAMES)


def make_small(name, dropout=0.0, heads=("decoder",)):
    sizes = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2}
    sizes |= {} if ARCHITECTURES[name].has_state else {"num_attention_heads": 2, "intermediate_size": 20}
    more = {"max_position_embeddings": 64, "hidden_dropout_prob": dropout}
    return build_model(ARCHITECTURES[name].config_type(**sizes, **more), heads, seed=0)


made_once = cache(make_small)  # for tests that only read it


@WITH_DECODER
@pytest.mark.parametrize("wrong", [-1, 30])
@pytest.mark.parametrize(("field", "what"), [("token_ids", "token"), ("target_ids", "target"), ("labels", "label")])
def test_an_id_that_the_model_has_not_is_named(name, field, what, wrong):
    """GPU kernels would end with an assertion that names nothing, and leave the process without its GPU."""
    batch = make_batch([5, 2], [3, 7])
    getattr(batch, field)[-1] = wrong
    with pytest.raises(DataError, match=f"{what} id {wrong}: the model has ids 0 to 29"):
        SequenceToSequence().loss_sums(made_once(name), batch)


def losses_of_gpus(probabilities, _rows, _decoder, _bias, targets):
    return -probabilities.gather(1, targets).squeeze(1).log()


@pytest.mark.parametrize(("name", "micro_batch_size"), [("transformer", None), *((name, 3) for name in NAMES)])
def test_a_step_reads_once_from_its_device(name, micro_batch_size, monkeypatch):
    monkeypatch.setattr("maskloom.layers.vocabulary_loss._losses", losses_of_gpus)  # the CPU's version reads values
    settings = TrainingSection(steps=4, micro_batch_size=micro_batch_size)
    state, batch = TrainState.fresh(make_small(name), settings), make_batch([5, 2, 9, 3, 1], [3, 7, 2, 3, 4])
    steps = train_steps(state, SequenceToSequence(0.1), lambda at: (batch, at), settings=settings, seed=0)
    for _ in range(2):  # from then on, the optimiser's steps are counted on the host
        next(steps)
    with Reads() as reads:
        assert len(list(steps)) == 2
    assert reads.found == ["tolist"] * 2


@WITH_DECODER
def test_no_value_is_read_on_the_way_to_gradients_or_to_a_next_token(name, monkeypatch):
    """Meta tensors, which have no values to read, pass all the way through; dropout is the version of other devices."""
    with torch.device("meta"):
        model = make_small(name, 0.3).train()
    head, batch = model.heads["decoder"], make_batch([5, 2, 9], [3, 7, 2])
    monkeypatch.setattr(head, "loss_sum", lambda rows, labels, _: F.cross_entropy(head.logits(rows), labels))
    (loss,) = SequenceToSequence().loss_sums(model, batch).values()
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)
    layout = SequenceLayout.from_lengths(batch.lengths, "meta")
    decoder = SourceDecoder(model.eval(), torch.empty(16, 16, device="meta"), layout, 4)
    assert decoder.start([[1]] * 3).shape == (3, 30)
    decoder.take(np.array([0, 2, 2, 1]))
    assert decoder.step(torch.empty(4, dtype=torch.int64, device="meta")).shape == (4, 30)


def test_a_text_through_the_decoder_of_a_bart_is_read_by_nobody():
    with torch.device("meta"):
        model = make_small("bart", heads=())
        ids, layout = torch.arange(9), SequenceLayout.from_lengths([4, 0, 3, 2, 0], "meta")
        output = model.encoder.encode_packed(ids, ids, layout)
    assert output.pooled.shape == (5, 16)


DRAWN, SEARCHED = {"top_k": 7, "min_tokens": 4}, {"beam": 3, "min_tokens": 4, "no_repeat_ngram": 2}


@pytest.mark.parametrize(
    ("name", "how"),
    [*itertools.product(NAMES, [DRAWN, SEARCHED]), ("transformer", {"beam": 3}), ("transformer", {"seed": 4})],
)
def test_decoding_reads_once_for_each_token(name, how, monkeypatch):
    model, batch, numbers = made_once(name).eval(), make_batch([5, 2, 9, 3], [1] * 4), []
    step = SourceDecoder.step
    monkeypatch.setattr(SourceDecoder, "step", lambda self, ids: numbers.append(len(ids)) or step(self, ids))
    with Reads() as reads:
        found = SequenceToSequence(0.0, Generation(max_tokens=9, **how)).found(model, batch)
    assert len(found) == 4
    assert 4 <= len(numbers) <= 9
    assert reads.found == ["tolist"] * (1 + len(numbers))
