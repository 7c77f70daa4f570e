import math
from functools import partial

import numpy as np
import pytest
import torch
from tests.device_reads import Reads
from tests.unit.training.tiny_sessions import are_equal, weights_of

from maskloom.data.batch import PretrainingBatch
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.training.faults.nonfinite import NumericalError
from maskloom.training.loop import StepDraws, accumulate_gradients, evaluate, train_steps
from maskloom.training.optimizers import OPTIMIZERS
from maskloom.training.ranks.ranks import Ranks
from maskloom.training.settings import TrainingSection
from maskloom.training.state import TrainState

VOCABULARY = 41


def _model(seed: int = 0, dropout: float = 0.0):
    config = BertConfig.of_size(
        "tiny",
        vocab_size=VOCABULARY,
        hidden_size=12,
        num_attention_heads=3,
        intermediate_size=20,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return build_model(config, seed=seed)


def _batch(predictions: list[int], seed: int = 0) -> PretrainingBatch:
    """Return a batch whose sequences have the given numbers of predictions."""
    rng = np.random.default_rng(seed)
    lengths = np.array([max(count, 0) + 3 + index for index, count in enumerate(predictions)])
    starts = np.cumsum(lengths) - lengths
    positions = [start + 1 + np.arange(count) for start, count in zip(starts, predictions, strict=True)]
    total = int(lengths.sum())
    return PretrainingBatch(
        token_ids=rng.integers(5, VOCABULARY, total),
        segment_ids=rng.integers(0, 2, total),
        lengths=lengths.astype(np.int64),
        mlm_positions=np.concatenate(positions).astype(np.int64),
        mlm_labels=rng.integers(5, VOCABULARY, sum(predictions)),
        nsp_labels=rng.integers(0, 2, len(predictions)),
    )


def _gradients(model) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("micro", [1, 2, 3])
def test_micro_batches_with_uneven_counts_equal_one_batch(micro: int) -> None:
    """With 1 and 19 predictions in two sequences, a mean of means would be wrong."""
    batch = _batch([1, 19, 0, 4, 7])
    whole, parts = _model(), _model()
    losses = accumulate_gradients(whole, MaskedLanguageModeling(), batch, None)
    split = accumulate_gradients(parts, MaskedLanguageModeling(), batch, micro)
    assert split == pytest.approx(losses, rel=1e-5)
    expected, found = _gradients(whole), _gradients(parts)
    assert expected.keys() == found.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)


def test_a_batch_without_predictions_has_no_masked_lm_loss() -> None:
    model = _model()
    losses = accumulate_gradients(model, MaskedLanguageModeling(), _batch([0, 0]), None)
    assert losses["mlm"] == 0.0
    assert losses["nsp"] == pytest.approx(math.log(2), abs=0.1)
    assert all(torch.isfinite(gradient).all() for gradient in _gradients(model).values())


def test_loss_equals_the_mean_over_predictions_and_sequences() -> None:
    batch = _batch([1, 19])
    model = _model().eval()
    objective = MaskedLanguageModeling()
    with torch.inference_mode():
        sums = objective.loss_sums(model, batch)
        hidden, pooled = objective._vectors(model, batch)
        labels, pairs = torch.from_numpy(batch.mlm_labels), torch.from_numpy(batch.nsp_labels)
        mlm = torch.nn.functional.cross_entropy(model.heads["mlm"](hidden), labels)
        nsp = torch.nn.functional.cross_entropy(model.heads["nsp"](pooled), pairs)
    assert float(sums["mlm"]) / 20 == pytest.approx(float(mlm), rel=1e-5)
    assert float(sums["nsp"]) / 2 == pytest.approx(float(nsp), rel=1e-5)


def _batches(position: dict) -> tuple[PretrainingBatch, dict]:
    index = position.get("instance", 0)
    return _batch([2, 3, 1, 5], seed=index), {"instance": index + 1}


def _run(settings: TrainingSection, seed: int = 3, dropout: float = 0.1):
    state = TrainState.fresh(_model(dropout=dropout), settings)
    reports = list(train_steps(state, MaskedLanguageModeling(), _batches, settings=settings, seed=seed))
    return state, reports


