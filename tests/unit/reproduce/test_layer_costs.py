"""Table 1 of the Transformer paper: the layers, the path between the ends of a text, and the page."""

import json
import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from maskloom.errors import ConfigError
from maskloom.reproduce import layer_costs
from maskloom.reproduce.layer_costs import KERNEL, LENGTHS, NEIGHBORS, SIZE, layers, num_layers_between_ends, restricted


def test_restricted_attention_is_full_attention_with_a_band():
    vectors = torch.randn(30, SIZE, generator=torch.Generator().manual_seed(1))
    places = torch.arange(30)
    band = (places - places.unsqueeze(1)).abs() <= NEIGHBORS
    full = F.scaled_dot_product_attention(*3 * (vectors[None, None],), attn_mask=band)[0, 0]
    torch.testing.assert_close(restricted(vectors), full, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("length", [2, 9, 10, 25, 27, 28, 40])
def test_ends_meet_after_as_many_layers_as_the_paths_of_the_paper(length):
    found = {name: num_layers_between_ends(layer, length) for name, layer in layers().items()}
    reach, log = KERNEL // 2, next(number for number in range(1, 9) if KERNEL**number >= length)
    convolutions = {"convolution": math.ceil((length - 1) / reach), "dilated convolution": log}
    restricted_path = math.ceil((length - 1) / NEIGHBORS)
    assert found == {"self-attention": 1, "recurrent": 1, **convolutions, "restricted self-attention": restricted_path}


def test_operations_grow_with_the_stated_powers_of_length_and_size(monkeypatch):
    lengths = (64, 128, 256, 512, 1024, 2048)

    def exponent(values, counts):
        return float(np.polyfit(np.log(values), np.log(counts), 1)[0])

    def operations(name, length, size):
        monkeypatch.setattr(layer_costs, "SIZE", size)
        layer, vectors = layers()[name], torch.randn(length, size)
        # torch counts matrix products and convolutions, and its plain attention consists of these
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
            layer(vectors)
        return counter.get_total_flops()

    for name, (stated, power, _) in layer_costs._STATED.items():
        assert power == (2 if "n²" in stated else 1)
        found = exponent(lengths, [operations(name, length, SIZE) for length in lengths])
        assert found == pytest.approx(power, abs=0.01), name
        found = exponent((16, 32, 64), [operations(name, 64, size) for size in (16, 32, 64)])
        assert found == pytest.approx(2 if "d²" in stated else 1, abs=0.01), name


@pytest.mark.parametrize(
    ("exponents", "verdict"),
    [
        ([2.0, 2.1, 1.9, 2.0], "shown"),
        ([1.8, 2.2, 1.6, 2.4], "not shown"),
        ([1.0, 1.1, 0.9, 1.0], "denied"),
    ],
)
def test_a_verdict_goes_by_the_exponents_of_rounds(exponents, verdict):
    seconds = np.array([[1e-9 * length**exponent for length in LENGTHS] for exponent in exponents])
    found = layer_costs.cost("self-attention", seconds)
    assert found["trend"]["verdict"] == verdict
    assert found["exponent"] == pytest.approx(np.median(exponents))


def test_a_length_whose_rounds_differ_is_unstable():
    seconds = np.array([[1e-9 * length for length in LENGTHS]] * 5)
    assert layer_costs.cost("recurrent", seconds)["unstable"] == []
    seconds[3, 2] *= 1.6
    assert layer_costs.cost("recurrent", seconds)["unstable"] == [LENGTHS[2]]


def test_the_page_has_a_row_for_each_layer(tmp_path, monkeypatch):
    monkeypatch.setattr(layer_costs, "LENGTHS", (8, 16, 32))
    lines = layer_costs.transformer_table_1(tmp_path / "out")["lines"]
    assert re.match(r"self-attention: time grows with n\^2: (shown|not shown|denied) \(", lines[0])
    content = json.loads((tmp_path / "out" / "transformer-table1.json").read_text())
    assert [len(row["seconds"]) for row in content["layers"].values()] == [3] * 5
    page = (tmp_path / "out" / "transformer-table1.html").read_text()
    assert page.count("<polyline") == 10  # five layers each for the time and the longest path
    assert "recurrent: 49.000 at 49</title>" in page
    assert content["layers"]["dilated convolution"]["paths"] == [2, 2, 3, 3, 4, 4]
    assert content["layers"]["restricted self-attention"]["paths"] == [1, 1, 2, 3, 4, 6]
    assert "n / k" in page
    assert "log_k n" in page
    assert ">milliseconds</text>" in page
    assert len(re.findall(r"time grows with n\^[12]</td><td[^>]*>(?:shown|not shown|denied)</td>", page)) == 5
    table = (tmp_path / "out" / "transformer-table1.md").read_text()
    assert "Made by `maskloom reproduce transformer-table1 --out DIR`; do not edit." in table
    assert re.search(r"^\| self-attention \| n² d \| 2 \| \d\.\d\d \| .* \| 1 \| 1 \|$", table, re.MULTILINE)
    assert table.endswith("".join(f"- {line}\n" for line in lines[:-1]))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="this is a file; choose a folder as --out"):
        layer_costs.transformer_table_1(tmp_path / "file")
