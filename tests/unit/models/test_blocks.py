"""Blocks that are computed again in the backward pass, or compiled, give what they gave."""

import copy

import pytest
import torch

from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import EncoderWithHeads, blocks_of, build_model, prepare_blocks
from maskloom.models.bert import BertConfig


def _model(*options: str) -> EncoderWithHeads:
    sizes = {"vocab_size": 99, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig.of_size("tiny", **sizes, **dict.fromkeys(options, True))
    return build_model(config, seed=0).train()


def _gradients(model: EncoderWithHeads) -> dict[str, torch.Tensor]:
    layout, ids = SequenceLayout.from_lengths([5, 9, 4]), torch.arange(18)
    torch.manual_seed(3)
    model.zero_grad()
    states = model.encoder.encode_packed(ids, torch.zeros_like(ids), layout).last_hidden_state
    # not the sum of their squares: a layer norm makes that constant, and all its gradients rounding errors
    (states * torch.randn(states.shape, generator=torch.Generator().manual_seed(5))).sum().backward()
    return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


OPTIONS = pytest.mark.parametrize("options", [(), ("pre_norm", "gated", "rotary")], ids="+".join)


@OPTIONS
def test_recomputed_blocks_keep_less_and_give_the_same_gradients_to_the_bit(options: tuple[str, ...]) -> None:
    kept: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[-1] += tensor.numel()
        return tensor

    found = []
    for recomputes in (False, True):
        model = _model(*options)
        prepare_blocks(model, recompute=recomputes, compile_=False)
        kept.append(0)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            found.append(_gradients(copy.deepcopy(model)))
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())
    assert kept[1] < kept[0] / 2


@OPTIONS
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's compiler looks at it
def test_compiled_blocks_keep_their_names_and_their_values_up_to_rounding(options: tuple[str, ...]) -> None:
    plain, compiled = _model(*options).eval(), _model(*options).eval()
    prepare_blocks(compiled, recompute=False, compile_=True)
    assert all(block._compiled_call_impl is not None for block in blocks_of(compiled))
    assert plain.state_dict().keys() == compiled.state_dict().keys()
    expected, found = _gradients(plain), _gradients(compiled)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
