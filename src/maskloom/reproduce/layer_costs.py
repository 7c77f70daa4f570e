"""Table 1 of the Transformer paper, measured: the cost of a layer, and how many layers join two distant tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskloom.errors import amount
from maskloom.reproduce.experiments import Trend
from maskloom.reproduce.results import trend_row, verdict_text, write_page
from maskloom.runs.charts import Chart, Line, colour, line_chart
from maskloom.runs.display import SILENT, Progress

SIZE, KERNEL, NEIGHBORS = 64, 3, 8
LENGTHS = (256, 512, 1024, 2048, 4096)
_ROUNDS, _SHORT = 7, 25
_PATHS = (5, 9, 17, _SHORT, 33, 49)  # after a hundred layers the derivative is lost to rounding
# Tolerance around the stated exponent, and the largest ratio of slowest to fastest round of a stable length.
_NEAR, _STABLE = 0.25, 1.5
# Operations per layer, their exponent of n, and the longest path, as the paper states them for n tokens of size d.
_STATED = {
    "self-attention": ("n² d", 2, "1"),
    "recurrent": ("n d²", 1, "n steps of one layer"),
    "convolution": ("k n d²", 1, "n / k"),
    "dilated convolution": ("k n d²", 1, "log_k n"),
    "restricted self-attention": ("r n d", 1, "n / r"),
}
_ABOUT = (
    f"One layer of size {SIZE} on one text, forward pass only, one thread. The convolutions have kernels of {KERNEL}; "
    f"restricted attention covers {NEIGHBORS} neighbours on either side. The exponent is the slope of log time over "
    f"log length for lengths of at least {LENGTHS[1]} tokens, as the median of {_ROUNDS} rounds. A length is unstable "
    f"if the slowest round took more than {_STABLE} times as long as the fastest. The last column is the number of "
    f"layers after which the last of {_SHORT} tokens depends on the first, measured by derivatives."
)
_HOW = (
    f"The difference of a round is {_NEAR} minus the distance of its exponent from the stated one. A trend is shown if "
    "the mean over the rounds is more than two standard errors above 0, denied if it is more than two below 0, and not "
    "shown otherwise."
)
Layer = Callable[..., Tensor]


def layers() -> dict[str, Layer]:
    """Return a layer of each kind, which maps (tokens, size) and the layer's number to (tokens, size).

    They compute what the paper counts. The dilated convolution is causal, with dilation k to the power of the number.
    """
    recurrent, dilated = nn.RNN(SIZE, SIZE), nn.Conv1d(SIZE, SIZE, KERNEL)
    convolution = nn.Conv1d(SIZE, SIZE, KERNEL, padding=KERNEL // 2)
    return {
        "self-attention": lambda x, _=0: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])[
            0, 0
        ],
        "recurrent": lambda x, _=0: recurrent(x)[0],
        "convolution": lambda x, _=0: convolution(x.T.unsqueeze(0))[0].T,
        "dilated convolution": lambda x, number=0: (
            F.conv1d(
                F.pad(x.T, ((KERNEL - 1) * KERNEL**number, 0)), dilated.weight, dilated.bias, dilation=KERNEL**number
            ).T
        ),
        "restricted self-attention": restricted,
    }


def restricted(vectors: Tensor, _: int = 0) -> Tensor:
    """Return restricted attention: the mean of each vector and its neighbours, weighted by softmax (section 4)."""
    width, positions = 2 * NEIGHBORS + 1, torch.arange(len(vectors))
    keys = F.pad(vectors, (0, 0, NEIGHBORS, NEIGHBORS)).unfold(0, width, 1)  # (tokens, size, width)
    places = positions.unsqueeze(1) + torch.arange(-NEIGHBORS, NEIGHBORS + 1)
    scores = torch.einsum("nd,ndw->nw", vectors, keys) / vectors.shape[1] ** 0.5
    scores = scores.masked_fill((places < 0) | (places >= len(vectors)), -torch.inf)
    return torch.einsum("nw,ndw->nd", scores.softmax(1), keys)


def num_layers_between_ends(layer: Layer, length: int = _SHORT) -> int:
    """Return the number of layers after which the last of a few tokens depends on the first."""
    first = torch.randn(length, SIZE, generator=torch.Generator().manual_seed(0)).requires_grad_()
    vectors, number = first, 0
    while True:
        vectors, number = layer(vectors, number), number + 1
        (gradient,) = torch.autograd.grad(vectors[-1].sum(), first, retain_graph=True)
        if bool(gradient[0].any()):
            return number


@torch.inference_mode()
def timings(layer: Layer) -> np.ndarray:
    """Return the seconds of a forward pass, (rounds, lengths); each round covers all lengths."""
    found = np.zeros((_ROUNDS + 1, len(LENGTHS)))  # the first round warms up
    for times in found:
        for place, length in enumerate(LENGTHS):
            vectors = torch.randn(length, SIZE)
            started = time.perf_counter()
            layer(vectors)
            times[place] = time.perf_counter() - started
    return found[1:]


def cost(name: str, seconds: np.ndarray) -> dict[str, Any]:
    """Summarise a layer's timings (rounds, lengths): exponent, median seconds, unstable lengths and verdict."""
    stated = _STATED[name][1]
    slopes = np.polyfit(np.log(LENGTHS[1:]), np.log(seconds[:, 1:]).T, 1)[0]
    claim = Trend(f"{name}: time grows with n^{stated}", lambda _: (_NEAR - abs(slopes - stated)).tolist())
    spread = seconds.max(0) / seconds.min(0)
    return {
        "exponent": float(np.median(slopes)),
        "seconds": np.median(seconds, 0).tolist(),
        "unstable": [length for length, times in zip(LENGTHS, spread, strict=True) if times > _STABLE],
        "trend": claim.verdict({}),
    }


