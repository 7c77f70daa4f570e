"""A linear-chain conditional random field over packed sequences (Lafferty et al. 2001; Lample et al. 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from maskloom.layers.sequence_layout import SequenceLayout


class LinearChainCRF(nn.Module):
    """Score whole tag sequences: emissions plus transitions between neighbours plus start and end scores.

    `transitions[i, j]` is the score of tag j after tag i; `start` and `end` (tags,) score the first and the last tag of
    a chain. Inputs are packed: `emissions` (words, tags) of all `chains`, each of at least 1 word. Parameters start at
    zero. Scores are natural logarithms.
    """

    def __init__(self, num_tags: int) -> None:
        super().__init__()
        self.num_tags = num_tags
        self.start = nn.Parameter(torch.zeros(num_tags))
        self.end = nn.Parameter(torch.zeros(num_tags))
        self.transitions = nn.Parameter(torch.zeros(num_tags, num_tags))

    def loss_sum(self, emissions: Tensor, tags: Tensor, chains: SequenceLayout) -> Tensor:
        """Return the negative log likelihood of `tags` (words,), summed over all chains, in nats."""
        if len(emissions) == 0:
            return emissions.sum() + 0.0 * (self.start.sum() + self.end.sum() + self.transitions.sum())
        return (self.log_partition(emissions, chains) - self.path_score(emissions, tags, chains)).sum()

    def path_score(self, emissions: Tensor, tags: Tensor, chains: SequenceLayout) -> Tensor:
        """Return the score of the given tags of each chain, (chains,)."""
        moves = self.transitions[tags.roll(1), tags] * (chains.position_ids > 0)
        grid, _ = _by_step(emissions.gather(1, tags[:, None]) + moves[:, None], chains)
        scores = grid.sum(dim=0)[:, 0] + self.start[tags[chains.first_positions]]
        return scores + self.end[tags[chains.last_positions]]

    def log_partition(self, emissions: Tensor, chains: SequenceLayout) -> Tensor:
        """Return the log-sum-exp of the scores of all tag sequences of each chain, (chains,)."""
        forward = self._forward(*_by_step(emissions, chains))
        return torch.logsumexp(forward[-1] + self.end, dim=-1)

    def log_marginals(self, emissions: Tensor, chains: SequenceLayout) -> Tensor:
        """Return the marginal log probability of each tag at each word, (words, tags)."""
        if len(emissions) == 0:
            return emissions
        scores, is_word = _by_step(emissions, chains)
        forward = self._forward(scores, is_word)
        backward = [self.end.expand_as(forward[0])]
        for step in range(len(scores) - 1, 0, -1):
            onward = (backward[-1] + scores[step])[:, None, :] + self.transitions
            # A chain without a word at `step` has ended earlier: its backward score is still `end`.
            backward.append(torch.where(is_word[step], torch.logsumexp(onward, dim=-1), self.end))
        return torch.log_softmax(_packed(torch.stack(forward) + torch.stack(backward[::-1]), chains), dim=-1)

    @torch.no_grad()
    def best_tags(self, emissions: Tensor, chains: SequenceLayout, penalties: Tensor | None = None) -> Tensor:
        """Return the tags (words,) of the best-scoring sequence of each chain (Viterbi 1967); ties go to the lower tag.

        `penalties` (tags + 1, tags + 1) are added to the scores of transitions from row to column, to suppress
        meaningless sequences; the last row is the start, the last column the end.
        """
        if len(emissions) == 0:
            return torch.empty(0, dtype=torch.int64, device=emissions.device)
        scores, is_word = _by_step(emissions, chains)
        start, transitions, end = self.start, self.transitions, self.end
        if penalties is not None:
            start, end = start + penalties[-1, :-1], end + penalties[:-1, -1]
            transitions = transitions + penalties[:-1, :-1]
        best, sources = start + scores[0], []
        identity = torch.arange(self.num_tags, device=emissions.device)
        for step in range(1, len(scores)):
            values, source = (best[:, :, None] + transitions).max(dim=1)
            best = torch.where(is_word[step], values + scores[step], best)
            # After a chain has ended, the back-pointer of each tag is the tag itself.
            sources.append(torch.where(is_word[step], source, identity))
        tags = [(best + end).argmax(dim=-1)]
        for source in reversed(sources):
            tags.append(source.gather(1, tags[-1][:, None])[:, 0])
        return _packed(torch.stack(tags[::-1]), chains)

    def _forward(self, scores: Tensor, is_word: Tensor) -> list[Tensor]:
        """Return, for each step, the log-sum-exp of the scores of all prefixes that end in each tag."""
        found = [self.start + scores[0]]
        for step in range(1, len(scores)):
            onward = torch.logsumexp(found[-1][:, :, None] + self.transitions, dim=1) + scores[step]
            found.append(torch.where(is_word[step], onward, found[-1]))
        return found


def _by_step(packed: Tensor, chains: SequenceLayout) -> tuple[Tensor, Tensor]:
    """Return (words, size) in a grid (steps, chains, size), and which of its cells have a word, (steps, chains, 1)."""
    is_word = torch.arange(chains.max_length, device=packed.device)[:, None] < chains.lengths
    return chains.padded(packed).transpose(0, 1).contiguous(), is_word[:, :, None]


def _packed(grid: Tensor, chains: SequenceLayout) -> Tensor:
    """Return the words of a grid: (steps, chains, ...) to (words, ...)."""
    return grid[chains.position_ids, torch.repeat_interleave(chains.lengths, output_size=chains.num_tokens)]
