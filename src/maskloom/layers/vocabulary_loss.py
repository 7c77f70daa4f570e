"""Cross-entropy over a large vocabulary without materialising all logits."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskloom.layers.processor.fused_layers import fuses, loss_and_gradient, weight_gradient
from maskloom.layers.processor.matrix_products import product, transposed_product, transposes_by_onednn
from maskloom.layers.processor.onednn import filled_number, filled_up, is_half_on_cpu, prefers_onednn, row_step

# Logits computed at a time: 32 MiB in fp32, which the C library's allocator reuses instead of mapping fresh pages.
_NUM_LOGITS = (1 << 23) - (1 << 12)
# Smaller probabilities approach the subnormal range, where fp32 has fewer digits.
_SMALLEST_PROBABILITY = 1e-30
# Rows whose length is a multiple of this start where the matrix units of GPUs read at full width.
_ALIGNED = 64


def vocabulary_loss(
    hidden: Tensor,
    decoder: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    weights: Tensor | None = None,
    *,
    smoothing: float = 0.0,
) -> Tensor:
    """Return the summed cross-entropy, in nats, of softmax(hidden decoder^T + bias) against labels (BERT paper 3.3.1).

    Shapes: `hidden` (predictions, hidden), `decoder` (vocabulary, hidden), `bias` (vocabulary,) or None, `labels`
    (predictions,), `weights` of the terms (predictions,) or None for 1. With `smoothing` e, the target is 1 - e for the
    label plus e / V for each of the V words (Szegedy et al. 2015, 7). Rows are processed in blocks, and gradients are
    computed in the forward pass from each block's probabilities, so neither logits nor probabilities are stored. The
    backward pass can run only once. Under autocast, products are in half precision and the softmax in fp32. If the
    weights are in half precision and a gradient is needed, the loss is computed from all logits in one piece.
    """
    wants_gradient = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (hidden, decoder, bias))
    if not wants_gradient:
        size, total = max(1, (_NUM_LOGITS << 2) // len(decoder)), hidden.new_zeros((), dtype=torch.float32)
        for first in range(0, len(hidden), size):
            block = slice(first, first + size)
            of_rows = None if weights is None else weights[block]
            total += _plain_loss(F.linear(hidden[block], decoder, bias), labels[block], of_rows, smoothing)
        return total
    if decoder.dtype not in (torch.float32, torch.float64):
        return _plain_loss(F.linear(hidden, decoder, bias), labels, weights, smoothing)
    hidden, labels, weights = filled_up_predictions(hidden, labels, weights)
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else decoder.dtype
    with torch.autocast(kind, enabled=False):
        return _VocabularyLoss.apply(  # pyright: ignore[reportReturnType]
            hidden.to(dtype), decoder, bias, labels, weights, smoothing
        )


def _plain_loss(logits: Tensor, labels: Tensor, weights: Tensor | None, smoothing: float) -> Tensor:
    logits = logits.float()
    if weights is None:
        return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
    return (F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing) * weights).sum()


def filled_up_predictions(
    hidden: Tensor, labels: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the arguments of `vocabulary_loss`, on CUDA in half precision with a few rows of weight 0 appended.

    Products then see row counts for which they are already prepared; see `filled_number`.
    """
    missing = filled_number(len(hidden), hidden.device) - len(hidden) if hidden.is_cuda else 0
    return _with_empty_rows(hidden, labels, weights, missing) if missing else (hidden, labels, weights)


def _with_empty_rows(
    hidden: Tensor, labels: Tensor, weights: Tensor | None, missing: int
) -> tuple[Tensor, Tensor, Tensor]:
    if weights is None:
        weights = torch.ones_like(labels, dtype=torch.float32)
    return F.pad(hidden, (0, 0, 0, missing)), F.pad(labels, (0, missing)), F.pad(weights, (0, missing))


