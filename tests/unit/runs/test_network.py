"""The blocks of a model: every parameter counted once, and the sizes of the paper."""

import pytest
import torch
from tests.unit.inference.generators import READERS, SIZES, WRITERS

from maskloom.models.assembled import build_model
from maskloom.models.transformer_config import TransformerConfig
from maskloom.runs.report.generation import blocks


def test_the_base_model_of_the_transformer_has_the_blocks_and_sizes_of_the_paper():
    config = TransformerConfig(
        vocab_size=37_000,
        hidden_size=512,
        num_hidden_layers=6,
        num_attention_heads=8,
        intermediate_size=2048,
    )
    with torch.device("meta"):
        encoder, decoder = blocks(build_model(config, ("decoder",)))
    assert (encoder.kind, decoder.kind) == ("Transformer", "TransformerDecoder")
    assert decoder.sizes[0] == "decoder 37,000 × 512, shared"
    words, layers = encoder.parts[:2]
    assert words.num_parameters == 37_000 * 512
    assert [part.kind for part in words.parts] == ["Embedding", "Positions"]
    attention, norm, inner = 4 * (512 * 512 + 512), 2 * 512, 2 * 512 * 2048 + 2048 + 512
    expected = [("attention", attention), ("attention_layer_norm", norm)]
    for owner, more in (
        (encoder, []),
        (decoder, [("cross_attention", attention), ("cross_attention_layer_norm", norm)]),
    ):
        (layers,) = (part for part in owner.parts if part.kind == "TransformerLayer")
        found = [(part.name, part.num_parameters) for part in layers.parts]
        assert found == [*expected, *more, ("feed_forward", inner), ("feed_forward_layer_norm", norm)]
        assert (layers.number, layers.num_parameters) == (6, sum(number for _, number in found))
        (up, down) = layers.parts[-2].parts
        assert (up.sizes, down.sizes) == (["weight 2,048 × 512", "bias 2,048"], ["weight 512 × 2,048", "bias 512"])


@pytest.mark.parametrize("name", [*WRITERS, *READERS])
def test_every_parameter_counts_once(name):
    kind, more = (WRITERS | READERS)[name]
    head = "decoder" if name in WRITERS else {"gpt": "lm", "bert": "mlm"}[name]
    model = build_model(kind(vocab_size=13, max_position_embeddings=80, **SIZES, **more).with_marks(0, 2, 3), (head,))
    assert sum(block.num_parameters for block in blocks(model)) == sum(one.numel() for one in model.parameters())


def test_layers_that_differ_stand_apart():
    model, first, tied = torch.nn.Module(), torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)
    tied.weight = first.weight
    model.layers = torch.nn.ModuleList([first, torch.nn.Linear(2, 3), torch.nn.Linear(2, 4), tied])
    model.dropout, model.nothing = torch.nn.Dropout(), torch.nn.Identity()
    found = [(block.number, block.name, block.num_parameters, block.sizes) for block in blocks(model)]
    assert found == [
        (2, "layers", 9, ["weight 3 × 2", "bias 3"]),
        (1, "layers", 12, ["weight 4 × 2", "bias 4"]),
        (1, "layers", 3, ["weight 3 × 2, shared", "bias 3"]),
    ]
