import copy
import inspect
import re
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from maskloom.checkpoints.huggingface import FORMATS
from maskloom.models.architectures import ARCHITECTURES
from maskloom.models.assembled import blocks_of, build_model
from maskloom.models.bert import BertConfig
from maskloom.models.gpt_config import GptConfig
from maskloom.training.optimizers import (
    SCHEDULES,
    AdamW,
    BertAdam,
    TimeBudget,
    factor_of,
    make_optimizer,
    make_schedule,
    parameter_groups,
    rate_of,
)
from maskloom.training.ranks.ranks import ONE_RANK
from maskloom.training.settings import Extension, TrainingSection

SIZES = {"vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def _groups(model, **options) -> list[tuple[float, list[str]]]:
    """Return each group's weight decay and the names of its parameters, in order."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [
        (group["weight_decay"], [names[parameter] for parameter in group["params"]])
        for group in parameter_groups(model, 0.01, **options)
    ]


def _groups_by_name(model) -> list[tuple[float, list[str]]]:
    """Return the groups according to the parameter names that the published code exempts."""
    exempt = re.compile(r"(layer|final)_?norm\.|\.bias(_|$)", re.IGNORECASE)  # but not T5's tables of relative biases
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    decayed, rest = ([name for name in names if bool(exempt.search(name)) is is_exempt] for is_exempt in (False, True))
    return [group for group in ((0.01, decayed), (0.0, rest)) if group[1]]


MODELS = [(name, head) for name in ARCHITECTURES for head in [*FORMATS[name].heads, None]]


@pytest.mark.parametrize(("name", "head"), MODELS)
def test_groups_are_those_of_the_published_names_for_every_architecture_and_head(name: str, head: str | None) -> None:
    options = {"bilstm_tagger": {"layers": "scalar_mix", "lstm_size": 6}}
    has_heads = not ARCHITECTURES[name].has_state and not ARCHITECTURES[name].reads_spelling
    sizes = {key: value for key, value in SIZES.items() if has_heads or key != "num_attention_heads"}
    config = ARCHITECTURES[name].config_type(**sizes)
    model = build_model(config, [head] if head else [], 3, head_options=options)
    assert _groups(model) == _groups_by_name(model)
    both = [
        (decay, [n for n in names if ("heads" in n.split(".")) is head_])
        for head_ in (False, True)
        for decay, names in _groups_by_name(model)
    ]
    assert _groups(model, has_own_head_rate=True) == [group for group in both if group[1]]


def test_a_norm_at_the_end_has_no_decay_whatever_it_is_called() -> None:
    model = build_model(GptConfig(**SIZES, pre_norm=True), ("lm",))
    (_, decayed), (_, exempt) = _groups(model)
    assert "encoder.final_norm.weight" in exempt
    assert all(name.endswith(".weight") and "norm" not in name for name in decayed)


class _Table(nn.Embedding):
    """A bias on scores by distance, as in T5."""


def _with_more(model):
    """Add what names would misclassify to a model: a norm without biases, and a table of biases by distance."""
    model.encoder.layers[0].rms = nn.RMSNorm(8)
    model.encoder.layers[0].relative_bias = _Table(4, 2)
    model.encoder.layers[0].around = nn.Sequential(nn.Linear(8, 8))
    return model


def test_types_of_modules_decide_and_the_row_of_the_architecture_adds_some(monkeypatch) -> None:
    model = _with_more(build_model(BertConfig(**SIZES), ()))
    plain, place = _groups(model), "encoder.layers.0."
    assert {f"{place}relative_bias.weight", f"{place}around.0.weight"} <= {*plain[0][1]}
    assert {f"{place}rms.weight", f"{place}around.0.bias"} <= {*plain[1][1]}
    monkeypatch.setitem(ARCHITECTURES, "bert", replace(ARCHITECTURES["bert"], undecayed=(_Table, nn.Sequential)))
    changed = _groups(model)
    assert {*plain[0][1]} - {*changed[0][1]} == {f"{place}relative_bias.weight", f"{place}around.0.weight"}


def test_wrapped_and_sharded_models_have_the_same_groups() -> None:
    model = _with_more(build_model(BertConfig(**SIZES), ("mlm", "nsp"), seed=0))
    expected = _groups(model)
    wrapped = nn.ModuleDict({"module": model})
    assert _groups(wrapped) == [(decay, [f"module.{name}" for name in names]) for decay, names in expected]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        for module in (model.encoder.layers[0].rms, model.encoder.embeddings.layer_norm, *blocks_of(model), model):
            fully_shard(module, mesh=mesh)
        assert type(model.encoder.layers[0].rms) is not nn.RMSNorm
        assert _groups(model) == expected
    finally:
        dist.destroy_process_group()


def _reference_step(p, m, v, g, lr, decay):
    """The published rule, in double precision (Devlin et al.; no bias correction)."""
    m.mul_(0.9).add_(0.1 * g)
    v.mul_(0.999).add_(0.001 * g * g)
    p.sub_(lr * (m / (v.sqrt() + 1e-6) + decay * p))


def test_bert_adam_follows_the_published_rule_for_50_steps() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(5, 3))
    bias = nn.Parameter(torch.randn(3))
    groups = [{"params": [weight], "weight_decay": 0.01}, {"params": [bias], "weight_decay": 0.0}]
    optimizer = BertAdam(groups, lr=1e-3, betas=(0.9, 0.999), eps=1e-6)
    expected = {
        p: (p.detach().double().clone(), torch.zeros(p.shape).double(), torch.zeros(p.shape).double())
        for p in (weight, bias)
    }
    for step in range(50):
        rate = 1e-3 * (step + 1) / 50
        for group in optimizer.param_groups:
            group["lr"] = rate
        for parameter, decay in ((weight, 0.01), (bias, 0.0)):
            parameter.grad = torch.randn(parameter.shape) * 10 ** (step % 5 - 3)
            _reference_step(*expected[parameter], parameter.grad.double(), rate, decay)
        optimizer.step()
        assert optimizer.param_groups[0]["lr"] == rate
        assert optimizer.param_groups[0]["eps"] == 1e-6
        for parameter, (value, _, _) in expected.items():
            torch.testing.assert_close(parameter.double(), value, atol=1e-6, rtol=1e-6)


def test_bert_adam_counts_by_itself_and_notices_another_state() -> None:
    """A GPU is asked only once for the number of steps; a loaded checkpoint or a copy has a different one."""
    torch.manual_seed(0)
    parameter, idle = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))

    def stepped(optimizer: BertAdam, values: nn.Parameter, times: int) -> torch.Tensor:
        for _ in range(times):
            values.grad = torch.ones(4)
            optimizer.step()
        return values.detach().clone()

    options = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-6}
    optimizer = BertAdam([parameter, idle], **options)
    stepped(optimizer, parameter, 3)
    kept = {name: value.clone() for name, value in optimizer.state[parameter].items()}
    before = parameter.detach().clone()
    expected = stepped(optimizer, parameter, 2)
    parameter.grad = None
    optimizer.step()  # nothing to do, and no step is counted
    assert optimizer._num_taken(0) == int(optimizer.state[parameter]["step"]) == 5
    with torch.no_grad():
        parameter.copy_(before)
    optimizer.state[parameter] = kept
    assert torch.equal(stepped(optimizer, parameter, 2), expected)
    twin = copy.deepcopy(optimizer)
    assert torch.equal(
        stepped(twin, twin.param_groups[0]["params"][0], 2),
        stepped(optimizer, parameter, 2),
    )


def test_the_first_update_without_correction_is_larger_than_with() -> None:
    """Without correction the first update is 0.1 / sqrt(0.001) = 3.16 times the rate."""
    parameter = nn.Parameter(torch.zeros(4))
    parameter.grad = torch.tensor([1.0, -2.0, 30.0, -0.5])
    BertAdam([parameter], lr=1e-3, betas=(0.9, 0.999), eps=1e-9).step()
    torch.testing.assert_close(parameter.detach(), -3.1623e-3 * torch.tensor([1.0, -1.0, 1.0, -1.0]), rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", ["adamw", "bert_adam"])
def test_a_parameter_without_gradient_does_not_crash(name: str) -> None:
    model = nn.Module()
    model.used = nn.Parameter(torch.ones(2, 2))
    model.idle = nn.Parameter(torch.ones(2, 2))
    optimizer = make_optimizer(model, TrainingSection(optimizer=name))
    model.used.grad = torch.ones(2, 2)
    optimizer.step()
    assert not torch.equal(model.used, torch.ones(2, 2))


@pytest.mark.parametrize("name", ["adamw", "bert_adam"])
def test_decay_rates_and_epsilon_are_the_recipes(name: str) -> None:
    """The second gradient is 0, so each step shows how much of the first one is left."""
    model = nn.Module()
    model.used = nn.Parameter(torch.zeros(1, 1, dtype=torch.float64))
    beta1, beta2, epsilon = 0.7, 0.6, 0.25
    own = {"adam_beta1": beta1, "adam_beta2": beta2, "adam_epsilon": epsilon, "weight_decay": 0.0}
    optimizer = make_optimizer(model, TrainingSection(optimizer=name, learning_rate=1.0, **own))
    expected = 0.0
    for step, gradient in ((1, 2.0), (2, 0.0)):
        model.used.grad = torch.full((1, 1), gradient, dtype=torch.float64)
        optimizer.step()
        mean, square = (1 - beta1) * 2.0 * beta1 ** (step - 1), (1 - beta2) * 4.0 * beta2 ** (step - 1)
        if name == "adamw":
            mean, square = mean / (1 - beta1**step), square / (1 - beta2**step)
        expected -= mean / (square**0.5 + epsilon)
        assert model.used.item() == pytest.approx(expected)


def _tagger():
    return build_model(BertConfig.of_size("tiny", vocab_size=50), ("tagger", "crf"), 3, seed=0)


@pytest.mark.parametrize("name", ["adamw", "bert_adam"])
def test_heads_with_a_rate_of_their_own_are_further_groups(name: str) -> None:
    model = _tagger()
    settings = TrainingSection(optimizer=name, learning_rate=1e-4, head_learning_rate=1e-2, weight_decay=0.03)
    names = {parameter: key for key, parameter in model.named_parameters()}
    found = [
        (rate_of(group, settings), group["weight_decay"], names[parameter])
        for group in make_optimizer(model, settings).param_groups
        for parameter in group["params"]
    ]
    assert sorted(key for *_, key in found) == sorted(names.values())
    exempt = _groups(model)[1][1]
    for rate, decay, key in found:
        assert rate == (1e-2 if key.startswith("heads.") else 1e-4)
        assert decay == (0.0 if key in exempt else 0.03)
    assert {key for rate, _, key in found if rate == 1e-2} >= {"heads.crf.transitions", "heads.crf.start"}


@pytest.mark.parametrize("name", ["adamw", "bert_adam"])
def test_without_a_rate_for_heads_nothing_is_split(name: str) -> None:
    model = _tagger()
    groups = make_optimizer(model, TrainingSection(optimizer=name)).param_groups
    plain = parameter_groups(model, 0.01)
    assert len(groups) == len(plain) == 2
    for group, expected in zip(groups, plain, strict=True):
        assert [id(parameter) for parameter in group["params"]] == [id(parameter) for parameter in expected["params"]]
        assert rate_of(group, TrainingSection(learning_rate=3e-4)) == 3e-4


def test_google_schedule_has_the_published_jump() -> None:
    factor = make_schedule("google", warmup_steps=34, steps=343)
    assert factor(0) == 0.0
    assert factor(33) == pytest.approx(33 / 34)
    assert factor(34) == pytest.approx(1 - 34 / 343)
    assert factor(342) == pytest.approx(1 / 343)


def test_linear_schedule_reaches_one_and_falls_to_zero() -> None:
    factor = make_schedule("linear", warmup_steps=10, steps=110)
    assert factor(0) == 0.0
    assert factor(9) == pytest.approx(0.9)
    assert factor(10) == 1.0
    assert factor(60) == pytest.approx(0.5)
    assert factor(109) == pytest.approx(0.01)


@pytest.mark.parametrize("name", [*SCHEDULES])
@pytest.mark.parametrize(("warmup", "steps"), [(0, 1), (0, 7), (7, 7), (1, 1)])
def test_edges_stay_within_zero_and_one(name: str, warmup: int, steps: int) -> None:
    factor = make_schedule(name, warmup_steps=warmup, steps=steps)
    assert all(0.0 <= factor(step) <= 1.0 for step in range(steps + 2))
    if warmup == 0:
        assert factor(0) == 1.0


@pytest.mark.parity
@pytest.mark.parametrize("name", ["linear", "cosine", "inverse_sqrt", "constant"])
def test_schedules_equal_those_of_transformers(name: str) -> None:
    import torch
    from transformers import get_scheduler

    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    their_name = "constant_with_warmup" if name == "constant" else name
    theirs = get_scheduler(their_name, optimizer, num_warmup_steps=5, num_training_steps=50)
    ours = make_schedule(name, warmup_steps=5, steps=50)
    for step in range(50):
        assert ours(step) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        theirs.step()


def _extended(steps: int, extensions: list[tuple[int, int]], name="linear", warmup_steps: int = 10) -> list[float]:
    plans = [Extension(at=at, steps=planned) for at, planned in extensions]
    settings = TrainingSection(schedule=name, warmup_steps=warmup_steps, steps=steps, extensions=plans)
    return list(map(factor_of(settings), range(steps)))


def test_an_extended_run_goes_on_a_line_to_the_rate_of_the_longer_one() -> None:
    plain, longer = _extended(100, []), _extended(200, [])
    found = _extended(200, [(60, 100)])
    assert found[:60] == plain[:60]
    assert found[70:] == longer[70:]
    assert found[60] == pytest.approx(plain[60])
    assert found[65] == pytest.approx((plain[60] + longer[65]) / 2)


def test_a_run_that_is_shortened_to_less_than_its_warm_up_still_falls_to_its_end() -> None:
    found = _extended(16_000, [(15_000, 20_000)], warmup_steps=2000)[15_000:]
    assert found == sorted(found, reverse=True)
    assert found[-1] < 1e-3


def test_a_run_that_had_decayed_is_warmed_up_again() -> None:
    found = _extended(200, [(100, 100)])
    assert found[99] == pytest.approx(1 / 90)
    assert found[100] == 0.0
    assert 0.0 < found[101] < found[105] < found[110] == _extended(200, [])[110]


def test_a_run_may_be_shortened_and_extended_again() -> None:
    found = _extended(120, [(30, 100), (50, 60)])
    assert found[:50] == _extended(60, [(30, 100)])[:50]
    assert found[60:] == _extended(120, [])[60:]
    assert all(abs(a - b) < 0.11 for a, b in pairwise(found))
    assert _extended(200, [(60, 100)], name="google")[70:] == _extended(200, [], name="google")[70:]
    assert _extended(200, [(60, 100)], warmup_steps=0)[60:] == _extended(200, [], warmup_steps=0)[60:]


@pytest.mark.parametrize("name", [*SCHEDULES])
def test_the_clocks_schedule_is_that_of_steps(name) -> None:
    def by_clock(fraction: float, warmup_ratio: float) -> float:
        times = iter((0.0, 1000.0 * fraction))
        settings = TrainingSection(schedule=name, warmup_ratio=warmup_ratio)
        budget = TimeBudget(1000.0, settings, ONE_RANK, now=lambda: next(times))
        budget.start()
        return budget.factor(0)

    for step in range(0, 1001, 7):
        by_steps = make_schedule(name, warmup_steps=100, steps=1000)(step)
        assert by_clock(step / 1000, 0.1) == pytest.approx(by_steps)
    if name in ("linear", "google"):
        assert by_clock(1.0, 1.0) == 0.0
    assert by_clock(0.0, 0.0) == 1.0


@pytest.mark.parametrize("kind", [AdamW, BertAdam])
def test_steps_do_not_import_the_compiler(kind, monkeypatch):
    """Nor do they call torch's wrappers, which import it when they are first called."""
    called = set()
    for name in ("torch._dynamo", "sympy"):
        monkeypatch.setitem(sys.modules, name, None)  # an import raises, also where a test before this one imported it
    weight = torch.nn.Parameter(torch.ones(2))
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: called.add(frame.f_code.co_filename))
    try:
        optimizer = kind([weight], 0.1, (0.9, 0.999), 1e-6)
        weight.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.load_state_dict(optimizer.state_dict())
    finally:
        sys.setprofile(before)
    assert inspect.getsourcefile(torch.optim.AdamW) in called
    assert torch._compile.__file__ not in called


def test_without_the_wrappers_adamw_takes_the_steps_of_torch():
    weights = [torch.nn.Parameter(torch.linspace(-1, 1, 7)) for _ in range(2)]
    ours = AdamW([weights[0]], 0.1, (0.9, 0.99), 1e-6)
    theirs = torch.optim.AdamW([weights[1]], 0.1, (0.9, 0.99), 1e-6, fused=True)
    for number in range(5):
        for weight, optimizer in zip(weights, (ours, theirs), strict=True):
            weight.grad = torch.linspace(1, 2, 7) * number
            optimizer.step()
    assert torch.equal(*weights)
    assert weights[0].is_leaf
