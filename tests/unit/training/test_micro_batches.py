"""Micro-batches as large as memory allows."""

import numpy as np
import pytest
import torch

from maskloom.data.batch import PretrainingBatch
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.training.faults import memory as module
from maskloom.training.faults.memory import fitting_micro_batch_size
from maskloom.training.precision import in_precision
from maskloom.training.ranks.ranks import ONE_RANK, Ranks

OBJECTIVE = MaskedLanguageModeling(pair_part=None)


def _batch(lengths: list[int]) -> PretrainingBatch:
    starts = np.cumsum(lengths) - lengths
    return PretrainingBatch(
        token_ids=np.full(sum(lengths), 7),
        segment_ids=np.zeros(sum(lengths), dtype=np.int64),
        lengths=np.array(lengths),
        mlm_positions=starts + 1,
        mlm_labels=np.full(len(lengths), 9),
        nsp_labels=None,
    )


@pytest.fixture(scope="module")
def model():
    return build_model(BertConfig.of_size("tiny", vocab_size=300), seed=0)


def _fitting(monkeypatch, model, lengths, free, ranks=ONE_RANK):
    monkeypatch.setattr(module, "available_memory", lambda: free)
    return fitting_micro_batch_size(model, OBJECTIVE, _batch(lengths), ranks)


def test_all_fit_where_memory_is_ample_or_not_known(monkeypatch, model):
    assert _fitting(monkeypatch, model, [9] * 6, 2**40) == 6
    assert _fitting(monkeypatch, model, [9] * 6, None) == 6


def test_half_the_memory_holds_half_the_sequences_and_one_is_always_tried(monkeypatch, model):
    lengths = [64] * 256
    sizes = [_fitting(monkeypatch, model, lengths, 2**bits) for bits in (28, 27, 26, 10)]
    assert sizes[0] == 2 * sizes[1] == 4 * sizes[2] < 256
    assert sizes[-1] == 1


def test_it_counts_what_the_longest_sequences_keep(monkeypatch, model):
    short, long = ([16] * 256, [16] * 252 + [128] * 4)
    assert _fitting(monkeypatch, model, long, 2**27) < _fitting(monkeypatch, model, short, 2**27)


def test_rounded_weights_are_not_counted_for_every_sequence(monkeypatch, model):
    """A pass in half precision saves a copy of them, which here is larger than all that a short sequence saves."""
    batch, free = _batch([4] * 256), 2**23
    monkeypatch.setattr(module, "available_memory", lambda: free)
    rounded = in_precision(OBJECTIVE, "bf16", torch.device("cpu"))
    exact, half = (fitting_micro_batch_size(model, each, batch, ONE_RANK) for each in (OBJECTIVE, rounded))
    assert 1 < exact < 256
    assert half >= exact // 2


def test_it_is_about_what_a_forward_pass_takes(model):
    """The kept bytes are between 10 and 100 times the hidden states of one layer."""
    kept = module.kept_bytes(model, OBJECTIVE, _batch([64]))
    assert 64 * 128 * 4 * 10 < kept < 64 * 128 * 4 * 100


def test_ranks_of_unequal_memory_agree_on_the_smallest(monkeypatch, model):
    lengths, memory = [64] * 256, (2**28, 2**26)
    fits = [_fitting(monkeypatch, model, lengths, free) for free in memory]

    class Pair(Ranks):
        def sum_(self, values: dict[str, float]) -> dict[str, float]:
            return values | {str(1 - self.rank): float(fits[1 - self.rank])}

    for rank, free in enumerate(memory):
        assert _fitting(monkeypatch, model, lengths, free, Pair(rank=rank, world_size=2)) == fits[1]
    assert fits[1] < fits[0]


def test_processes_of_one_machine_share_its_memory(monkeypatch, model):
    alone = _fitting(monkeypatch, model, [64] * 256, 2**28)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert _fitting(monkeypatch, model, [64] * 256, 2**28) == alone // 4


def test_the_generator_is_left_where_it_was(monkeypatch, model):
    torch.manual_seed(3)
    _fitting(monkeypatch, model, [9] * 8, 2**40)
    first = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(first, torch.rand(3))
