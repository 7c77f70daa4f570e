"""A linear-chain conditional random field over packed sequences (Lafferty et al. 2001; Lample et al. 2016)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from maskloom.layers.copies import to_device


@dataclass(frozen=True)
class ChainGrid:
    """The positions of packed words in a (steps, chains) grid, computed once per batch and shared by all passes.

    `indices` (words,) are flat grid indices; `is_word` (steps, chains) marks the cells that hold a word. `first` and
    `last` (chains,) index the packed words at the ends of chains, `inner` all words but the first of each chain.
    """

    indices: Tensor
    is_word: Tensor
    first: Tensor
    last: Tensor
    inner: Tensor

    @classmethod
    def from_lengths(cls, lengths: np.ndarray, device: torch.device | str) -> ChainGrid:
        """Lay out chains of the given lengths. Raises ValueError for a chain without words."""
        sizes = np.asarray(lengths, dtype=np.int64)
        if len(sizes) and sizes.min() < 1:
            raise ValueError(
                f"chain {int(sizes.argmin())} has length {int(sizes.min())}; a chain needs at least one word"
            )
        starts = np.cumsum(sizes) - sizes
        steps = np.arange(int(sizes.sum())) - np.repeat(starts, sizes)
        indices = steps * len(sizes) + np.repeat(np.arange(len(sizes)), sizes)
        is_word = np.arange(int(sizes.max(initial=0)))[:, None] < sizes[None, :]
        parts = (indices, is_word, starts, starts + sizes - 1, np.flatnonzero(steps))
        return cls(*(to_device(array, torch.device(device)) for array in parts))

    @property
    def num_steps(self) -> int:
        """Number of words in the longest chain."""
        return self.is_word.shape[0]

    def spread(self, packed: Tensor) -> Tensor:
        """Scatter (words, ...) into the grid (steps, chains, ...), with zeros in cells without a word."""
        steps, chains = self.is_word.shape
        grid = packed.new_zeros((steps * chains, *packed.shape[1:]))
        return grid.index_copy(0, self.indices, packed).view(steps, chains, *packed.shape[1:])

    def gather(self, grid: Tensor) -> Tensor:
        """Gather the words of a grid: (steps, chains, ...) to (words, ...)."""
        return grid.flatten(0, 1).index_select(0, self.indices)


@dataclass(frozen=True)
class Penalties:
    """Terms added to the scores of a CRF: `start` and `end` (tags,), `transitions` (tags, tags), from row to column."""

    start: Tensor
    transitions: Tensor
    end: Tensor


class LinearChainCRF(nn.Module):
    """Score whole tag sequences: emissions plus transitions between neighbours plus start and end scores.

    `transitions[i, j]` is the score of tag j after tag i; `start` and `end` (tags,) score the first and the last tag of
    a chain. Inputs are packed: `emissions` (words, tags) of all chains are concatenated, and `lengths` (chains,) are
    numbers of words, each at least 1. Parameters start at zero. Scores are natural logarithms.
    """

    def __init__(self, num_tags: int) -> None:
        super().__init__()
        if num_tags < 1:
            raise ValueError(f"num_tags is {num_tags}; at least 1 is needed")
        self.num_tags = num_tags
        self.start = nn.Parameter(torch.zeros(num_tags))
        self.end = nn.Parameter(torch.zeros(num_tags))
        self.transitions = nn.Parameter(torch.zeros(num_tags, num_tags))

    def loss_sum(self, emissions: Tensor, tags: Tensor, lengths: np.ndarray) -> Tensor:
        """Return the negative log likelihood of `tags` (words,), summed over all chains, in nats."""
        if len(emissions) == 0:
            return emissions.sum() + 0.0 * (self.start.sum() + self.end.sum() + self.transitions.sum())
        return (self.log_partition(emissions, lengths) - self.path_score(emissions, tags, lengths)).sum()

    def path_score(self, emissions: Tensor, tags: Tensor, lengths: np.ndarray) -> Tensor:
        """Return the score of the given tags of each chain, (chains,)."""
        grid = self._grid(emissions, lengths)
        score = emissions.gather(1, tags[:, None])[:, 0]
        score = score.index_add(0, grid.inner, self.transitions[tags[grid.inner - 1], tags[grid.inner]])
        return grid.spread(score).sum(dim=0) + self.start[tags[grid.first]] + self.end[tags[grid.last]]

    def log_partition(self, emissions: Tensor, lengths: np.ndarray) -> Tensor:
        """Return the log-sum-exp of the scores of all tag sequences of each chain, (chains,)."""
        grid = self._grid(emissions, lengths)
        return torch.logsumexp(self._forward(grid.spread(emissions), grid)[-1] + self.end, dim=-1)

    def log_marginals(self, emissions: Tensor, lengths: np.ndarray) -> Tensor:
        """Return the marginal log probability of each tag at each word, (words, tags)."""
        if len(emissions) == 0:
            return emissions
        grid = self._grid(emissions, lengths)
        scores = grid.spread(emissions)
        forward = self._forward(scores, grid)
        backward = [self.end.expand_as(forward[0])]
        for step in range(grid.num_steps - 1, 0, -1):
            onward = (backward[-1] + scores[step])[:, None, :] + self.transitions
            # A chain without a word at `step` has ended earlier: its backward score is still `end`.
            backward.append(torch.where(grid.is_word[step][:, None], torch.logsumexp(onward, dim=-1), self.end))
        return torch.log_softmax(grid.gather(torch.stack(forward) + torch.stack(backward[::-1])), dim=-1)

    @torch.no_grad()
    def best_tags(self, emissions: Tensor, lengths: np.ndarray, penalties: Penalties | None = None) -> Tensor:
        """Return the tags (words,) of the best-scoring sequence of each chain (Viterbi 1967); ties go to the lower tag.

        `penalties` are added to the start, transition and end scores, to suppress meaningless sequences.
        """
        if len(emissions) == 0:
            return torch.empty(0, dtype=torch.int64, device=emissions.device)
        grid = self._grid(emissions, lengths)
        scores = grid.spread(emissions)
        start, transitions, end = self.start, self.transitions, self.end
        if penalties is not None:
            start, transitions, end = start + penalties.start, transitions + penalties.transitions, end + penalties.end
        best, sources = start + scores[0], []
        identity = torch.arange(self.num_tags, device=emissions.device)
        for step in range(1, grid.num_steps):
            values, source = (best[:, :, None] + transitions).max(dim=1)
            goes_on = grid.is_word[step][:, None]
            best = torch.where(goes_on, values + scores[step], best)
            # After a chain has ended, the back-pointer of each tag is the tag itself.
            sources.append(torch.where(goes_on, source, identity))
        tags = [(best + end).argmax(dim=-1)]
        for source in reversed(sources):
            tags.append(source.gather(1, tags[-1][:, None])[:, 0])
        return grid.gather(torch.stack(tags[::-1]))

    def _grid(self, emissions: Tensor, lengths: np.ndarray) -> ChainGrid:
        num_words = int(np.sum(lengths))
        if emissions.shape != (num_words, self.num_tags):
            raise ValueError(
                f"emissions have shape {tuple(emissions.shape)}; the chains have {num_words} words, "
                f"and there are {self.num_tags} tags"
            )
        return ChainGrid.from_lengths(lengths, emissions.device)

    def _forward(self, scores: Tensor, grid: ChainGrid) -> list[Tensor]:
        """Return, for each step, the log-sum-exp of the scores of all prefixes that end in each tag."""
        found = [self.start + scores[0]]
        for step in range(1, grid.num_steps):
            onward = torch.logsumexp(found[-1][:, :, None] + self.transitions, dim=1) + scores[step]
            found.append(torch.where(grid.is_word[step][:, None], onward, found[-1]))
        return found
