import itertools

import numpy as np
import pytest
import torch

from maskloom.layers.crf import LinearChainCRF
from maskloom.layers.sequence_layout import SequenceLayout

NUM_TAGS = 3


def random_crf(seed, num_tags=NUM_TAGS):
    generator = torch.Generator().manual_seed(seed)
    crf = LinearChainCRF(num_tags).double()
    for parameter in crf.parameters():
        parameter.data.normal_(generator=generator)
    return crf, generator


def random_chains(seed, lengths=(3, 1, 5, 2)):
    crf, generator = random_crf(seed)
    emissions = torch.randn(sum(lengths), NUM_TAGS, generator=generator, dtype=torch.float64)
    tags = torch.randint(0, NUM_TAGS, (sum(lengths),), generator=generator)
    return crf, emissions, tags, SequenceLayout.from_lengths(lengths)


@torch.no_grad()
def score_of(crf, emissions, path):
    score = crf.start[path[0]] + crf.end[path[-1]] + sum(emissions[step, tag] for step, tag in enumerate(path))
    return float(score + sum(crf.transitions[a, b] for a, b in itertools.pairwise(path)))


def all_paths(crf, emissions):
    return {
        path: score_of(crf, emissions, path) for path in itertools.product(range(crf.num_tags), repeat=len(emissions))
    }


@pytest.mark.parametrize("seed", range(4))
def test_everything_equals_enumeration(seed):
    crf, emissions, tags, chains = random_chains(seed)
    partitions, scores = crf.log_partition(emissions, chains), crf.path_score(emissions, tags, chains)
    best, marginals = crf.best_tags(emissions, chains), crf.log_marginals(emissions, chains).exp()
    first = 0
    for chain, length in enumerate(chains.sizes):
        part = slice(first, first + length)
        paths = all_paths(crf, emissions[part])
        total = np.logaddexp.reduce(list(paths.values()))
        assert float(partitions[chain].detach()) == pytest.approx(total, abs=1e-9)
        assert float(scores[chain].detach()) == pytest.approx(paths[tuple(tags[part].tolist())], abs=1e-9)
        assert tuple(best[part].tolist()) == max(paths, key=lambda path: paths[path])
        for step in range(length):
            expected = [
                sum(np.exp(score - total) for path, score in paths.items() if path[step] == tag)
                for tag in range(NUM_TAGS)
            ]
            assert marginals[first + step].tolist() == pytest.approx(expected, abs=1e-9)
        first += length
    assert float(crf.loss_sum(emissions, tags, chains).detach()) == pytest.approx(
        float((partitions - scores).sum().detach())
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_best_tags_under_penalties_equal_enumeration(seed):
    crf, emissions, _, chains = random_chains(seed)
    other, _ = random_crf(seed + 100)
    penalties = torch.zeros(NUM_TAGS + 1, NUM_TAGS + 1, dtype=emissions.dtype)
    parts = {"start": penalties[-1, :-1], "transitions": penalties[:-1, :-1], "end": penalties[:-1, -1]}
    for name, part in parts.items():
        part += 3 * getattr(other, name).detach()
    found = crf.best_tags(emissions, chains, penalties)
    for name, part in parts.items():
        getattr(crf, name).data += part
    assert found.tolist() == crf.best_tags(emissions, chains).tolist()
    paths = all_paths(crf, emissions[:3])
    assert tuple(found[:3].tolist()) == max(paths, key=lambda path: paths[path])


def test_chains_do_not_touch_each_other():
    crf, emissions, tags, chains = random_chains(9)
    whole = crf.loss_sum(emissions, tags, chains)
    lengths = chains.sizes
    starts = np.cumsum(lengths) - lengths
    alone = [
        crf.loss_sum(emissions[start : start + size], tags[start : start + size], SequenceLayout.from_lengths([size]))
        for start, size in zip(starts, lengths, strict=True)
    ]
    torch.testing.assert_close(whole, torch.stack(alone).sum())
    order = np.array([2, 0, 3, 1])
    words = np.concatenate([np.arange(starts[chain], starts[chain] + lengths[chain]) for chain in order])
    found = crf.best_tags(emissions[words], SequenceLayout.from_lengths(lengths[order]))
    torch.testing.assert_close(found, crf.best_tags(emissions, chains)[words])


def test_gradient_is_that_of_finite_differences():
    crf, emissions, tags, chains = random_chains(5)
    emissions.requires_grad_()

    def loss(emissions, start, end, transitions):
        inputs = {"start": start, "end": end, "transitions": transitions}
        return torch.func.functional_call(_Loss(crf), {f"crf.{k}": v for k, v in inputs.items()}, (emissions,))

    class _Loss(torch.nn.Module):
        def __init__(self, crf):
            super().__init__()
            self.crf = crf

        def forward(self, emissions):
            return self.crf.loss_sum(emissions, tags, chains)

    assert torch.autograd.gradcheck(loss, (emissions, crf.start, crf.end, crf.transitions))


def test_gradient_by_emission_is_marginal_minus_truth():
    crf, emissions, tags, chains = random_chains(6)
    emissions.requires_grad_()
    (gradient,) = torch.autograd.grad(crf.loss_sum(emissions, tags, chains), emissions)
    expected = crf.log_marginals(emissions, chains).exp() - torch.nn.functional.one_hot(tags, NUM_TAGS)
    torch.testing.assert_close(gradient, expected.detach())


def test_new_parameters_leave_a_softmax_for_each_word():
    emissions = torch.randn(6, NUM_TAGS, generator=torch.Generator().manual_seed(0))
    tags = torch.tensor([0, 1, 2, 2, 1, 0])
    loss = LinearChainCRF(NUM_TAGS).loss_sum(emissions, tags, SequenceLayout.from_lengths([4, 2]))
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(emissions, tags, reduction="sum"))


