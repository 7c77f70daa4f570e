"""Table 1 of the Transformer's paper, measured: what a layer costs, and how many layers join the ends of a text."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskloom.errors import ConfigError
from maskloom.runs.charts import Line, line_chart, page_template
from maskloom.runs.report.page import Chart
from maskloom.system.files import write_json, write_text

SIZE, KERNEL, NEIGHBORS = 64, 3, 8
LENGTHS = (256, 512, 1024, 2048, 4096)
_ROUNDS, _SHORT = 5, 25
# Operations of a layer and the longest path between two tokens, as the paper states them for n tokens of size d.
_STATED = {
    "self-attention": ("n² d", 2, "1"),
    "recurrent": ("n d²", 1, "n steps of one layer"),
    "convolution": ("k n d²", 1, "n / k"),
    "restricted self-attention": ("r n d", 1, "n / r"),
}
_ABOUT = (
    f"One layer of size {SIZE} on one text, forwards, one thread; a kernel of {KERNEL}, and {NEIGHBORS} neighbours on "
    f"either side of restricted attention. The exponent is the slope of log time over log length from {LENGTHS[1]} "
    f"tokens on. Layers until the last of {_SHORT} tokens depends on the first are counted by the derivative."
)
Layer = Callable[[Tensor], Tensor]


def layers() -> dict[str, Layer]:
    """Return a layer of each kind, (tokens, size) to the same; what they compute with is what the paper counts."""
    recurrent = nn.RNN(SIZE, SIZE)
    convolution = nn.Conv1d(SIZE, SIZE, KERNEL, padding=KERNEL // 2)
    return {
        "self-attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])[0, 0],
        "recurrent": lambda x: recurrent(x)[0],
        "convolution": lambda x: convolution(x.T.unsqueeze(0))[0].T,
        "restricted self-attention": restricted,
    }


def restricted(vectors: Tensor) -> Tensor:
    """Return what each vector gets from itself and its neighbours: their mean, weighted by a softmax of scores (4)."""
    width, positions = 2 * NEIGHBORS + 1, torch.arange(len(vectors))
    keys = F.pad(vectors, (0, 0, NEIGHBORS, NEIGHBORS)).unfold(0, width, 1)  # (tokens, size, width)
    places = positions.unsqueeze(1) + torch.arange(-NEIGHBORS, NEIGHBORS + 1)
    scores = torch.einsum("nd,ndw->nw", vectors, keys) / vectors.shape[1] ** 0.5
    scores = scores.masked_fill((places < 0) | (places >= len(vectors)), -torch.inf)
    return torch.einsum("nw,ndw->nd", scores.softmax(1), keys)


def num_layers_between_ends(layer: Layer) -> int:
    """Return after how many layers the last of a few tokens depends on the first."""
    first = torch.randn(_SHORT, SIZE, generator=torch.Generator().manual_seed(0)).requires_grad_()
    vectors, number = first, 0
    while True:
        vectors, number = layer(vectors), number + 1
        (gradient,) = torch.autograd.grad(vectors[-1].sum(), first, retain_graph=True)
        if bool(gradient[0].any()):
            return number


@torch.inference_mode()
def seconds_of(layer: Layer, length: int) -> float:
    """Return the median time of a few passes over a text."""
    vectors, found = torch.randn(length, SIZE), []
    for _ in range(_ROUNDS + 1):  # the first warms up
        started = time.perf_counter()
        layer(vectors)
        found.append(time.perf_counter() - started)
    return median(found[1:])


def transformer_table_1(out: str | Path) -> dict[str, Any]:
    """Measure the layers; write transformer-table1.json and transformer-table1.html into a folder."""
    out, threads = Path(out), torch.get_num_threads()
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out}: a folder is written, and this is a file; choose another --out")
    torch.set_num_threads(1)
    try:
        seconds = {name: [seconds_of(layer, length) for length in LENGTHS] for name, layer in layers().items()}
    finally:
        torch.set_num_threads(threads)
    found = {
        name: {
            "operations": _STATED[name][0],
            "stated_exponent": _STATED[name][1],
            "exponent": float(np.polyfit(np.log(LENGTHS[1:]), np.log(seconds[name][1:]), 1)[0]),
            "path": _STATED[name][2],
            "layers": num_layers_between_ends(layer),
            "seconds": seconds[name],
        }
        for name, layer in layers().items()
    }
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "transformer-table1.json", {"lengths": LENGTHS, "layers": found})
    headers = ["layer", "operations", "exponent of n", "measured", "longest path", f"layers for {_SHORT} tokens"]
    rows = [
        [
            name,
            row["operations"],
            str(row["stated_exponent"]),
            f"{row['exponent']:.2f}",
            row["path"],
            str(row["layers"]),
        ]
        for name, row in found.items()
    ]
    lines = [
        Line(name, [(length, 1e3 * value) for length, value in zip(LENGTHS, row["seconds"], strict=True)], f"c{number}")
        for number, (name, row) in enumerate(found.items())
    ]
    page = page_template("reproduce/report.html").render(
        title="Table 1 of Vaswani et al. 2017: what a layer costs",
        about=_ABOUT,
        headers=headers,
        rows=rows,
        charts=[Chart("Time of a layer", line_chart(lines, x_name="tokens", y_name="milliseconds"))],
    )
    write_text(out / "transformer-table1.html", page)
    told = [
        f"{name}: time grows with n^{row['exponent']:.2f} (stated {row['stated_exponent']}); the ends of a text "
        f"meet after {row['layers']} layer{'s' * (row['layers'] != 1)}"
        for name, row in found.items()
    ]
    return {"layers": found, "lines": [*told, f"page: {out / 'transformer-table1.html'}"]}
