"""Figure 1 of the paper, measured: which input tokens each vector of the last layer depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.models.elmo_config import ElmoConfig
from maskloom.models.encoder import Encoder
from maskloom.models.gpt_config import GptConfig
from maskloom.reproduce.results import write_page
from maskloom.runs.charts import Chart, heat_map
from maskloom.runs.display import SILENT, Progress

LENGTH = 6
_SIZES: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "vocab_size": 50,
    "initializer_range": 0.3,  # with 0.02 a layer hardly changes its input
}
_ABOUT = (
    "Each row is an output vector T of the second of two layers with random weights; each column is the embedding E of "
    "a token. A cell shows the square root of the norm of the derivative; it is empty if the vector does not depend on "
    "the token."
)


def dependence(encoder: Encoder, token_ids: Tensor) -> Tensor:
    """Return how much each output vector changes with each token's embedding: the norms of the Jacobian's blocks.

    Takes (tokens,) and returns (tokens, tokens), output by input: exactly 0 where the output cannot see the input.
    """
    layout = SequenceLayout.from_lengths([len(token_ids)], token_ids.device)
    seen: list[Tensor] = []
    handle = encoder.embeddings.register_forward_hook(lambda *told: seen.append(told[-1]))
    output = encoder.eval().encode_packed(token_ids, torch.zeros_like(token_ids), layout).last_hidden_state
    handle.remove()
    rows = []
    for vector in output:
        blocks = [torch.autograd.grad(number, seen[0], retain_graph=True)[0] for number in vector]
        rows.append(torch.stack(blocks).square().sum((0, 2)).sqrt())
    return torch.stack(rows)


def figure_1(out: Path, _: Progress = SILENT) -> dict[str, Any]:
    """Measure BERT, left-to-right BERT, GPT and ELMo with random weights; write figure1 as .json, .html and .md."""
    ids = torch.arange(5, 5 + LENGTH)
    configs = {
        "BERT": BertConfig(**_SIZES, intermediate_size=64),
        "left-to-right BERT": BertConfig(**_SIZES, intermediate_size=64, causal=True),
        "GPT": GptConfig(**_SIZES, intermediate_size=128),
        "ELMo": ElmoConfig(**{**_SIZES, "num_attention_heads": 1}, intermediate_size=64),
    }
    found = {name: dependence(build_model(config, heads=(), seed=0).encoder, ids) for name, config in configs.items()}
    outputs, inputs = ([f"{letter}{place}" for place in range(1, LENGTH + 1)] for letter in "TE")
    charts = [
        Chart(name, heat_map(matrix.sqrt().tolist(), name="who sees whom", rows=outputs, columns=inputs))
        for name, matrix in found.items()
    ]
    seen = {
        name: "all others" if matrix.triu(1).any() else "itself and those before it" for name, matrix in found.items()
    }
    lines = [f"{name}: a token sees {tokens}" for name, tokens in seen.items()]
    content = {name: matrix.tolist() for name, matrix in found.items()}
    return write_page(out, "figure1", content, lines, title="Figure 1: who sees whom", about=_ABOUT, charts=charts)