def test_far_apart_scores_stay_finite():
    crf = LinearChainCRF(2)
    crf.transitions.data.fill_(-1e4)
    emissions = torch.tensor([[1e4, -1e4]] * 50)
    loss = crf.loss_sum(emissions, torch.zeros(50, dtype=torch.int64), SequenceLayout.from_lengths([50]))
    assert torch.isfinite(loss)
    assert crf.best_tags(emissions, SequenceLayout.from_lengths([50])).tolist() == [0] * 50


def test_a_forbidden_transition_changes_the_best_path():
    crf = LinearChainCRF(2)
    emissions = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    assert crf.best_tags(emissions, SequenceLayout.from_lengths([2])).tolist() == [0, 1]
    crf.transitions.data[0, 1] = -100.0
    assert crf.best_tags(emissions, SequenceLayout.from_lengths([2])).tolist() == [0, 0]


def test_no_words_cost_nothing_and_keep_a_gradient():
    crf = LinearChainCRF(NUM_TAGS)
    loss = crf.loss_sum(torch.zeros(0, NUM_TAGS), torch.zeros(0, dtype=torch.int64), SequenceLayout.from_lengths([]))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert crf.transitions.grad is not None
    assert len(crf.best_tags(torch.zeros(0, NUM_TAGS), SequenceLayout.from_lengths([]))) == 0


def test_no_pass_waits_for_the_device():
    """Tensors without values refuse what needs to know them."""
    chains = SequenceLayout.from_lengths([1, 3, 2], "meta")
    crf, emissions = LinearChainCRF(NUM_TAGS).to("meta"), torch.empty(6, NUM_TAGS, device="meta")
    assert crf.best_tags(emissions, chains).shape == (6,)
    assert crf.log_marginals(emissions, chains).shape == (6, NUM_TAGS)
    assert crf.loss_sum(emissions, torch.empty(6, dtype=torch.int64, device="meta"), chains).shape == ()