def test_training_learns_and_is_the_same_twice() -> None:
    settings = TrainingSection(steps=30, learning_rate=3e-3, batch_size=4)
    state, reports = _run(settings)
    again, _ = _run(settings)
    assert [report.step for report in reports] == list(range(1, 31))
    batches = [_batches({"instance": number})[0] for number in range(10)]
    before, after = (evaluate(one, MaskedLanguageModeling(), iter(batches))["loss"] for one in (_model(), state.model))
    assert after < before - 0.03
    assert state.position == {"instance": 30}
    for a, b in zip(state.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("optimizer", ["adamw", "bert_adam"])
def test_the_schedule_scales_both_rates_and_heads_have_their_own(optimizer: str) -> None:
    """One step from the same gradients: heads move as if all had their rate, the rest as if all had the other."""
    base = TrainingSection(steps=4, warmup_ratio=0.0, max_grad_norm=0.0, optimizer=optimizer, learning_rate=1e-3)

    def trained(**rates: float):
        settings = base.model_copy(update=rates)
        state = TrainState.fresh(_model(), settings)
        seen = []
        for report in train_steps(state, MaskedLanguageModeling(), _batches, settings=settings, seed=0):
            seen.append((report.learning_rate, [group["lr"] for group in state.optimizer.param_groups]))
            if len(seen) == 1:
                first = {name: parameter.detach().clone() for name, parameter in state.model.named_parameters()}
        return seen, first

    (low, slow), (_, fast), (both, mixed) = trained(), trained(learning_rate=2e-2), trained(head_learning_rate=2e-2)
    for (rate, _), (same_rate, rates) in zip(low, both, strict=True):
        assert rate == same_rate > 0
        assert rates == pytest.approx([rate, rate, 20 * rate, 20 * rate])
    moved = 0
    for name, found in mixed.items():
        assert torch.equal(found, (fast if name.startswith("heads.") else slow)[name]), name
        moved += not torch.equal(slow[name], fast[name])
    assert moved > len(mixed) / 2


@pytest.mark.parametrize("optimizer", ["adamw", "bert_adam"])
def test_equal_rates_train_as_one(optimizer: str) -> None:
    plain = TrainingSection(steps=5, learning_rate=3e-3, optimizer=optimizer, max_grad_norm=0.0)
    state, _ = _run(plain)
    again, _ = _run(plain.model_copy(update={"head_learning_rate": 3e-3}))
    for a, b in zip(state.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_dropout_is_on_in_training_and_depends_on_the_seed() -> None:
    settings = TrainingSection(steps=3, learning_rate=1e-3, warmup_ratio=0.0)
    first, _ = _run(settings, seed=1)
    second, _ = _run(settings, seed=2)
    assert not all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True))


def test_every_step_draws_dropout_of_its_own() -> None:
    """With one batch and weights that do not move, only the draws can make the losses differ."""
    settings = TrainingSection(steps=3, learning_rate=1e-30, warmup_ratio=0.0)
    state, batch = TrainState.fresh(_model(dropout=0.3), settings), _batch([7, 19, 4])
    steps = train_steps(state, MaskedLanguageModeling(), lambda place: (batch, place), settings=settings, seed=0)
    assert len({report.loss for report in steps}) == 3


