"""Blocks that are recomputed in the backward pass, compiled or sharded give the same results."""

import copy

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from maskloom.layers.dropout import RowDraws, drawing
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.architectures import ARCHITECTURES
from maskloom.models.assembled import EncoderWithHeads, blocks_of, build_model, prepare_blocks
from maskloom.models.bert import BertConfig
from maskloom.training.ranks.distributed import DistributedRanks
from maskloom.training.ranks.rank_watch import RankWatch


def _model(*options: str) -> EncoderWithHeads:
    sizes = {"vocab_size": 99, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig.of_size("tiny", **sizes, **dict.fromkeys(options, True))
    return build_model(config, seed=0).train()


def _gradients(model: EncoderWithHeads) -> dict[str, torch.Tensor]:
    layout, ids = SequenceLayout.from_lengths([5, 9, 4]), torch.arange(18)
    torch.manual_seed(3)
    model.zero_grad()
    states = model.encoder.encode_packed(ids, torch.zeros_like(ids), layout).last_hidden_state
    # not the sum of squares: layer norm makes it constant, so all its gradients would be rounding errors
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
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's compiler accesses it
def test_compiled_blocks_keep_their_names_and_their_values_up_to_rounding(options: tuple[str, ...]) -> None:
    plain, compiled = _model(*options).eval(), _model(*options).eval()
    prepare_blocks(compiled, recompute=False, compile_=True)
    assert all(block._compiled_call_impl is not None for block in blocks_of(compiled))
    assert plain.state_dict().keys() == compiled.state_dict().keys()
    expected, found = _gradients(plain), _gradients(compiled)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)


DECODERS = {
    "transformer": (("decoder",), {"attention_probs_dropout_prob": 0.2}),
    "bart": (("decoder",), {"activation_dropout": 0.2}),
    "bart, on top of its encoder": ((), {"attention_probs_dropout_prob": 0.2}),
    "t5": (("decoder",), {"head_size": 4}),
}
SOURCES, TARGETS = [5, 9, 4], [7, 1, 6]


def _with_decoder(name: str) -> EncoderWithHeads:
    sizes = {"vocab_size": 99, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    layers = {"num_hidden_layers": 2, "num_decoder_layers": 3, "max_position_embeddings": 12}
    heads, more = DECODERS[name]
    config = ARCHITECTURES[name.partition(",")[0]].config_type(**sizes, **layers, hidden_dropout_prob=0.3, **more)
    return build_model(config, heads, seed=0).train()


def _decoder_of(model: EncoderWithHeads) -> torch.nn.Module:
    return model.heads["decoder"] if model.encoder.top is None else model.encoder.top


def _loss(model: EncoderWithHeads) -> torch.Tensor:
    (source, target), ids = map(SequenceLayout.from_lengths, (SOURCES, TARGETS)), torch.arange(18)
    hidden = model.encoder.encode_packed(ids, torch.zeros_like(ids), source).last_hidden_state
    if "decoder" not in model.heads:
        return (hidden * torch.randn(hidden.shape, generator=torch.Generator().manual_seed(5))).sum()
    vectors = model.heads["decoder"](ids[4:], target, hidden, source)
    return model.heads["decoder"].loss_sum(vectors, ids[:14])


class _Loss:
    """The same loss as an objective."""

    def loss_sums(self, model: EncoderWithHeads, batch: None) -> dict[str, torch.Tensor]:
        return {"loss": _loss(model)}


def _gradients_of_loss(model: EncoderWithHeads, draws: RowDraws | None = None) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    model.zero_grad()
    with drawing(draws):
        _loss(model).backward()
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("is_keyed", [False, True])
@pytest.mark.parametrize("name", DECODERS)
def test_layers_of_a_decoder_are_computed_again_with_the_same_draws(name: str, is_keyed: bool) -> None:
    model, computed, found = _with_decoder(name), [], []
    layers = _decoder_of(model).layers
    for layer in layers:
        layer.cross_attention.register_forward_pre_hook(lambda module, _: computed.append(module))
    for recomputes in (False, True):
        prepare_blocks(model, recompute=recomputes, compile_=False)
        assert all(layer.recomputes == recomputes for layer in layers)
        for seed in (7, 8):
            computed.clear()
            draws = RowDraws(seed, 0, np.array(SOURCES)) if is_keyed else None
            found.append(_gradients_of_loss(model, draws))
            twice = [layer.cross_attention for layer in reversed(layers)] if recomputes else []
            assert computed == [*(layer.cross_attention for layer in layers), *twice]
    first, _, again, last = found
    assert first.keys() == again.keys()
    assert all(torch.equal(value, again[key]) for key, value in first.items())
    assert torch.equal(last["encoder.embeddings.word.weight"], first["encoder.embeddings.word.weight"]) != is_keyed


def test_layers_of_an_encoder_of_sources_are_blocks_too() -> None:
    config = _with_decoder("bart").config.with_sources(50, 4)
    model = build_model(config, ("decoder",))
    assert len(model.encoder.source.layers) == 4
    layers = [*model.encoder.layers, *model.encoder.source.layers, *model.heads["decoder"].layers]
    assert set(blocks_of(model)) == set(layers)
    assert len(blocks_of(model)) == len(layers)


def test_layers_of_a_decoder_are_sharded_by_themselves() -> None:
    expected = _gradients_of_loss(_with_decoder("transformer").eval())
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        for recomputes in (False, True):
            model = _with_decoder("transformer").eval()
            ranks = DistributedRanks("fsdp", RankWatch(store, 0, 1, 60.0), dist.group.WORLD, torch.device("cpu"))
            prepare_blocks(model, recompute=recomputes, compile_=False)
            ranks.spread(model)
            assert all(isinstance(layer, FSDPModule) for layer in (*model.encoder.layers, *_decoder_of(model).layers))
            ranks.add_gradients(model, _Loss(), None, {"loss": 1.0}, is_last=True)
            for name, parameter in model.named_parameters():
                torch.testing.assert_close(parameter.grad.full_tensor(), expected[name], rtol=1e-5, atol=1e-5)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_layers_of_a_decoder_are_compiled(name: str) -> None:
    model = _with_decoder(name)
    prepare_blocks(model, recompute=False, compile_=True)
    assert all(layer._compiled_call_impl is not None for layer in _decoder_of(model).layers)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's compiler accesses it
def test_compiled_layers_of_a_decoder_keep_their_values_up_to_rounding(recompute: bool) -> None:
    plain, compiled = (_with_decoder("transformer").eval() for _ in range(2))
    prepare_blocks(compiled, recompute=recompute, compile_=True)
    expected, found = _gradients_of_loss(plain), _gradients_of_loss(compiled)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
