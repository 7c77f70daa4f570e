"""GPT: the sizes of the published models."""

import pytest
import torch

from maskloom.models.assembled import build_model
from maskloom.models.gpt_config import GptConfig

GPT_2 = {"pre_norm": True, "vocab_size": 50_257, "max_position_embeddings": 1_024}


@pytest.mark.parametrize(("keys", "number"), [({}, 116_534_784), (GPT_2, 124_439_808)], ids=["GPT", "GPT-2"])
def test_published_sizes_have_the_published_numbers_of_parameters(keys, number):
    with torch.device("meta"):
        model = build_model(GptConfig(**keys), ("lm",))
    assert sum(parameter.numel() for parameter in model.parameters()) == number