@pytest.mark.parametrize(("world_size", "micro_batch_size"), [(1, 1), (1, 2), (2, None), (2, 2), (4, 1)])
def test_ranks_and_micro_batches_draw_what_one_process_draws_for_the_whole_batch(
    world_size: int, micro_batch_size: int | None
) -> None:
    """Each rank takes its part of the batch; their sums equal the sums of one process, dropout included."""
    batch = _batch([1, 19, 0, 4, 7, 2, 3, 5])
    objective, parts = MaskedLanguageModeling(), batch.split(8 // world_size)
    counts = objective.target_counts(batch)

    class Part(Ranks):
        def sum_(self, values: dict[str, float]) -> dict[str, float]:
            return values | counts | {f"sequences of rank {rank}": len(part.lengths) for rank, part in enumerate(parts)}

    losses, model = dict.fromkeys(counts, 0.0), _model(dropout=0.3)
    for rank, part in enumerate(parts):
        ranks = Part()
        ranks.rank, ranks.world_size = rank, world_size
        draws = StepDraws(0, 7)
        found = accumulate_gradients(model, objective, part, micro_batch_size, draws=draws, ranks=ranks)
        losses = {name: losses[name] + value for name, value in found.items()}
    alone = _model(dropout=0.3)
    expected = accumulate_gradients(alone, objective, batch, None, draws=StepDraws(0, 7))
    assert losses == pytest.approx(expected, rel=1e-6)
    for name, gradient in _gradients(alone).items():
        torch.testing.assert_close(_gradients(model)[name], gradient, rtol=1e-5, atol=1e-7)


def test_torch_draws_as_after_its_own_seeding_but_no_call_stack_is_formatted(monkeypatch: pytest.MonkeyPatch) -> None:
    with StepDraws(3, 7).of(_batch([1]), number=2, first_row=0):
        found = torch.rand(4)
    seeds: list[int] = []
    monkeypatch.setattr("maskloom.training.loop._seed_generators", seeds.append)
    with StepDraws(3, 7).of(_batch([1]), number=2, first_row=0):
        pass
    assert found.equal(torch.rand(4, generator=torch.Generator().manual_seed(seeds[0])))
    torch.manual_seed(seeds[0])
    assert found.equal(torch.rand(4))
    monkeypatch.undo()
    monkeypatch.setattr("traceback.format_stack", lambda: pytest.fail("torch formats the call stack"))
    with StepDraws(3, 7).of(_batch([1]), number=2, first_row=0):
        pass


def test_a_loss_that_is_not_finite_is_never_stepped() -> None:
    settings = TrainingSection(steps=3, learning_rate=1e-3, warmup_ratio=0.0)
    state = TrainState.fresh(_model(), settings)
    with torch.no_grad():
        state.model.encoder.embeddings.word.weight[7] = float("nan")
    before = [p.detach().clone() for p in state.model.parameters()]

    def poisoned(position: dict) -> tuple[PretrainingBatch, dict]:
        batch, after = _batches(position)
        batch.token_ids[1] = 7
        return batch, after

    with pytest.raises(NumericalError, match=r"step 1: loss nan.*learning_rate"):
        next(train_steps(state, MaskedLanguageModeling(), poisoned, settings=settings, seed=0))
    assert state.step == 0
    for a, b in zip(before, state.model.parameters(), strict=True):
        assert torch.equal(a.nan_to_num(9.0), b.detach().nan_to_num(9.0))


def test_clipping_is_by_the_norm_of_all_gradients_together() -> None:
    def clipped(limit: float) -> tuple[float, float]:
        """Return the gradient norm that a step reports, and the norm of the gradients that it leaves."""
        settings = TrainingSection(steps=1, max_grad_norm=limit)
        state = TrainState.fresh(_model(), settings)
        (report,) = train_steps(
            state, MaskedLanguageModeling(), lambda at: (_batch([3, 4]), at), settings=settings, seed=0
        )
        gradients = [gradient.flatten() for gradient in _gradients(state.model).values()]
        return report.gradient_norm, float(torch.linalg.vector_norm(torch.cat(gradients)))

    norm, left = clipped(0.0)
    assert norm == pytest.approx(left, rel=1e-5)
    assert clipped(0.5 * norm) == (norm, pytest.approx(0.5 * norm, rel=1e-4))
    assert clipped(2.0 * norm) == (norm, pytest.approx(norm, rel=1e-5))


def test_an_apple_gpu_trains_without_operations_on_lists_of_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's norm and its clipping refuse to use them there."""
    settings = TrainingSection(steps=2, max_grad_norm=1e-3)
    _, plain = _run(settings)
    monkeypatch.setattr("torch.nn.utils.clip_grad._device_has_foreach_support", lambda device: False)
    state, apple = TrainState.fresh(_model(dropout=0.1), settings), Ranks(torch.device("mps"))
    found = list(train_steps(state, MaskedLanguageModeling(), _batches, settings=settings, seed=3, ranks=apple))
    assert [report.loss for report in found] == pytest.approx([report.loss for report in plain], rel=1e-6)


@pytest.mark.parametrize("optimizer", ["adamw", "bert_adam"])
@pytest.mark.parametrize("micro_batch_size", [None, 1])
def test_a_step_reads_once_from_its_device(
    monkeypatch: pytest.MonkeyPatch, optimizer: str, micro_batch_size: int | None
) -> None:
    def losses_of_gpus(probabilities, _rows, _decoder, _bias, targets):
        return -probabilities.gather(1, targets).squeeze(1).log()

    monkeypatch.setattr("maskloom.layers.vocabulary_loss._losses", losses_of_gpus)  # the CPU's version reads values
    settings = TrainingSection(steps=6, optimizer=optimizer, micro_batch_size=micro_batch_size)
    steps = train_steps(
        TrainState.fresh(_model(), settings),
        MaskedLanguageModeling(),
        lambda at: (_batch([3, 4]), at),
        settings=settings,
        seed=0,
    )
    for _ in range(2):  # from then on, the optimiser's steps are counted on the host
        next(steps)
    with Reads() as reads:
        taken = list(steps)
    assert len(taken) == 4
    assert reads.found == ["tolist"] * 4


@pytest.mark.parametrize(
    ("optimizer", "limit"), [("adamw", 0.0), ("adamw", 0.1), ("adamw", 1e9), ("bert_adam", 0.0), ("bert_adam", 0.1)]
)
def test_steps_launched_before_their_loss_is_read_are_the_same(monkeypatch, optimizer, limit):
    """As on a GPU, bit for bit; a step whose loss is not finite changes nothing, and later steps count as before."""
    settings = TrainingSection(steps=4, learning_rate=1e-2, optimizer=optimizer, max_grad_norm=limit)
    expected, reports = _run(settings)
    monkeypatch.setattr("maskloom.training.loop.can_run_ahead", lambda *_: True)
    state = TrainState.fresh(_model(dropout=0.1), settings)
    bad, computed = _batches({"instance": 2})[0].token_ids, []

    class Breaking(MaskedLanguageModeling):
        def loss_sums(self, model, batch):
            is_bad = np.array_equal(batch.token_ids, bad)
            computed.append((state.step, is_bad))
            sums = super().loss_sums(model, batch)
            return {name: value * math.nan for name, value in sums.items()} if is_bad and is_broken else sums

    is_broken = True

    def steps():
        return train_steps(state, Breaking(), _batches, settings=settings, seed=3)

    taken = steps()
    found = [next(taken), next(taken)]
    before = [p.detach().clone() for p in state.model.parameters()]
    assert computed == [(0, False), (0, False), (1, True)]  # each batch before the loss of the last one is read
    with pytest.raises(NumericalError):
        next(taken)
    assert all(torch.equal(a, b) for a, b in zip(before, state.model.parameters(), strict=True))
    assert all(gradient.isnan().any() for gradient in _gradients(state.model).values())  # of the bad batch
    is_broken = False
    found += list(steps())
    assert [report.loss for report in found] == [report.loss for report in reports]
    assert [report.gradient_norm for report in found] == [report.gradient_norm for report in reports]
    for a, b in zip(expected.model.parameters(), state.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("optimizer", ["adamw", "bert_adam", "sgd"])
def test_a_bad_first_step_launched_before_its_loss_is_read_leaves_no_state(monkeypatch, optimizer):
    sgd = partial(torch.optim.SGD, lr=1e-2, momentum=0.9, fused=True)
    monkeypatch.setitem(OPTIMIZERS, "sgd", lambda groups, settings: sgd(groups))
    monkeypatch.setattr("maskloom.training.loop.can_run_ahead", lambda *_: True)
    settings = TrainingSection(steps=2, learning_rate=1e-2, optimizer=optimizer)
    expected, _ = _run(settings)
    state = TrainState.fresh(_model(dropout=0.1), settings)

    class Broken(MaskedLanguageModeling):
        def loss_sums(self, model, batch):
            return {name: value * math.nan for name, value in super().loss_sums(model, batch).items()}

    with pytest.raises(NumericalError):
        next(train_steps(state, Broken(), _batches, settings=settings, seed=3))
    assert not state.optimizer.state
    list(train_steps(state, MaskedLanguageModeling(), _batches, settings=settings, seed=3))
    assert are_equal(weights_of(state), weights_of(expected))


def test_evaluation_weighs_every_prediction_the_same() -> None:
    model = _model()
    batches = [_batch([1], seed=1), _batch([19, 3], seed=2)]
    objective = MaskedLanguageModeling()
    metrics = evaluate(model, objective, iter(batches))
    with torch.inference_mode():
        sums = [objective.evaluation_sums(model.eval(), batch) for batch in batches]
    assert metrics["mlm_loss"] == pytest.approx(sum(s["mlm_loss"] for s in sums) / 23)
    assert metrics["mlm_perplexity"] == pytest.approx(math.exp(metrics["mlm_loss"]))
    assert metrics["loss"] == pytest.approx(metrics["mlm_loss"] + metrics["nsp_loss"])
    assert metrics["mlm_accuracy"] == sum(s["mlm_correct"] for s in sums) / 23


def test_evaluation_in_half_precision_is_near() -> None:
    model, found = _model(), {}
    for precision in ("fp32", "auto", "fastest", "bf16"):
        found[precision] = evaluate(model, MaskedLanguageModeling(), iter([_batch([19, 3])]), precision)
    assert found["fp32"] == found["auto"] == found["fastest"] != found["bf16"]
    assert found["bf16"]["loss"] == pytest.approx(found["fp32"]["loss"], rel=0.02)


def test_a_fresh_model_guesses_as_if_it_knew_nothing() -> None:
    metrics = evaluate(_model(), MaskedLanguageModeling(), iter([_batch([9, 9, 9, 9], seed=s) for s in range(8)]))
    assert metrics["mlm_loss"] == pytest.approx(math.log(VOCABULARY), abs=0.2)
    assert metrics["nsp_loss"] == pytest.approx(math.log(2), abs=0.1)
