"""torch.export traces an encoder for every batch size and length."""

import pytest
import torch

from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.models.t5_config import T5Config


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("has_mask", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(
    "options",
    [
        (),
        pytest.param(("pre_norm", "gated", "rotary"), marks=pytest.mark.slow),
        pytest.param(("rotary", "causal"), marks=pytest.mark.slow),
        ("t5",),
    ],
    ids="+".join,
)
def test_an_exported_encoder_gives_what_the_eager_one_gives(has_mask, options, tmp_path):
    num_layers = 2 if options == ("t5",) else 1
    sizes = {
        "vocab_size": 30, "hidden_size": 16, "num_hidden_layers": num_layers, "num_attention_heads": 2,
        "intermediate_size": 24, "max_position_embeddings": 32, "initializer_range": 0.5,
    }  # fmt: skip
    options = dict.fromkeys(options, True)
    config = T5Config(**sizes) if "t5" in options else BertConfig(**sizes, **options)
    model = build_model(config, (), seed=0).encoder.eval()
    generator = torch.Generator().manual_seed(3)

    def inputs(batch, length):
        ids = torch.randint(0, 30, (batch, length), generator=generator)
        if not has_mask:
            return ids, {}
        mask = (torch.rand((batch, length), generator=generator) > 0.3).long()
        mask[0] = 0  # a row without tokens; the others have padding anywhere
        segments = torch.randint(0, 2, (batch, length), generator=generator)
        return ids, {"attention_mask": mask, "segment_ids": segments}

    ids, others = inputs(3, 7)
    sizes = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=2, max=32)}
    program = torch.export.export(
        model, (ids,), others, dynamic_shapes={"token_ids": sizes, **dict.fromkeys(others, sizes)}
    )
    file = tmp_path / "encoder.pt2"
    torch.export.save(program, file)
    exported = torch.export.load(file).module()
    for batch, length in [(1, 2), (3, 7), (5, 32), (2, 19)]:
        ids, others = inputs(batch, length)
        with torch.no_grad():
            expected, found = model(ids, **others), exported(ids, **others)
        torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.pooled, expected.pooled, atol=1e-5, rtol=1e-5)