def transformer_table_1(out: Path, _: Progress = SILENT) -> dict[str, Any]:
    """Measure the layers and write transformer-table1 as .json, .html and .md to a folder."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = {name: cost(name, timings(layer)) for name, layer in layers().items()}
    finally:
        torch.set_num_threads(threads)
    rows, times, paths, told = [], list[Line](), list[Line](), list[str]()
    for number, (name, layer) in enumerate(layers().items()):
        (operations, stated, path), row, style = _STATED[name], found[name], colour(number)
        row["paths"] = [num_layers_between_ends(layer, length) for length in _PATHS]
        row["layers"] = row["paths"][_PATHS.index(_SHORT)]
        exponent, unstable = f"{row['exponent']:.2f}", ", ".join(map(str, row["unstable"]))
        rows.append([name, operations, str(stated), exponent, unstable or "–", path, str(row["layers"])])
        times.append(Line(name, [(n, 1e3 * value) for n, value in zip(LENGTHS, row["seconds"], strict=True)], style))
        longest = [n * many if name == "recurrent" else many for n, many in zip(_PATHS, row["paths"], strict=True)]
        paths.append(Line(name, [*zip(_PATHS, longest, strict=True)], style))
        told.append(
            f"{verdict_text(row['trend']).replace('**', '')}: n^{exponent}; the ends of a text meet after "
            f"{amount(row['layers'], 'layer')}{f'; unstable at {unstable} tokens' * bool(unstable)}"
        )
    return write_page(
        out,
        "transformer-table1",
        {"lengths": LENGTHS, "path_lengths": _PATHS, "layers": found},
        told,
        title="Table 1 of Vaswani et al. 2017: what a layer costs",
        about=_ABOUT,
        trends=[trend_row(row["trend"]) for row in found.values()],
        how=_HOW,
        headers=[
            "layer",
            "operations",
            "exponent of n",
            "measured",
            "unstable",
            "longest path",
            f"layers for {_SHORT}",
        ],
        rows=rows,
        charts=[
            Chart("Time of a layer", line_chart(times, x_name="tokens", y_name="milliseconds")),
            Chart("Longest path", line_chart(paths, x_name="tokens", y_name="layers, of recurrence its steps")),
        ],
    )