class _VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        hidden: Tensor,
        decoder: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        weights: Tensor | None,
        smoothing: float,
    ) -> Tensor:
        if not smoothing and len(hidden) and fuses(hidden):
            loss, ctx.gradients = _by_fused_passes(hidden, decoder, bias, labels, weights)
            return loss
        on_cpu, full, decoder = hidden.device.type == "cpu", decoder, decoder.to(hidden.dtype)
        num_rows = max(1, (_NUM_LOGITS if on_cpu else _NUM_LOGITS << 4) // decoder.shape[0])
        num_rows -= num_rows % row_step(num_rows)
        total = _DecoderGradient(full, is_single=hidden.shape[0] <= num_rows)
        loss, mean_word = full.new_zeros(()), full.mean(0) if smoothing else full.new_zeros(0)
        d_hidden = torch.empty_like(hidden)
        d_bias = torch.zeros_like(bias) if bias is not None and bias.requires_grad else None
        room = full.new_empty(min(num_rows, len(hidden)), len(full)) if on_cpu else None
        for first in range(0, hidden.shape[0], num_rows):
            rows, targets = hidden[first : first + num_rows], labels[first : first + num_rows, None]
            row_weights = None if weights is None else weights[first : first + num_rows]
            filled = filled_up(rows) if is_half_on_cpu(rows) or prefers_onednn(rows, len(decoder)) else rows
            block = _logits(filled, decoder, bias, full.dtype, room)
            logits, leads = block[: len(rows)], None
            if smoothing:  # mean -log p over all words is that of the label plus its lead over the mean logit
                middle = torch.mv(rows.to(full.dtype), mean_word) + (0.0 if bias is None else bias.mean())
                leads = smoothing * (logits.gather(1, targets).squeeze(1) - middle)
            if on_cpu:
                probabilities = torch.softmax(logits, 1, out=logits)
                losses = _losses(probabilities, rows, decoder, bias, targets)
            else:
                log_probabilities = torch.log_softmax(logits, 1)
                losses = -log_probabilities.gather(1, targets).squeeze(1)
                probabilities = torch.exp(log_probabilities, out=logits)
            if leads is not None:
                losses = losses + leads
            loss += (losses if row_weights is None else losses * row_weights).sum()
            sure = targets.new_full(targets.shape, smoothing - 1.0, dtype=logits.dtype)
            d_logits = probabilities.scatter_add_(1, targets, sure)
            if row_weights is not None:
                d_logits *= row_weights.unsqueeze(1)
            if d_bias is not None:
                d_bias += d_logits.sum(0)
            block[len(rows) :] = 0.0  # no gradients in the rows that fill it up; the others are in place of the logits
            block = block.to(rows.dtype)
            d_hidden[first : first + num_rows] = product(block, decoder.t())[: len(rows)]
            total.add(block, filled)
        if smoothing:  # the same for all words of a row, so it need not pass through the logits
            shares = (
                hidden.new_full((len(hidden),), smoothing) if weights is None else smoothing * weights.to(hidden.dtype)
            )
            d_hidden.addr_(shares, mean_word.to(hidden.dtype), alpha=-1.0)
            total.subtract(shares @ hidden / decoder.shape[0])
            if d_bias is not None:
                d_bias -= shares.sum() / decoder.shape[0]
        ctx.gradients = (d_hidden, total, d_bias)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if ctx.gradients is None:
            raise RuntimeError(
                "the backward pass of vocabulary_loss can run only once; its gradients were already returned"
            )
        d_hidden, total, d_bias = ctx.gradients
        ctx.gradients = None
        d_bias = None if d_bias is None else d_bias.mul_(gradient)
        return d_hidden.mul_(gradient), total.scaled(gradient), d_bias, None, None, None


def _by_fused_passes(
    hidden: Tensor, decoder: Tensor, bias: Tensor | None, labels: Tensor, weights: Tensor | None
) -> tuple[Tensor, tuple[Tensor, _DecoderGradient, Tensor | None]]:
    """Return the loss and the gradients for `backward`, on a GPU; columns of padding align the rows of logits."""
    num_words, extra = len(decoder), -len(decoder) % _ALIGNED
    words = F.pad(decoder.to(hidden.dtype), (0, 0, 0, extra))
    offset = decoder.new_zeros(num_words) if bias is None else bias.detach()
    num_blocks = max(1, -(-len(hidden) * len(words) // (_NUM_LOGITS << 5)))
    loss, d_bias = decoder.new_zeros(()), torch.zeros_like(offset)
    total, d_hidden = _DecoderGradient(decoder, is_single=True), torch.empty_like(hidden)
    size = -(-len(hidden) // num_blocks)
    for first in range(0, len(hidden), size):
        block = slice(first, first + size)
        rows, row_weights = hidden[block], None if weights is None else weights[block]
        d_logits = rows @ words.t()
        of_rows, d_offset = loss_and_gradient(d_logits, offset, labels[block], row_weights, num_words)
        loss += of_rows
        d_bias += d_offset
        torch.mm(d_logits, words, out=d_hidden[block])
        total.add_product(weight_gradient(d_logits, rows)[:num_words])
    return loss, (d_hidden, total, d_bias if bias is not None and bias.requires_grad else None)


def _logits(rows: Tensor, decoder: Tensor, bias: Tensor | None, dtype: torch.dtype, room: Tensor | None) -> Tensor:
    """Return logits in a type, in the memory of `room` if it is given and the library allows it."""
    if decoder.dtype == dtype:
        return product(rows, decoder, bias, out=None if room is None else room[: len(rows)])
    logits = product(rows, decoder).to(dtype)
    return logits if bias is None else logits.add_(bias)


def _losses(probabilities: Tensor, rows: Tensor, decoder: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Return each -log p(target), recomputed from the logits where p is too small to be precise."""
    chosen = probabilities.gather(1, targets).squeeze(1)
    is_lost = ~(chosen >= _SMALLEST_PROBABILITY)
    losses = -chosen.log()
    if not is_lost.any():
        return losses
    dtype = probabilities.dtype
    logits = F.linear(rows[is_lost].to(dtype), decoder.to(dtype), bias)
    losses[is_lost] = F.cross_entropy(logits, targets[is_lost, 0], reduction="none")
    return losses


class _DecoderGradient:
    """The sum over blocks of d_logits^T hidden, (vocabulary, hidden), accumulated in the faster orientation."""

    def __init__(self, decoder: Tensor, *, is_single: bool) -> None:
        self._decoder = decoder
        self._is_single = is_single
        self._sum: Tensor | None = None
        self._is_transposed = False

    def add(self, d_logits: Tensor, rows: Tensor) -> None:
        """Add one block."""
        if self._sum is None:
            # With the short side first, oneDNN's products have long contiguous rows, which are fast to add; MKL adds to
            # the sum itself, and is slower in that orientation.
            self._is_transposed = not self._is_single and transposes_by_onednn(rows, d_logits)
        if self._sum is None or self._is_transposed or rows.dtype != self._sum.dtype:
            pair = (rows, d_logits) if self._is_transposed else (d_logits, rows)
            self.add_product(transposed_product(*pair))
        else:
            self._sum.addmm_(d_logits.t(), rows)

    def add_product(self, summand: Tensor) -> None:
        """Add a product in the orientation of the sum, which for blocks computed elsewhere is the decoder's."""
        self._sum = summand.to(self._decoder.dtype) if self._sum is None else self._sum.add_(summand)

    def subtract(self, row: Tensor) -> None:
        """Subtract a row (hidden,) from the row of every word."""
        if self._sum is not None:
            self._sum -= (row.unsqueeze(1) if self._is_transposed else row).to(self._sum.dtype)

    def scaled(self, factor: Tensor) -> Tensor:
        """Return the sum times a factor, with the layout of the decoder."""
        if self._sum is None:
            return torch.zeros_like(self._decoder)
        if self._is_transposed:
            return torch.mul(self._sum.t(), factor, out=torch.empty_like(self._decoder))
        return self._sum.mul_(factor)
